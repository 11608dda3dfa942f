"""Shared parts of rules: conditions on one field, suggestions, values in words, sets of process
counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any

from grporecipe.files import Config
from grporecipe.model.effect import describe_lack, find_lack
from grporecipe.model.setting import Setting
from grporecipe.model.values import Names
from grporecipe.registries import NEWEST
from grporecipe.rules.registry import ALL_COUNTS, MOST_PROCESSES, Change, Find, Violation, shown
from grporecipe.terminal import count

# largest distance from a number at which neighbours are searched
FARTHEST = 1024
# neighbours that are verified at most
MOST = 24


# Conditions: each is a rule's `find`.


def one_of(name: str, allowed: Callable[[Setting], Names], since: tuple[int, int] = (0, 0)) -> Find:
    """Build the condition that a field holds one of these words. An empty set of words means that
    it is not checked, nor is it before the release ``since``.
    """

    def find(s: Setting) -> Violation | None:
        words = allowed(s)
        value = getattr(s, name)
        trainer = "trl" if s.framework.follows_trl else s.framework.name
        newest = NEWEST.get(trainer, s.version)
        # a newer release may have more
        if not words or value in words or not since <= s.version <= newest:
            return None
        # Another word means another objective: the probable spelling is suggested first, and alone.
        near = get_close_matches(str(value).lower().replace("-", "_"), words, n=1, cutoff=0.75)
        return Violation(
            named(s, (name,)),
            f"this {s.trainer} knows {', '.join(words)}",
            f"Set {s.key(name)} to one of them.",
            (name,),
            ({name: (near or words)[0]},),
        )

    return find


def no_field(
    names: Iterable[str],
    is_wrong: Callable[[Setting, str, Any], bool],
    reason: str,
    instead: str,
    to: Callable[[str], Iterable[Change]],
) -> Find:
    """Build the condition that no field of a list has a wrong value. The first wrong field is
    blamed.

    ``is_wrong`` gets the setting, the field and its value. In ``instead``, ``{}`` is the field's
    key.
    """

    def find(s: Setting) -> Violation | None:
        for name in names:
            value = getattr(s, name)
            if value is not None and is_wrong(s, name, value):
                return Violation(
                    named(s, (name,)),
                    reason,
                    instead.format(s.key(name)),
                    (name,),
                    to(name),
                )
        return None

    return find


def divides_the_processes(
    name: str,
    suggest: Callable[[int, int], Iterable[int]],
    is_checked: Callable[[Setting], bool] = lambda _: True,
) -> Find:
    """Build the condition that a number of ranks above 1 divides the processes.

    ``suggest`` gets the number and the processes, and returns others to try; those that divide are
    suggested.
    """

    def find(s: Setting) -> Violation | None:
        size = getattr(s, name)
        processes = s.processes or 0
        if min(size, processes) < 1 or not is_checked(s) or processes % size == 0:
            return None
        return Violation(
            named(s, (name,)),
            f"it does not divide the {count(processes, 'training process')}",
            f"Choose a divisor of {processes}.",
            (name, "processes"),
            each(name, (n for n in suggest(size, processes) if processes % n == 0)),
        )

    return find


def unread(*names: str) -> Find:
    """Build the condition that a recipe sets none of some fields while nothing reads it."""

    def find(s: Setting) -> Violation | None:
        lacks = {name: find_lack(s, name) for name in names if name in s.given}
        idle = [name for name, lack in lacks.items() if lack]
        if not idle:
            return None
        reason, revived = describe_lack(s, lacks[idle[0]])
        return Violation(named(s, idle), reason, f"{revived}, or leave it out.", tuple(idle))

    return find


# Suggestions.


def each(name: str, values: Iterable[Any]) -> tuple[Change, ...]:
    """Return one change per value of a field."""
    return tuple({name: value} for value in values)


def nearest_first(numbers: Iterable[int], value: int) -> list[int]:
    """Sort numbers by their distance from a value; of equally near ones the smaller comes first."""
    return sorted(numbers, key=lambda n: (abs(n - value), n))


def near(value: int, accepts: Callable[[int], bool]) -> list[int]:
    """Return other numbers that satisfy a condition, nearest first; of equally near ones the
    smaller first.
    """
    found: list[int] = []
    for far in range(1, FARTHEST):
        found += [n for n in (value - far, value + far) if n >= 1 and accepts(n)]
        if len(found) >= MOST:
            break
    return found[:MOST]


@dataclass(frozen=True)
class OtherSizes:
    """Changes of one size each to the nearest values that a condition accepts; computed when fixes
    are searched.
    """

    setting: Setting
    names: Names
    accepts: Callable[[Setting], bool]

    def __iter__(self) -> Iterator[Change]:
        for name in self.names:
            now = getattr(self.setting, name)
            if now is not None:
                yield from each(name, near(now, partial(self._accepts, name)))

    def _accepts(self, name: str, value: int) -> bool:
        return self.accepts(self.setting.replace({name: value}))


def other_sizes(*names: str, accepts: Callable[[Setting], bool]) -> Callable[[Setting], OtherSizes]:
    """Build a rule's suggestions: other sizes that satisfy a condition, field by field."""
    return lambda s: OtherSizes(s, names, accepts)


