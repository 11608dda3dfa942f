"""Which parameters decide: PED-ANOVA's shares, or the contrasts of single parameters while there are few trials.

A trial that was stopped or paused counts with the final value that the learning curves forecast for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grposweep.files import as_number
from grposweep.report.trial_view import Direction, State, TrialView
from grposweep.search.analysis import ENOUGH, Contrast, Measured, find_contrasts, find_importances
from grposweep.search.early_stopping import Curve
from grposweep.search.early_stopping import State as CurveState
from grposweep.search.space import read_space

UNFINISHED = (State.PRUNED, State.PAUSED, State.STOPPED)
FEWEST = 4  # trials with a value
MOST_FORECAST = 160  # trials with a curve: of more, the forecast itself keeps so many


@dataclass(frozen=True)
class Importance:
    """Each parameter's share in what decides, the largest first; without shares the contrasts, the clearest first.

    ``trials`` is the number of trials that count, and ``forecast`` are those of them that count with a forecast.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    contrasts: Sequence[Contrast] = ()
    trials: int = 0
    forecast: Sequence[int] = ()


def find_importance(
    trials: Sequence[TrialView], space: Sequence[Mapping[str, Any]], metric: str, direction: Direction
) -> Importance:
    """Return what decides about a metric, by the trials of a search (without replicates)."""
    try:
        parameters = {known.name: known for known in read_space(space).parameters}
    except (KeyError, TypeError, AttributeError):  # a damaged sweep.yaml
        return Importance()
    inside = [trial for trial in trials if set(trial.point) <= set(parameters)]
    finished = [trial for trial in inside if trial.objective is not None]
    measured = {t.number: Measured(dict(t.point), t.objective or 0.0) for t in finished}
    measured |= (others := dict(_values_of_others(inside, metric, 1 if direction == "maximize" else -1)))
    known, maximize = list(measured.values()), direction == "maximize"
    shares: dict[str, float] = {}
    if len(finished) >= ENOUGH:
        shares = find_importances(parameters, [m.point for m in known], [m.value for m in known], maximize)
    contrasts = find_contrasts(parameters, known, maximize) if not shares and len(known) >= FEWEST else []
    return Importance(shares, contrasts, len(known), [number for number, m in others.items() if m.deviation])


def _values_of_others(trials: Sequence[TrialView], metric: str, sign: int) -> Iterator[tuple[int, Measured]]:
    """Yield the values of trials that were stopped or paused: a collapsed one keeps its last, the others have a forecast."""
    waiting: dict[int, TrialView] = {}
    for trial in trials:
        if trial.state in UNFINISHED and trial.objective is None:
            if trial.result.guard is None:
                waiting[trial.number] = trial
            elif trial.reached is not None:
                yield trial.number, Measured(dict(trial.point), trial.reached)
    if not waiting or len(trials) > MOST_FORECAST:
        return
    curves = [curve for trial in trials if (curve := _curve(trial, metric, sign)) is not None]
    unfinished = [curve for curve in curves if curve.number in waiting]
    if not unfinished:
        return
    from grposweep.search.early_stopping.curve import forecast  # numpy and scipy

    found = forecast(curves)
    for curve, final in zip(unfinished, found.finals(unfinished), strict=True):
        low, middle, high = (found.value(final.mean + step * final.deviation) for step in (-1, 0, 1))
        point = dict(waiting[curve.number].point)
        yield curve.number, Measured(point, sign * middle, (high - low) / 2)


def _curve(trial: TrialView, metric: str, sign: int) -> Curve | None:
    """Return a trial's learning curve as the forecast takes it; None before its first evaluation."""
    seen = [point for point in trial.curve(metric) if point.completions > 0 and point.step > 0]
    if not seen or trial.state is State.FAILED:
        return None
    last = seen[-1]
    total = as_number(trial.plan.get("total_completions")) or last.completions / last.step * trial.total
    state = CurveState.FINISHED if trial.objective is not None else CurveState.PAUSED
    completions, values = [float(point.completions) for point in seen], [sign * point.value for point in seen]
    return Curve(trial.number, dict(trial.point), state, max(total, last.completions), completions, values)
