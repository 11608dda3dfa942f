"""Analyze trials: the contrasts of parameters, and the effect of each single change."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, variance

from grporecipe.files import as_number
from grposweep.search.replication import (
    CHANCE,
    Candidate,
    Estimate,
    difference,
    estimate,
    margin_of,
    step_down,
)
from grposweep.search.sampling import UNKNOWN, Sampling, average
from grposweep.search.space import Choice, Interval, Label, Parameter, Point

# Shares of a training that differ by less are the same.
SAME = 1e-3


@dataclass(frozen=True)
class Measured:
    """A trial's point and value."""

    point: Point
    value: float
    sampling: Sampling = UNKNOWN


@dataclass(frozen=True)
class Contrast:
    """The better values of a parameter against its other values: the difference between the means
    of their trials.

    ``better`` is one value, or one half of a range. ``trials`` have it, and ``others`` have another
    value.
    """

    parameter: str
    better: Choice | Interval
    trials: int
    others: int
    # of the metric; larger is better only if it is maximized
    difference: Estimate
    # of all results: no difference is larger
    spread: float = math.inf

    @property
    def is_known(self) -> bool:
        """Return whether the interval is narrower than half of all differences that are
        possible.
        """
        return math.isfinite(self.difference.margin) and self.difference.margin <= self.spread / 2

    @property
    def is_significant(self) -> bool:
        """Return whether the interval is known and excludes 0."""
        return self.is_known and self.difference.excludes_zero

    def holds(self, label: Label) -> bool:
        """Return whether a label is among the better values."""
        if isinstance(self.better, Choice):
            return label in self.better.labels
        number = as_number(label)
        return number is not None and self.better.low <= number <= self.better.high


