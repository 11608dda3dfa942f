"""Sets of process counts as masks: bit n-1 says that n processes work, for n in 1-64.

A recipe that does not state its processes is judged for all of these at once; with one closed form a rule instead of 64
verdicts, an unstated count costs no more than a stated one.
"""

from collections.abc import Callable
from functools import lru_cache

from grposweep.setting import Setting

MOST = 64
NONE = 0
ALL = (1 << MOST) - 1
_MULTIPLES = [0] + [sum(1 << (n - 1) for n in range(step, MOST + 1, step)) for step in range(1, MOST + 1)]


def multiples(step: int) -> int:
    """The multiples of a positive step."""
    return _MULTIPLES[step] if step <= MOST else NONE


def up_to(most: int) -> int:
    """1 to ``most``."""
    return (1 << min(max(most, 0), MOST)) - 1


@lru_cache(maxsize=4096)
def divisors(number: int) -> int:
    """The divisors of a number, 0 having all."""
    return sum(1 << (n - 1) for n in range(1, MOST + 1) if number % n == 0)


def only(number: int) -> int:
    """This number alone."""
    return 1 << (number - 1) if 1 <= number <= MOST else NONE


def members(mask: int) -> list[int]:
    """The counts of a mask, ascending."""
    return [n for n in range(1, MOST + 1) if mask >> (n - 1) & 1]


@lru_cache(maxsize=4096)
def describe(mask: int) -> str:
    """A mask in words, as short as they get: ``multiples of 4``, ``1 to 12``, ``1, 2, 4, 7``."""
    counts = members(mask)
    if mask == ALL:
        return f"all of 1 to {MOST}"
    if not counts:
        return "none"
    if len(counts) > 2:
        if mask == up_to(counts[-1]):
            return f"1 to {counts[-1]}"
        if mask == multiples(counts[0]):
            return f"multiples of {counts[0]}"
        if mask == multiples(counts[0]) & up_to(counts[-1]):
            return f"multiples of {counts[0]} up to {counts[-1]}"
    shown = ", ".join(map(str, counts[:12]))
    return shown if len(counts) <= 12 else f"{shown} and {len(counts) - 12} more up to {counts[-1]}"


def every(_: Setting) -> int:
    """For a rule that reads the processes, but whose verdict none of 1-64 changes."""
    return ALL


def by_trial(setting: Setting, judge: Callable[[Setting], object]) -> int:
    """Return the counts that a rule accepts, found by asking it for each; for rules that seldom apply."""
    return sum(1 << (n - 1) for n in range(1, MOST + 1) if not judge(setting.replace({"processes": n})))
