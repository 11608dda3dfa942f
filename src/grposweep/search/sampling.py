"""What the choice of held-out prompts and the sampling of completions do to a trial's mean
reward.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, stdev
from typing import Self

from grporecipe.files import finite_or_none
from grposweep.storage.completions import PromptRewards, read_prompt_rewards
from grposweep.storage.results import TrialResult

# of the variance over prompts in one prompt, up to which nothing is widened,
USUAL_SHARE = 0.15
HEAVY = 12.0
# Means of rewards of 0 and 1, and their differences, lie from -1 to 1 and are often alike.

# of the prompts
FEW_VALUES = 0.5
FEW_USUAL = 0.1
FEW_HEAVY = 1.5
# of a permutation test: a tenth of a second for 256 prompts
DRAWS = 399


@dataclass(frozen=True)
class Sampling:
    """What the choice of prompts and completions does to a mean reward: its standard error over
    prompts, None if unknown.

    ``means`` are the mean rewards of the prompts or of their families, in their order
    (`PromptRewards.by_family`), and ``prompts`` is a hash of the prompts; empty if unknown.
    ``reach`` is 1 if all rewards are from 0 to 1, 2 for a difference of such means, or infinite.
    """

    error: float | None = None
    means: Sequence[float] = ()
    prompts: str = ""
    reach: float = math.inf

    @classmethod
    def of(cls, error: float | None, rewards: PromptRewards) -> Self:
        """Return the sampling of a mean reward with this standard error."""
        means = rewards.by_family
        reach = math.inf
        if means and min(means) >= 0 and max(means) <= 1:
            reach = 1.0
        return cls(error, means, rewards.prompts, reach)

    def cut(self, margin: float, mean: float) -> float:
        """Return half of an interval around a mean, at most as much as its rewards allow; infinite
        if it is unknown.
        """
        if math.isinf(margin):
            return margin
        # a mean lies from 0 to 1, and a difference from -1 to 1
        return min(margin, max(abs(mean) + (self.reach - 1), 1 - abs(mean)))

    @cached_property
    def largest(self) -> float:
        """The share of the variance over prompts that a single prompt makes, from 0 to 1; 0 if
        unknown.
        """
        mean = fmean(self.means) if self.means else 0.0
        squares = [(value - mean) ** 2 for value in self.means]
        whole = math.fsum(squares)
        return max(squares) / whole if whole > 0 else 0.0

    @property
    def widening(self) -> float:
        """The factor on the interval for the heavy tail that a dominating prompt shows; 1 without
        one.

        Student's t alone covers 69 to 84 % instead of 95 % for 64 prompts from a Pareto (1.5) or
        lognormal (1.5) distribution. The constants are simulated, so that those have 93 % or more
        with 64 to 256 prompts, and normal values the same as before. Rare successes of rewards of 0
        or 1 are no heavy tail: 5 % of 64 prompts need 1.3 times the width for 95 %, not 3.
        """
        count = len(self.means)
        if not count:
            return 1.0
        if len(set(self.means)) <= FEW_VALUES * count and max(map(abs, self.means)) <= 1:
            return 1 + FEW_HEAVY * max(self.largest - FEW_USUAL, 0.0)
        # The largest of n normal deviations is about the root of 2 ln n.
        usual = max(USUAL_SHARE, 2 * math.log(count) / count)
        return 1 + HEAVY * max(self.largest - usual, 0.0)

    def margin(self, chance: float) -> float | None:
        """Return half of an interval that misses with this chance, by Student's t over the prompts;
        None if unknown.
        """
        if self.error is None:
            return None
        return student_quantile(len(self.means) - 1, 1 - chance / 2) * self.error * self.widening

    def p_value(self, value: float) -> float | None:
        """Return the chance of a value at least this far from 0, two-sided; None if unknown."""
        if not self.error:
            return None
        return student_p(len(self.means) - 1, value / self.error / self.widening)

    def minus(self, other: "Sampling") -> "Sampling":
        """Return the sampling of the difference of two results; on the same prompts it is paired by
        prompt.
        """
        joined = _joint([self, other], 1, lambda pair: pair[0] - pair[1])
        return replace(joined, reach=self.reach + other.reach)


@cache
def student_quantile(freedom: int, share: float) -> float:
    """Return the quantile of Student's t with so many degrees of freedom; without any, of the
    normal distribution.
    """
    if freedom < 1:
        return NormalDist().inv_cdf(share)
    # 0.25 s and 17 MB that only intervals over trials should cost
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def student_p(freedom: int, distance: float) -> float:
    """Return the chance of a value at least so many standard errors from 0, two-sided; without
    degrees of freedom by the normal distribution.
    """
    from scipy.special import ndtr, stdtr

    far = -abs(distance)
    tail = ndtr(far) if freedom < 1 else stdtr(freedom, far)
    return 2 * float(tail)


def describe_resolution(error: float, prompts: int) -> str:
    """Return which differences of two points can be chance, if each has this standard error over so
    many prompts: those inside the 95 % interval of equal points. Four times the prompts, or four
    seeds, halve it.
    """
    least = student_quantile(0, 0.975) * math.hypot(error, error)
    return f"differences below {least:.2g} can be chance with {prompts:,} held-out prompts"


def describe_shares(prompts: int) -> str:
    """Return which differences can be chance for rewards of 0 and 1, half of them earned, which
    have the largest spread.
    """
    return (
        f"rewards of 0 and 1: {describe_resolution(0.5 / math.sqrt(prompts), prompts)}; "
        f"{4 * prompts:,} (task.eval_prompts), or at best search.seeds=4, halve that"
    )


UNKNOWN = Sampling()


def average(samplings: Sequence[Sampling]) -> Sampling:
    """Return the sampling of the mean of at least one result."""
    return _joint(samplings, len(samplings), fmean)


def _joint(
    parts: Sequence[Sampling], divisor: int, joined: Callable[[Sequence[float]], float]
) -> Sampling:
    """Return the sampling of a sum of results, or of differences, over a divisor: prompt by prompt
    if all asked the same prompts.

    Otherwise, and where no prompt differs from another, the errors are those of different prompts.
    """
    errors = [part.error for part in parts if part.error is not None]
    apart = math.hypot(*errors) / divisor if len(errors) == len(parts) else None
    asked = {(part.prompts, len(part.means)) for part in parts}
    reach = max(part.reach for part in parts)
    if len(asked) > 1 or len(parts[0].means) < 2:
        return Sampling(apart, reach=reach)
    columns = [part.means for part in parts]
    means = list(map(joined, zip(*columns, strict=True)))
    error = stdev(means) / math.sqrt(len(means)) or apart
    return Sampling(error, means, parts[0].prompts, reach)


def p_of_groups(values: Sequence[float], groups: Sequence[int]) -> float:
    """Return the chance that so much of the variance is between groups if a value's group means
    nothing; 1 without groups.

    It is a permutation test with `DRAWS` draws, always the same ones.
    """
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    if not 1 < len(members) < len(groups) or len(set(values)) < 2:
        return 1.0
    mean = fmean(values)
    draw = Random(0)
    centred = [value - mean for value in values]

    def between() -> float:
        parts = []
        for indexes in members.values():
            total = math.fsum([centred[index] for index in indexes])
            parts.append(total**2 / len(indexes))
        return math.fsum(parts)

    here = between() * (1 - 1e-9)
    larger = 0
    for _ in range(DRAWS):
        draw.shuffle(centred)
        larger += between() >= here
    return (1 + larger) / (1 + DRAWS)


def share_error(value: float | None, error: float | None, samples: int | None) -> float | None:
    """Return an evaluation's standard error; for rewards that are all 0 or all 1 the one of a
    share, which is not 0.

    Source: Agresti and Coull (1998), Approximate is better than "exact" for interval estimation of
    binomial proportions.
    """
    if error != 0 or value not in (0.0, 1.0) or not samples:
        return error
    share = (value * samples + 2) / (samples + 4)
    return math.sqrt(share * (1 - share) / samples)


def read_sampling(trial: Path, result: TrialResult, samples: int | None) -> Sampling:
    """Return the sampling of a trial's objective, which has so many prompts if they are not
    recorded.
    """
    rewards = read_prompt_rewards(trial, result.evaluated)
    error = share_error(
        result.objective, finite_or_none(result.objective_se), len(rewards.by_family) or samples
    )
    return Sampling.of(error, rewards)


def read_sampling_of_start(trial: Path, result: TrialResult) -> Sampling:
    """Return the sampling of the metric before training; without a standard error the value counts
    as exact.
    """
    return Sampling.of(finite_or_none(result.start_se) or 0.0, read_prompt_rewards(trial, [0]))
