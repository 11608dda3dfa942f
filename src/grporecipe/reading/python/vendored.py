"""Read what each ``source.py`` of a framework needs from its own source in a repository:
dataclasses, and a version.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from grporecipe.model.recipe import KeySpec, KeySpecs
from grporecipe.model.releases import KeyTable
from grporecipe.model.setting import Version
from grporecipe.project.repository import LARGEST_SOURCE, head_of
from grporecipe.reading.python._launched import MOST_BASES, fields_of
from grporecipe.reading.python.source import Names, name_of, read_file

_VERSION = (
    r"""(?:\A|(?:__version__|version) {0,9}= {0,9}["'])(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?"""
)
COMMENT = r"(?m)^\s*#.*$"
Known = Callable[[Version], Mapping[str, KeySpec]]


def with_types(own: KeySpecs, release: KeySpecs) -> KeyTable:
    """Return a source's keys. What is no literal in it, a type or a default, is the release's."""
    table = KeyTable()
    for key, spec in own.items():
        released = release.get(key, spec)
        kind, default = released
        if isinstance(spec.default, tuple):
            default = list(spec.default)
        elif spec.default is not None:
            default = spec.default
        # An annotation may be looser than what the trainer does with the value; a type of another
        # kind is the source's own.
        if _is_other(spec.type, released.type):
            kind = spec.type
        table[key] = KeySpec(kind, default)
    return table


def _is_other(own: str, released: str) -> bool:
    """Return whether a source's type holds texts or lists where the release's holds numbers, or
    more than a text.
    """
    if released.rstrip("?") == "str":
        return own.rstrip("?") in ("list", "any")
    return own.rstrip("?") in ("str", "list") and released.rstrip("?") in ("int", "float", "bool")


def code_of(folder: Path, files: Sequence[str]) -> dict[str, str]:
    """Return the code of a source's files by relative path, without whole lines of comments.
    ``files`` are patterns.
    """
    code = {}
    for pattern in files:
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder).as_posix()
            code[name] = re.sub(COMMENT, "", head_of(path, LARGEST_SOURCE))
    return code


def missing_checks(
    code: Mapping[str, str], checks: Mapping[str, str], anchor: str
) -> dict[str, str]:
    """Return the codes of rules on checks that a source does not have, each with the file that
    should have it.

    ``checks`` has what the check of a rule looks like in every release that has it. Without the
    file that ends with ``anchor`` the source is not whole, so nothing is missing.
    """
    place = next((name for name in code if name.endswith(anchor)), "")
    if not place:
        return {}
    missing = {}
    for name, check in sorted(checks.items()):
        if not any(re.search(check, text) for text in code.values()):
            missing[name] = f"{place} does not check it"
    return missing


def fields_of_file(file: Path, name: str, steps: int = 0) -> dict[str, KeySpec]:
    """Return the fields of a class, with those of its bases in the same folder."""
    names = read_file(file)
    if names is None or name not in names.classes or steps > MOST_BASES:
        return {}
    fields: dict[str, KeySpec] = {}
    for origin in map(names.origin, names.classes[name].bases):
        # from .base_config import _BaseConfig
        if origin.startswith("."):
            module, _, base = origin.removeprefix(".").partition(".")
            fields |= fields_of_file(file.with_name(f"{module}.py"), base, steps + 1)
    return fields | fields_of(names, name)


def nested_fields(
    file: Path, name: str, above: str = "", steps: int = 0
) -> Iterator[tuple[str, KeySpec]]:
    """Yield the dotted keys of a dataclass and of the dataclasses that its fields hold, also of
    other files.
    """
    place = _class(file, name)
    if place is None or steps > MOST_BASES:
        return
    names, file = place
    specs = fields_of(names, name)
    for one in names.classes[name].body:
        if (
            not isinstance(one, ast.AnnAssign)
            or not isinstance(one.target, ast.Name)
            or one.target.id not in specs
        ):
            continue
        # Optional[Section] = None: the section's keys may be set, and the whole section may be
        # null.
        kinds = {node.id for node in ast.walk(one.annotation) if isinstance(node, ast.Name)}
        sections = sorted(kind for kind in kinds if kind in names.classes or kind in names.imports)
        inner: list[tuple[str, KeySpec]] = []
        for kind in sections:
            inner += nested_fields(file, kind, f"{above}{one.target.id}.", steps + 1)
        yield from inner
        if not inner or name_of(one.annotation) not in sections:
            yield above + one.target.id, specs[one.target.id]


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
    whole = file.parents[level - 1].joinpath(*module.split("."))
    for path in (whole.with_suffix(".py"), whole / "__init__.py"):
        if path.is_file() and path != file:
            place = _class(path, name, steps + 1)
            if place is not None:
                return place
    return None


def stated_version(folder: Path, files: Sequence[str]) -> Version | None:
    """Return the first version that one of these files states, or None."""
    for name in files:
        match = re.search(_VERSION, head_of(folder / name).strip())
        if match:
            return (int(match[1]), int(match[2]), int(match[3] or 0))
    return None


def nearest_release(own: KeySpecs, keys_of: Known, releases: Sequence[Version]) -> Version:
    """Return the newest release whose keys differ least."""
    return min(reversed(releases), key=lambda release: len(keys_of(release).keys() ^ own.keys()))
