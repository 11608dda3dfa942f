"""What turning one dial does: its effect against the baseline, from shared seeds, with an interval that holds for all at once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grposweep.search.estimate import CHANCE, Estimate, difference, estimate
from grposweep.search.race import Runner
from grposweep.search.space import Label, Point


@dataclass(frozen=True)
class Effect:
    """One value of one dial: its trial, what it is worth, and its difference to the baseline (both None: it failed)."""

    dial: str
    label: Label
    trial: int
    worth: Estimate | None
    effect: Estimate | None
    verdict: str  # better, worse, tied; failed; unknown: one seed tells no spread


@dataclass(frozen=True)
class Comparison:
    """The baseline's trial and what it is worth (None: it has come to nothing), and what each turn away from it does."""

    baseline: int | None
    worth: Estimate | None
    effects: Sequence[Effect]


def compare(points: Mapping[int, Point], runners: Sequence[Runner], sign: int) -> Comparison:
    """A whole sweep of one factor at a time, as ``find_effects`` takes it."""
    baseline = next((runner for runner in runners if not points[runner.number]), None)
    worth = None if baseline is None else worth_of(baseline, sign)
    return Comparison(None if baseline is None else baseline.number, worth, find_effects(points, runners, sign))


def find_effects(points: Mapping[int, Point], runners: Sequence[Runner], sign: int) -> list[Effect]:
    """The effects of all points that turn one dial, in the order of their trials.

    Values of runners are larger where better; ``sign`` turns them back. Each interval is a paired t-interval that misses
    with a chance of CHANCE / (number of effects), so that all of them hold together with a chance of 1 - CHANCE
    (Bonferroni; Dunnett's comparisons with a control without taking spreads for equal: a rate that is too high also
    scatters more). ``tied`` says that this many seeds tell no difference, not that there is none.
    """
    by_trial = {runner.number: runner for runner in runners}
    baseline = next((by_trial[number] for number, point in points.items() if not point and number in by_trial), None)
    turned = {number: next(iter(point.items())) for number, point in sorted(points.items()) if point}
    chance = CHANCE / max(len(turned), 1)
    return [
        _effect(dial, label, number, by_trial.get(number), baseline, sign, chance)
        for number, (dial, label) in turned.items()
    ]


def _effect(
    dial: str, label: Label, number: int, runner: Runner | None, baseline: Runner | None, sign: int, chance: float
) -> Effect:
    if runner is None or runner.has_failed or not runner.values:
        return Effect(dial, label, number, None, None, "failed")
    worth = worth_of(runner, sign)
    if baseline is None or not runner.values.keys() & baseline.values.keys():
        return Effect(dial, label, number, worth, None, "unknown")
    gain = difference(runner.values, baseline.values, chance)
    return Effect(dial, label, number, worth, Estimate(sign * gain.mean, gain.margin, gain.count), _verdict(gain))


def worth_of(runner: Runner, sign: int) -> Estimate:
    """A point's mean objective over its seeds, by itself."""
    return estimate([sign * value for value in runner.values.values()])


def _verdict(gain: Estimate) -> str:
    if not math.isfinite(gain.margin):
        return "unknown"
    return "better" if gain.low > 0 else "worse" if gain.high < 0 else "tied"
