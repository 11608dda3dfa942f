"""Analyze finished trials: the Pareto front, the importance of parameters, and the effect of each change of one parameter."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grposweep.search.replication import CHANCE, Candidate, Estimate, difference, estimate
from grposweep.search.space import Label, Parameter, Point


def signs_of(directions: Mapping[str, str]) -> list[int]:
    """Return 1 for each maximized objective and -1 for each minimized one."""
    return [1 if direction == "maximize" else -1 for direction in directions.values()]


def pareto_front(values: Mapping[int, Sequence[float]], signs: Sequence[int]) -> list[int]:
    """Return the numbers of the points that no other dominates, best in the first objective first."""
    signed = {number: [s * value for s, value in zip(signs, found, strict=True)] for number, found in values.items()}
    front = [n for n, own in signed.items() if not any(_dominates(other, own) for other in signed.values())]
    return sorted(front, key=lambda number: ([-value for value in signed[number]], number))


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


ENOUGH = 10  # finished trials; below that the answer is noise
QUANTILE = 0.1  # of the trials, that count as the best; Optuna wants five of them at the least
FEWEST_BEST = 5
MOST = 1000  # trials looked at, drawn at random: as good as all of them, and five thousand take seconds


def find_importances(
    parameters: Mapping[str, Parameter], points: Sequence[Point], values: Sequence[float], maximize: bool
) -> dict[str, float]:
    """Return each parameter's share in what makes a point one of the best, largest first, by Optuna's PED-ANOVA.

    Source: Watanabe, Bansal and Hutter 2023, PED-ANOVA: Efficiently quantifying hyperparameter importance in arbitrary
    subspaces. It needs neither scikit-learn nor a model. Conditional parameters are left out, because only some points have
    them. Empty with too few points or parameters.
    """
    if len(parameters) < 2 or len(points) < ENOUGH:
        return {}
    import optuna  # 0.8 s that only this analysis should pay

    from grposweep.search.sampler import distribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize" if maximize else "minimize")
    kinds = {name: distribution(parameter) for name, parameter in parameters.items()}
    looked_at = random.Random(0).sample(list(zip(points, values, strict=True)), min(len(points), MOST))
    try:
        for point, value in looked_at:
            asked = {name: kinds[name] for name in point}
            study.add_trial(optuna.trial.create_trial(params=dict(point), distributions=asked, value=value))
        quantile = min(max(QUANTILE, FEWEST_BEST / len(looked_at)), 0.5)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
    except (ValueError, RuntimeError):  # a point outside the space, or all trials alike
        return {}


@dataclass(frozen=True)
class Effect:
    """One value of one parameter: its trial, its mean objective, and the difference to the baseline (both None: it failed)."""

    parameter: str
    label: Label
    trial: int
    worth: Estimate | None
    effect: Estimate | None
    verdict: str  # better, worse, tied; failed; unknown: one seed tells no spread


@dataclass(frozen=True)
class Comparison:
    """The baseline's trial and its mean objective (None: it failed), and the effect of each change of one parameter."""

    baseline: int | None
    worth: Estimate | None
    effects: Sequence[Effect]


def compare_effects(points: Mapping[int, Point], candidates: Sequence[Candidate], sign: int) -> Comparison:
    """Return the effects of all points that change one parameter, in the order of their trials.

    The candidates' results are larger where better; ``sign`` turns them back. Each interval is a paired t-interval that
    misses with a chance of CHANCE / (number of effects), so that all of them hold together with a chance of 1 - CHANCE
    (Bonferroni; Dunnett's comparisons with a control without assuming equal spreads: a rate that is too high also
    scatters more). ``tied`` says that this many seeds show no difference, not that there is none.
    """
    by_trial = {candidate.number: candidate for candidate in candidates}
    baseline = next((by_trial[number] for number, point in points.items() if not point and number in by_trial), None)
    changed = {number: next(iter(point.items())) for number, point in sorted(points.items()) if point}
    chance = CHANCE / max(len(changed), 1)

    def effect(number: int, parameter: str, label: Label) -> Effect:
        candidate = by_trial.get(number)
        if candidate is None or candidate.has_failed or not candidate.values:
            return Effect(parameter, label, number, None, None, "failed")
        worth = _mean(candidate, sign)
        if baseline is None or not candidate.values.keys() & baseline.values.keys():
            return Effect(parameter, label, number, worth, None, "unknown")
        gain = difference(candidate.values, baseline.values, chance)
        found = Estimate(sign * gain.mean, gain.margin, gain.count)
        return Effect(parameter, label, number, worth, found, _verdict(gain))

    effects = [effect(number, *change) for number, change in changed.items()]
    if baseline is None:
        return Comparison(None, None, effects)
    return Comparison(baseline.number, _mean(baseline, sign), effects)


def _mean(candidate: Candidate, sign: int) -> Estimate:
    """Return a point's mean objective over its seeds."""
    return estimate([sign * value for value in candidate.values.values()])


def _verdict(gain: Estimate) -> str:
    if not math.isfinite(gain.margin):
        return "unknown"
    return "better" if gain.low > 0 else "worse" if gain.high < 0 else "tied"
