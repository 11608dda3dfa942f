"""Which dotted keys EasyR1 and verl take, with types and defaults: tables made from their own classes and configurations.

``easyr1_keys.json`` and ``verl_keys.json`` are written by benchmarks/tools/easyr1_keys.py and verl_keys.py.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from grposweep.errors import UserError
from grposweep.frameworks.keys import KeySpec
from grposweep.setting import Version

EASYR1: Version = (0, 3, 3)
VERL: Version = (0, 9, 1)
ALGORITHM_KL: Version = (
    0,
    3,
    0,
)  # EasyR1 before has its KL loss in worker.actor: use_kl_loss, kl_loss_coef, kl_loss_type


class KeyTable(dict[str, KeySpec]):
    """The keys of one framework and release."""

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The default of each."""
        return {name: key.default for name, key in self.items()}


@cache
def _table(name: str) -> dict[str, Any]:
    return dict(json.loads(files("grposweep.frameworks").joinpath(name).read_text(encoding="utf-8")))


@cache
def easyr1_releases() -> tuple[Version, ...]:
    """Every EasyR1 release that the table knows, ascending."""
    return tuple(_version(name) for name in _table("easyr1_keys.json")["releases"])


@cache
def easyr1(version: Version = EASYR1) -> KeyTable:
    """EasyR1's keys; a type that begins with ``auto`` is of a key that EasyR1 overwrites."""
    found = KeyTable()
    for name, history in _table("easyr1_keys.json")["keys"].items():
        last = None
        for change in history:
            if _version(change[0]) <= version:
                last = change
        if last is not None and len(last) == 3:
            found[name] = KeySpec(last[1], last[2])
    return found


@cache
def easyr1_example(version: Version = EASYR1) -> Mapping[str, Any]:
    """``examples/config.yaml``, on which EasyR1's own scripts and most others build."""
    name = ".".join(map(str, max(known for known in easyr1_releases() if known <= version)))
    return dict(_table("easyr1_keys.json")["examples"][name])


@cache
def easyr1_span(name: str) -> tuple[Version, Version | None] | None:
    """The release a key came with and the one it left with (None: still there); None for a key that never was."""
    history = _table("easyr1_keys.json")["keys"].get(name)
    if history is None:
        return None
    last = history[-1]
    return _version(history[0][0]), _version(last[0]) if len(last) == 1 else None


@cache
def verl(engine: str = "dp") -> KeyTable:
    """The keys of verl with FSDP (``dp``) or ``megatron``, typed by their defaults."""
    table = _table("verl_keys.json")
    values = dict(table["dp"])
    if engine == "megatron":
        values = {name: value for name, value in values.items() if name not in set(table["megatron_lacks"])}
        values |= table["megatron"]
    return KeyTable((name, KeySpec(_kind(value), value)) for name, value in values.items())


def is_taken(key: str, takes: Mapping[str, KeySpec]) -> bool:
    """Whether a key exists, names a section, or stands under a key whose own keys are free (an empty mapping)."""
    if key in takes or any(name.startswith(f"{key}.") for name in takes):
        return True
    parts = key.split(".")
    above = (".".join(parts[:n]) for n in range(1, len(parts)))
    return any(takes[name].default == {} for name in above if name in takes)


def nearest(key: str, takes: Mapping[str, KeySpec]) -> list[str]:
    """The keys that an unknown one may have meant: its last word elsewhere, or a spelling close to it."""
    from difflib import get_close_matches  # only a mistake needs it

    word = key.rsplit(".", 1)[-1]
    same = [name for name in takes if name.rsplit(".", 1)[-1] == word]
    return _closest(key, same)[:2] or get_close_matches(key, list(takes), n=2, cutoff=0.85)


def _closest(key: str, names: Iterable[str]) -> list[str]:
    """Those with most of the key's own sections first."""
    parts = set(key.split("."))
    return sorted(names, key=lambda name: (-len(parts & set(name.split("."))), len(name)))


def parse_version(text: str, framework: str) -> Version:
    """A release of EasyR1 or verl; those before the first known one are bad input."""
    parts = text.strip().removeprefix("v").split(".")
    if not 2 <= len(parts) <= 4 or not all(part.isdigit() for part in parts[:3]):
        raise UserError(f"version {text[:40]!r}: a version has two or three numbers. Write it like 0.3.3.")
    version = _version(".".join((*parts[:3], "0")[:3]))
    known = easyr1_releases() if framework == "easyr1" else (VERL,)
    if version < known[0]:
        first = ".".join(map(str, known[0]))
        raise UserError(f"{framework} {text}: the first release that can be judged is {first}.")
    return version


def _kind(value: Any) -> str:
    """The type of a key, from its default; ``any`` where that says nothing."""
    if isinstance(value, bool):
        return "bool?"
    return "float?" if isinstance(value, float) else "int?" if isinstance(value, int) else "any"


@cache
def _version(name: str) -> Version:
    major, minor, patch = (int(part) for part in name.split("."))
    return major, minor, patch