def gain_after(share: float, finished: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return what finished trainings gained on average after a share of the training.

    Each is a curve of shares and values. The gain is that of a training that was paused there, for
    a comparison with finished ones: 0 if nothing tells it.
    """
    gains = []
    for curve in finished:
        before = [value for at, value in curve if at <= share + SAME]
        if before:
            gains.append(curve[-1][1] - before[-1])
    return math.fsum(gains) / max(len(gains), 1)


def find_contrasts(
    parameters: Mapping[str, Parameter], trials: Sequence[Measured], maximize: bool
) -> list[Contrast]:
    """Return each parameter's contrast, the clearest first.

    A choice's best value is compared with its other values, and the best half of a range with the
    other one. In a full grid the values are compared at each combination of the other parameters.
    Elsewhere nothing is adjusted for them, so a search that moved two parameters together shows the
    effect of one in both. All together are significant by chance in at most 5 % of sweeps
    (`step_down`), also for the best of more than two values (Bonferroni).
    """
    sign = 1 if maximize else -1
    sides = {}
    for name, parameter in parameters.items():
        side = _split(parameter, trials, sign)
        if side is not None and name != "seed":
            sides[name] = side
    tests = [partial(_gain, name, *side[1:]) for name, side in sides.items()]
    gains = step_down(tests)
    contrasts = []
    for (name, (better, ours, rest, _)), gain in zip(sides.items(), gains, strict=True):
        values = [trial.value for trial in (*ours, *rest)]
        # what the choice of prompts alone does to two of the results may be more than their range
        spread = max(max(values) - min(values), 2 * (_sampled(ours, rest).margin(CHANCE) or 0.0))
        contrasts.append(Contrast(name, better, len(ours), len(rest), gain, spread))
    return sorted(
        contrasts, key=lambda contrast: contrast.difference.margin - abs(contrast.difference.mean)
    )


def _gain(
    name: str, ours: Sequence[Measured], rest: Sequence[Measured], values: int, chance: float
) -> Estimate:
    """Return the difference of the best of so many values from the others, in a grid at each point
    of the other parameters.
    """
    chance /= values if values > 2 else 1
    blocks: dict[str, tuple[list[float], list[float]]] = {}
    for side, trials in enumerate((ours, rest)):
        for trial in trials:
            others = repr(sorted((key, label) for key, label in trial.point.items() if key != name))
            blocks.setdefault(others, ([], []))[side].append(trial.value)
    if len(blocks) < 2 or not all(one and other for one, other in blocks.values()):
        return mean_difference(ours, rest, chance)
    gains = [fmean(one) - fmean(other) for one, other in blocks.values()]
    return estimate(gains, chance, _sampled(ours, rest))


def _sampled(one: Sequence[Measured], other: Sequence[Measured]) -> Sampling:
    """Return the sampling of the difference of two means."""
    ours = average([trial.sampling for trial in one])
    theirs = average([trial.sampling for trial in other])
    return ours.minus(theirs)


def _split(
    parameter: Parameter, trials: Sequence[Measured], sign: int
) -> tuple[Choice | Interval, list[Measured], list[Measured], int] | None:
    """Return the better part of a parameter, its trials, the others, and the number of parts; None
    for a single part.
    """
    parts: dict[str, tuple[Choice | Interval, list[Measured]]] = {}
    for trial in trials:
        part = part_of(parameter.domain, trial.point.get(parameter.name))
        if part is not None:
            parts.setdefault(repr(part), (part, []))[1].append(trial)
    if len(parts) < 2:
        return None
    better, ours = max(parts.values(), key=lambda part: sign * _average(part[1]))
    rest = []
    for part, members in parts.values():
        if part is not better:
            rest += members
    return better, ours, rest, len(parts)


def part_of(domain: Choice | Interval, label: Label) -> Choice | Interval | None:
    """Return the value itself, or the half of the range that holds it; None for an inactive
    parameter.
    """
    if isinstance(domain, Choice):
        return None if label is None and None not in domain.labels else Choice((label,), (label,))
    number = as_number(label)
    scale = replace(domain, integer=False)
    if number is None:
        return None
    end = start = scale.at(0.5)
    if domain.integer:
        # No whole number is in both halves.
        end = math.floor(end)
        start = end + 1
    return replace(domain, high=end) if number < start else replace(domain, low=start)


def _average(trials: Sequence[Measured]) -> float:
    return fmean(trial.value for trial in trials)


def mean_difference(
    one: Sequence[Measured], other: Sequence[Measured], chance: float = CHANCE
) -> Estimate:
    """Return the difference of two means with its two-sided interval, which is infinite if one of
    them is of a single trial.

    Student's t with the degrees of freedom of the smaller sample holds for normal values of any two
    spreads (Mickey and Brown 1966, Bounds on the distribution functions of the Behrens-Fisher
    statistic). Welch's degrees of freedom cover 83 to 91 % instead of 95 % with four to eight
    trials of which some have collapsed.
    """
    mean = _average(one) - _average(other)
    count = len(one) + len(other)
    freedom = min(len(one), len(other)) - 1
    if freedom < 1:
        return Estimate(mean, math.inf, count)
    squared = _squared_error(one) + _squared_error(other)
    return Estimate(mean, margin_of(squared, freedom, _sampled(one, other), chance), count)


def _squared_error(trials: Sequence[Measured]) -> float:
    """Return the squared standard error of a mean."""
    return variance(trial.value for trial in trials) / len(trials)


@dataclass(frozen=True)
class Effect:
    """One value of one parameter: its trial, its mean objective, and the difference from the
    baseline (both None: it failed).
    """

    parameter: str
    label: Label
    trial: int
    estimate: Estimate | None
    effect: Estimate | None
    # better, worse, tied; unfinished on a seed; unknown: one seed tells no spread
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """The baseline's trial and its mean objective (None: it failed), and the effect of each change
    of one parameter.
    """

    baseline: int | None
    estimate: Estimate | None
    effects: Sequence[Effect]


def compare_effects(
    points: Mapping[int, Point], candidates: Sequence[Candidate], sign: int
) -> Comparison:
    """Return the effects of all points that change one parameter, in the order of their trials.

    The candidates' results are larger where better; ``sign`` turns them back. Each interval is a
    paired t-interval. Any of them is better or worse by chance in at most CHANCE of all sweeps
    (`step_down`; Dunnett's comparisons with a control without assuming equal spreads: a rate that
    is too high also scatters more). ``tied`` says that this many seeds show no difference, not that
    there is none.
    """
    by_trial = {candidate.number: candidate for candidate in candidates}
    measured = {n: found for n, found in by_trial.items() if found.values and not found.has_failed}
    unchanged = [by_trial[n] for n, point in points.items() if n in by_trial and not point]
    baseline = unchanged[0] if unchanged else None
    gains: dict[int, Estimate] = {}
    if baseline:
        seeds = baseline.values.keys()
        compared = [n for n in measured if points.get(n) and measured[n].values.keys() & seeds]
        tests = [partial(difference, measured[number], baseline) for number in compared]
        gains = dict(zip(compared, step_down(tests), strict=True))

    effects = []
    for number, point in sorted(points.items()):
        for parameter, label in point.items():
            mean, verdict = None, "unfinished"
            if number in measured:
                mean, verdict = _mean(measured[number], sign), "unknown"
            gain = gains.get(number)
            if gain:
                if math.isfinite(gain.margin):
                    verdict = "tied"
                if gain.excludes_zero:
                    verdict = "better" if gain.mean > 0 else "worse"
                gain = replace(gain, mean=sign * gain.mean)
            effects.append(Effect(parameter, label, number, mean, gain, verdict))
    if baseline is None:
        return Comparison(None, None, effects)
    return Comparison(baseline.number, _mean(baseline, sign), effects)


def _mean(candidate: Candidate, sign: int) -> Estimate:
    """Return a point's mean objective over its seeds."""
    return replace(candidate.overall, mean=sign * candidate.overall.mean)
