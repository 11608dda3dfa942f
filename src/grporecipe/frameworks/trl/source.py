"""Read TRL's own source in a repository: the fields of its GRPOConfig by the syntax tree, and its version."""

import re
from pathlib import Path

from grporecipe.frameworks.base import KeyTable, Vendored
from grporecipe.frameworks.parsing.python_launched import MOST_BASES, fields_of
from grporecipe.frameworks.parsing.python_source import read_file
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
    own = {key: spec for key, spec in _fields(folder / CONFIG, "GRPOConfig").items() if not key.startswith("_")}
    version = _stated(folder) or _nearest(frozenset(own))
    takes = known(version)
    keys = KeyTable(takes)
    for key, spec in own.items():
        release = takes.get(key, spec)
        keys[key] = KeySpec(release.type, release.default if spec.default is None else spec.default)
    return Vendored(keys if own else None, version)


def _fields(file: Path, name: str, steps: int = 0) -> dict[str, KeySpec]:
    """Return the fields of a class, with those of its bases in the same folder."""
    names = read_file(file)
    if names is None or name not in names.classes or steps > MOST_BASES:
        return {}
    found: dict[str, KeySpec] = {}
    for origin in map(names.origin, names.classes[name].bases):
        if origin.startswith("."):  # from .base_config import _BaseConfig
            module, _, base = origin.removeprefix(".").partition(".")
            found |= _fields(file.with_name(f"{module}.py"), base, steps + 1)
    return found | fields_of(names, name)


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