# Values in words.


def named(s: Setting, names: Iterable[str]) -> str:
    """Return fields as ``key=value and key=value``."""
    return " and ".join(f"{s.key(name)}={shown(getattr(s, name))}" for name in names)


def it_or_them(names: Sized) -> str:
    """Return the pronoun for one or several."""
    return "it" if len(names) == 1 else "them"


def unset(key: str, reason: str, *values: Any) -> Violation:
    """Describe a key of a recipe that is not set, with values that may repair it."""
    advice = f"Set {key}={show(values[0])}."
    changes = tuple({key: value} for value in values)
    return Violation(f"{key} is not set", reason, advice, (key,), changes)


def show(value: Any) -> str:
    """Return a recipe's value as YAML on one line, shortened."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{...}"
    if isinstance(value, list):
        return "[...]"
    return cut(shown(value))


def of_key(
    key: str, value: Any, reason: str, instead: str, *changes: Change, **more: Any
) -> Violation:
    """Describe the value of one key of a recipe, with changes that may repair it."""
    return Violation(f"{key}={show(value)}", reason, instead, (key,), changes, **more)


def did_you_mean(near: list[str], otherwise: str = "Remove it.") -> str:
    """Return advice on a key or a word that does not exist, with those that may be meant."""
    return f"Did you mean {' or '.join(near)}?" if near else otherwise


def misnamed(config: Config, key: Any, near: list[str], reason: str, **more: Any) -> Violation:
    """Describe a key that does not exist, with a change to the nearest one that may be meant."""
    changes = tuple({str(key): None, new: config[key]} for new in near[:1] if new not in config)
    return Violation(set_to(config, key), reason, did_you_mean(near), (str(key),), changes, **more)


def cut(text: str) -> str:
    """Return one line of at most 40 characters, without control characters."""
    if not text.isprintable():
        for char in text:
            if not char.isprintable():
                text = text.replace(char, " ")
    return text if len(text) <= 40 else text[:37] + "..."


def set_to(config: Any, key: Any) -> str:
    """Return ``key=value`` as a recipe sets it."""
    return f"{cut(str(key))}={show(config[key])}"


# Sets of process counts as masks: bit n-1 means that n processes work, for n in 1-64. A recipe that
# does not state its processes is judged for all of these at once.

NO_COUNT = 0


def members(mask: int) -> list[int]:
    """Return the counts of a mask, ascending."""
    return [n for n in range(1, MOST_PROCESSES + 1) if mask >> (n - 1) & 1]


@lru_cache(maxsize=4096)
def describe_counts(mask: int) -> str:
    """Describe a mask in short words: ``multiples of 4``, ``1 to 12``, ``1, 2, 4, 7``."""
    counts = members(mask)
    if mask == ALL_COUNTS:
        return f"all of 1 to {MOST_PROCESSES}"
    if not counts:
        return "none"
    first = counts[0]
    last = counts[-1]
    if len(counts) > 2 and counts == [*range(first, last + 1, first)]:
        if first == 1:
            return f"1 to {last}"
        end = "" if last + first > MOST_PROCESSES else f" up to {last}"
        return f"multiples of {first}{end}"
    shown = ", ".join(map(str, counts[:12]))
    return shown if len(counts) <= 12 else f"{shown} and {len(counts) - 12} more up to {counts[-1]}"


def every_count(_: Setting) -> int:
    """Return all counts, for a rule that reads the processes but accepts each of 1-64."""
    return ALL_COUNTS
