"""The keys of a framework by release, read from the ``keys.json`` of its folder, and releases as
text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from grporecipe.model.recipe import KeySpec
from grporecipe.model.setting import Version
from grporecipe.model.values import Fields


class KeyTable(dict[str, KeySpec]):
    """The keys of one framework and release."""

    @cached_property
    def defaults(self) -> Fields:
        """The default of each key."""
        return {name: key.default for name, key in self.items()}

    @cached_property
    def sections(self) -> set[str]:
        """The sections of dotted keys."""
        sections = set[str]()
        for name in self:
            section = name
            while section := section.rpartition(".")[0]:
                sections.add(section)
        return sections

    @cached_property
    def below(self) -> dict[str, list[str]]:
        """For each word, the dotted keys that have it among their sections."""
        nested: dict[str, list[str]] = {}
        for name in self:
            for word in set(name.split(".")[:-1]):
                nested.setdefault(word, []).append(name)
        return nested


@cache
def load_table(package: str) -> Fields:
    """Return the table of keys (keys.json) in a framework's folder."""
    folder = Path(import_module(package).__path__[0])
    return dict(json.loads((folder / "keys.json").read_text(encoding="utf-8")))


@cache
def releases_of(package: str, names: str = "releases") -> tuple[Version, ...]:
    """Return the releases that a framework's table knows, ascending; ``names`` is the entry that
    lists them.
    """
    return tuple(map(parse_release, load_table(package)[names]))


def keys_at_release(history: Mapping[str, Sequence[Sequence[Any]]], version: Version) -> KeyTable:
    """Return the keys of the newest release that is not newer than a version.

    ``history`` holds, for each key, the releases that changed it: ``[release, type, default]``, or
    ``[release]`` alone if that release removed it.
    """
    table = KeyTable()
    for name, changes in history.items():
        last = change_at(changes, version)
        if len(last) == 3:
            table[name] = KeySpec(last[1], last[2])
    return table


def change_at(changes: Sequence[Sequence[Any]], version: Version) -> Sequence[Any]:
    """Return the newest entry of a history that is not newer than a version; empty before the first
    one.
    """
    return next((change for change in reversed(changes) if parse_release(change[0]) <= version), ())


def is_taken(key: str, takes: Mapping[str, KeySpec]) -> bool:
    """Return whether a key exists, names a section, or is inside a mapping with free keys (empty by
    default).
    """
    if key in takes:
        return True
    table = takes if isinstance(takes, KeyTable) else KeyTable(takes)
    if key in table.sections:
        return True
    parts = key.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts)))
    return any(takes[name].default == {} for name in above if name in takes)


def key_span(changes: Sequence[Sequence[Any]] | None) -> tuple[Version, Version | None] | None:
    """Return the releases in which a key came and left (None: still there); None for a key that
    never existed.
    """
    if changes is None:
        return None
    last = changes[-1]
    removed = parse_release(last[0]) if len(last) == 1 else None
    return parse_release(changes[0][0]), removed


@cache
def parse_release(name: str) -> Version:
    """Parse a release of a table, which has three numbers."""
    major, minor, patch = map(int, name.split("."))
    return major, minor, patch


def text(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def closest_keys(name: str, names: Iterable[str]) -> list[str]:
    """Return up to two flat keys similar to a misspelt one, nearest first."""
    # only a mistake needs it
    from difflib import get_close_matches

    plain = name.replace("-", "_").lower()
    return get_close_matches(plain, list(names), n=2, cutoff=0.8)
