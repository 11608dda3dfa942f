"""Read TRL's own source in a repository: the fields of its GRPOConfig by the syntax tree, and its version."""

import ast
import re
from pathlib import Path

from grporecipe.frameworks.base import KeyTable, Vendored
from grporecipe.frameworks.parsing.python.launched import fields_of
from grporecipe.frameworks.parsing.python.modules import SourceTree, resolve_expression
from grporecipe.frameworks.trl.keys import known, releases
from grporecipe.recipe import KeySpec, Recipe
from grporecipe.setting import Version

CONFIG = "trl/trainer/grpo_config.py"
STATED = (
    "VERSION",
    "trl/VERSION",
    "trl/version.py",
    "trl/__init__.py",
    "setup.py",
    "pyproject.toml",
)  # the first match is used
_VERSION = re.compile(r"""(?:\A|(?:__version__|version) {0,9}= {0,9}["'])(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?""")
LARGEST = 2**20  # characters


def read_source(folder: Path, _: Recipe) -> Vendored:
    """Return the keys of TRL in this source. Keys of transformers and of TRL's scripts are those of the release.

    A source without a version gets that of the newest release that knows most of its fields.
    """
    repository = SourceTree(folder)
    module = repository.open(folder / CONFIG)
    name = ast.Name("GRPOConfig", ast.Load())
    classes = resolve_expression(repository, module, name) if module else ()
    own = {key: spec for one in classes for key, spec in fields_of(repository, one).items() if not key.startswith("_")}
    version = _stated(folder) or _nearest(frozenset(own))
    takes = known(version)
    keys = KeyTable(takes)
    for key, spec in own.items():
        release = takes.get(key, spec)
        keys[key] = KeySpec(release.type, release.default if spec.default is None else spec.default)
    return Vendored(keys if own else None, version)


def _stated(folder: Path) -> Version | None:
    for name in STATED:
        path = folder / name
        match = _VERSION.search(_text(path)) if path.is_file() else None
        if match:
            return (int(match[1]), int(match[2]), int(match[3] or 0))
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:LARGEST].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _nearest(own: frozenset[str]) -> Version:
    return max(releases(), key=lambda release: (len(own & known(release).keys()), release))
