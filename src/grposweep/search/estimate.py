"""How sure a mean over a few seeds is: Student's intervals for small samples, paired by seed where points share seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

CHANCE = 0.05  # of an interval that misses


@dataclass(frozen=True)
class Estimate:
    """A mean over ``count`` seeds and half the width of its interval: infinite for a single one, which tells no spread."""

    mean: float
    margin: float
    count: int

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.mean - self.margin

    @property
    def high(self) -> float:
        """And its upper end."""
        return self.mean + self.margin

    def __str__(self) -> str:
        return f"{self.mean:.4f}" + (f" ± {self.margin:.4f}" if math.isfinite(self.margin) else "")


def estimate(values: Sequence[float], chance: float = CHANCE) -> Estimate:
    """The mean of at least one value with its two-sided interval: mean ± t(1 - chance/2; n - 1) s / sqrt(n).

    Source: Student (1908), The probable error of a mean. It takes results over seeds for normal, about the same mean.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, math.inf, count)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    return Estimate(mean, _quantile(count - 1, 1 - chance / 2) * error if error else 0.0, count)


def difference(one: Mapping[int, float], other: Mapping[int, float], chance: float = CHANCE) -> Estimate:
    """How much more ``one`` is worth than ``other``, from the seeds that they share (at least one).

    Both saw the same prompts in the same order and were evaluated with the same random numbers under one seed, so what a
    seed does to both cancels (common random numbers: Law, Simulation Modeling and Analysis, section 11.2); no spread is
    taken to be equal to another.
    """
    return estimate([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())], chance)


@cache
def _quantile(freedom: int, share: float) -> float:
    """Student's t at a share of its distribution."""
    from scipy.special import stdtrit  # a second that only sweeps with several seeds should pay

    return float(stdtrit(freedom, share))
