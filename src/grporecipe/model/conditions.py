"""What a file of data says about a key's value: defects of releases, and keys that exclude each
other.

A condition is the value, one of several in a list, or one of ``{not: value or list}``, ``{above:
number}``, ``{at_least: number}``, ``{below: number}``, ``{has: word}``, ``{lacks: text}`` and
``{set: true or false}`` (whether the value counts as true).
"""

from collections.abc import Callable, Mapping
from typing import Any


def _words(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else str(value).split()


KINDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "not": lambda value, wanted: not meets(value, wanted),
    "above": lambda value, wanted: (value or 0) > wanted,
    "at_least": lambda value, wanted: (value or 0) >= wanted,
    "below": lambda value, wanted: (value or 0) < wanted,
    "has": lambda value, wanted: wanted in _words(value),
    "lacks": lambda value, wanted: wanted not in str(value),
    "set": lambda value, wanted: bool(value) is wanted,
}


def meets(value: Any, condition: Any) -> bool:
    """Return whether a value meets a condition."""
    if isinstance(condition, list):
        return value in condition
    if not isinstance(condition, Mapping):
        return bool(value == condition)
    ((kind, wanted),) = condition.items()
    return KINDS[kind](value, wanted)
