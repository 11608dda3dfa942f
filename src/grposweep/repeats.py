"""Whether two runs of one trial gave the same numbers, metric by metric."""

from collections.abc import Iterable, Mapping
from typing import Any

# Fields of a metrics line that may differ between two runs of one trial; all others are equal bit for bit on a CPU.
TIMES = (
    "time", "attempt", "step_time", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second",
    "time/step", "time/generation", "time/scoring", "time/training", "tokens_per_second", "memory/peak",
)  # fmt: skip


def without_times(line: Mapping[str, Any]) -> dict[str, Any]:
    """What of a metrics line repeats."""
    return {name: value for name, value in line.items() if name not in TIMES}


def first_difference(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> str | None:
    """Where two histories part, in words; None where they never do."""
    old, new = ([without_times(line) for line in lines] for lines in (before, after))
    for one, other in zip(old, new, strict=False):
        names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        if names:
            return f"{names[0]} {one.get(names[0])} became {other.get(names[0])} at step {one.get('step')}"
    return None if len(old) == len(new) else f"{len(old)} lines of metrics became {len(new)}"
