"""Estimate when a sweep ends and what it will have cost, from the trials that have ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from grposweep.cost import HOUR, Rates, Work, fit_rates, read_work
from grposweep.report.trial_view import State, TrialView
from grposweep.report.view import SweepView

LATEST = 20  # ended trials whose mean time is expected of the next ones


def seconds_left(view: SweepView) -> float | None:
    """Return the expected seconds to the end: open trials times mean time, over parallel slots; None if unknown."""
    left = view.planned - view.ended
    if not left:
        return 0.0
    each = _seconds_each(view.trials)
    if each is None:
        return None
    running = [trial for trial in view.trials if trial.state is State.RUNNING]
    behind = sum(min(trial.seconds, each) for trial in running)
    slots = max(min(view.progress.at_once or len(running), left), 1)
    return max(each * left - behind, 0.0) / slots


def _seconds_each(trials: Sequence[TrialView]) -> float | None:
    """Return the mean time of the latest ended trials; before one has ended, the pace of the running ones."""
    times = [trial.seconds for trial in trials if trial.state in (State.FINISHED, State.PRUNED)][-LATEST:]
    times = times or [
        trial.seconds * trial.total / trial.step
        for trial in trials
        if trial.state is State.RUNNING and trial.step and trial.total
    ]
    return sum(times) / len(times) if times else None


@dataclass(frozen=True)
class Forecast:
    """Expected GPU hours: of the whole sweep, of each open trial (by number), and of a trial that has not started."""

    total: float
    under_way: dict[int, float]
    each: float
    trials: int  # finished ones, on which the estimate rests


def forecast(view: SweepView) -> Forecast | None:
    """Return the expected cost; None before a trial has finished, or if no plan states the work."""
    rates, works = measured_rates(view), [work for trial in view.trials if (work := _work(trial)) is not None]
    if rates is None or not works:
        return None
    each = sum(map(rates.hours, works)) / len(works)
    open_ = [trial for trial in view.trials if not trial.state.is_over]
    under_way = {trial.number: max(_hours(rates, trial, each), trial.gpu_hours) for trial in open_}
    spent = sum(trial.gpu_hours for trial in view.trials if trial.state.is_over)
    to_come = view.planned - len(view.trials)
    return Forecast(spent + sum(under_way.values()) + to_come * each, under_way, each, rates.trials)


def measured_rates(view: SweepView) -> Rates | None:
    """Return the measured cost of a token in the finished trials."""
    finished = (trial for trial in view.trials if trial.state is State.FINISHED)
    seen = ((_work(trial), trial.gpu_hours * HOUR) for trial in finished)
    return fit_rates([(work, seconds) for work, seconds in seen if work is not None])


def _work(trial: TrialView) -> Work | None:
    return read_work(trial.plan.get("work"))


def _hours(rates: Rates, trial: TrialView, otherwise: float) -> float:
    work = _work(trial)
    return otherwise if work is None else rates.hours(work)
