"""What differs between two resolved configurations, key by key."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

NAMING = ("name", "outputs", "force")  # of the sweep, not of a trial
ABSENT = "(not set)"


class Difference(NamedTuple):
    """One key: its value here and there."""

    key: str
    here: Any
    there: Any


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[Difference]:
    """All keys whose values differ, dotted, in the order of the first."""
    left, right = dict(_flat(here)), dict(_flat(there))
    keys = [key for key in dict.fromkeys([*left, *right]) if key not in NAMING]
    pairs = (Difference(key, left.get(key, ABSENT), right.get(key, ABSENT)) for key in keys)
    return [pair for pair in pairs if pair.here != pair.there]


def _flat(content: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{head}{name}.")
        else:
            yield f"{head}{name}", value
