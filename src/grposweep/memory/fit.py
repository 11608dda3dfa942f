"""How far a setting's sizes can go on a GPU: the largest micro-batch, the longest completion, the most generations."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import gcd
from typing import Any

from grposweep.memory.catalog import GPUS
from grposweep.memory.estimate import GIB, estimate
from grposweep.plan import micro_steps_per_generation
from grposweep.setting import Setting

MOST_COMPLETIONS, MOST_TOKENS, MOST_GENERATIONS = 4096, 1 << 18, 4096  # beyond which nobody asks


@dataclass(frozen=True)
class Fit:
    """One GPU: its memory and the setting's peak in GiB, and each size at its largest with the others as they are.

    ``batch`` are completions a micro-step at the same effective batch, ``completion`` tokens; None where even the smallest
    does not fit.
    """

    gib: float
    peak: float
    batch: int | None
    completion: int | None
    generations: int | None

    @property
    def fits(self) -> bool:
        """Whether the setting fits as it is."""
        return self.peak <= self.gib

    def as_dict(self) -> dict[str, Any]:
        """The fields, and whether it fits."""
        return {"fits": self.fits, **asdict(self)}


def fit(s: Setting, gib: float) -> Fit:
    """The sizes that fit a GPU of so many GiB; the model's shape must be known."""
    s = s.replace({"gpu_memory_gib": gib, "auto": frozenset()})

    def fits(change: dict[str, Any]) -> bool:
        return _peak(s.replace(change)) <= gib

    group = max(s.num_generations // gcd(s.num_generations, max(s.processes or 1, 1)), 1)
    return Fit(
        gib=gib,
        peak=round(_peak(s), 2),
        batch=_largest(lambda n: fits(with_batch(s, n)), MOST_COMPLETIONS),
        completion=_largest(lambda n: fits({"max_completion_length": n}), MOST_TOKENS),
        generations=_largest(lambda n: fits(with_generations(s, n * group)), MOST_GENERATIONS // group, group),
    )


def fit_gpus(s: Setting) -> list[tuple[str, Fit]]:
    """The same for every GPU of the table, smallest first."""
    return [(name, fit(s, gib)) for name, gib in sorted(GPUS.items(), key=lambda item: item[1])]


def with_batch(s: Setting, size: int) -> dict[str, Any]:
    """Micro-batches of this size; the rollout and the effective batch stay as they are, as nearly as whole numbers let."""
    step = s.per_device_train_batch_size * s.gradient_accumulation_steps
    rollout = s.per_device_train_batch_size * micro_steps_per_generation(s)
    return {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": max(step // size, 1),
        "steps_per_generation": max(rollout // size, 1),
    }


def with_generations(s: Setting, generations: int) -> dict[str, Any]:
    """So many generations of as many prompts: longer rollouts, more accumulation."""
    rollout = max(s.per_device_train_batch_size * micro_steps_per_generation(s) // max(s.num_generations, 1), 1)
    micro_steps = -(-rollout * generations // s.per_device_train_batch_size)
    return {
        "num_generations": generations,
        "steps_per_generation": micro_steps,
        "gradient_accumulation_steps": micro_steps,
    }


def _peak(s: Setting) -> float:
    memory = estimate(s)
    assert memory is not None  # the caller has seen to it
    return memory.peak / GIB


def _largest(fits: Callable[[int], bool], most: int, unit: int = 1) -> int | None:
    """The largest number that fits, times the unit, by bisection; None where 1 does not."""
    if not fits(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * unit
