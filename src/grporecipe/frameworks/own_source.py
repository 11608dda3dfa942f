"""Read a framework's own source in a repository: its keys by the syntax tree, and its version. verl's is in verl/source.py.

TRL: the fields of its GRPOConfig. EasyR1: the dataclasses of its PPOConfig. OpenRLHF: the options of train_ppo_ray.py.
ms-swift: its version alone.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from grporecipe.frameworks import easyr1, openrlhf
from grporecipe.frameworks.base import KeyTable, Vendored
from grporecipe.frameworks.parsing.python_launched import MOST_BASES, fields_of, read_options
from grporecipe.frameworks.parsing.python_source import Names, last_name, name_of, read_file
from grporecipe.frameworks.trl import keys as trl
from grporecipe.recipe import KeySpec, Recipe
from grporecipe.setting import Version

CONFIG = "trl/trainer/grpo_config.py"
# Files that state a version; the first match is used.
STATED = ("VERSION", "trl/VERSION", "trl/version.py", "trl/__init__.py", "setup.py", "pyproject.toml")
_VERSION = re.compile(r"""(?:\A|(?:__version__|version) {0,9}= {0,9}["'])(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?""")
LARGEST = 2**20  # characters
Known = Callable[[Version], Mapping[str, KeySpec]]


def read_trl(folder: Path, _: Recipe) -> Vendored:
    """Return the keys of TRL in this source. Keys of transformers and of TRL's scripts are those of the release.

    A source without a version gets that of the newest release that knows most of its fields.
    """
    own = {key: spec for key, spec in _fields(folder / CONFIG, "GRPOConfig").items() if not key.startswith("_")}
    version = _stated(folder, STATED) or max(
        trl.releases(), key=lambda release: (len(own.keys() & trl.known(release).keys()), release)
    )
    return Vendored(KeyTable({**trl.known(version), **_typed(own, trl.known(version))}) if own else None, version)


def read_easyr1(folder: Path, _: Recipe) -> Vendored:
    """Return the keys of EasyR1 in this source, and the release with the most similar keys.

    The stated version does not count: a development version may have the keys of the release before or after it.
    """
    own = dict(_nested(folder / "verl/trainer/config.py", "PPOConfig"))
    version = _nearest(own, easyr1.known, easyr1.releases())
    return Vendored(_typed(own, easyr1.known(version)) if own else None, version)


def read_openrlhf(folder: Path, _: Recipe) -> Vendored:
    """Return the options of OpenRLHF's command in this source, and its version."""
    names = read_file(folder / "openrlhf/cli/train_ppo_ray.py")
    own = read_options(names)[0] if names is not None else {}
    version = _stated(folder, ("version.txt",))
    if version is None or version < openrlhf.releases()[0]:
        version = _nearest(own, openrlhf.known, openrlhf.releases())
    # Some releases declare options in a loop, by names that only a running program has.
    loops = names is not None and any(isinstance(arg, ast.JoinedStr) for call, _ in names.calls for arg in call.args[:1]
                                      if last_name(call.func) == "add_argument")  # fmt: skip
    keys = _typed({**(openrlhf.known(version) if loops else {}), **own}, openrlhf.known(version))
    return Vendored(keys if own else None, version)


def read_ms_swift(folder: Path, _: Recipe) -> Vendored:
    """Return the version of ms-swift in this source."""
    return Vendored(None, _stated(folder, ("swift/version.py",)))


def _typed(own: Mapping[str, KeySpec], release: Mapping[str, KeySpec]) -> KeyTable:
    """Return a source's keys with the types of a release, and the release's default if the source's is no literal."""
    found = KeyTable()
    for key, spec in own.items():
        known, default = release.get(key, spec), list(spec.default) if isinstance(spec.default, tuple) else spec.default
        found[key] = KeySpec(known.type, known.default if default is None else default)
    return found


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


def _nested(file: Path, name: str, above: str = "", steps: int = 0) -> Iterator[tuple[str, KeySpec]]:
    """Yield the dotted keys of a dataclass and of the dataclasses that its fields hold, also of other files."""
    place = _class(file, name)
    if place is None or steps > MOST_BASES:
        return
    names, file = place
    specs = fields_of(names, name)
    for one in names.classes[name].body:
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name) or one.target.id not in specs:
            continue
        kind = name_of(one.annotation)
        is_class = kind in names.classes or kind in names.imports
        inner = list(_nested(file, kind, f"{above}{one.target.id}.", steps + 1)) if is_class else []
        yield from inner or [(above + one.target.id, specs[one.target.id])]


def _class(file: Path, name: str, steps: int = 0) -> tuple[Names, Path] | None:
    """Return the file that defines a class, following relative imports."""
    names = read_file(file)
    if names is None or steps > MOST_BASES:
        return None
    if name in names.classes:
        return names, file
    origin = names.imports.get(name, "")
    module = origin.lstrip(".").rpartition(".")[0]
    level = len(origin) - len(origin.lstrip("."))
    if not level or level > len(file.parents):
        return None
    whole = file.parents[level - 1].joinpath(*module.split(".")) if module else file.parents[level - 1]
    paths = (whole.with_suffix(".py"), whole / "__init__.py")
    found = (_class(path, name, steps + 1) for path in paths if path.is_file() and path != file)
    return next((place for place in found if place is not None), None)


def _stated(folder: Path, files: Sequence[str]) -> Version | None:
    for name in files:
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


def _nearest(own: Mapping[str, KeySpec], known: Known, releases: Sequence[Version]) -> Version:
    """Return the newest release whose keys differ least."""
    return min(reversed(releases), key=lambda release: len(known(release).keys() ^ own.keys()))
