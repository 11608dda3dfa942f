"""How far a sweep is, what goes on in it, and when it will be done: arithmetic on what its folder tells.

What a sweep will have cost when it is done, by what its finished trials cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grposweep.cost import HOUR, Rates, Work, fit_rates, read_work
from grposweep.report.trial_view import State, TrialView
from grposweep.report.view import SweepView

LATEST = 20  # ended trials whose times say how long the next ones take


def target(view: SweepView) -> int:
    """How many trials the sweep runs in all; those it has where nobody wrote that down."""
    return max(view.outlook.target or 0, len(view.trials))


def ended(view: SweepView) -> int:
    """How many have ended for good."""
    return sum(trial.state.is_over for trial in view.trials)


def standing(view: SweepView) -> str:
    """Where the sweep is, in a few words."""
    left = target(view) - ended(view)
    if view.controller:
        return f"at work ({view.controller})"
    if not left:
        return "done"
    moving = view.count(State.RUNNING, State.QUEUED)
    return f"{moving} under way without a controller" if moving else f"not at work, with {left:,} to go"


def seconds_left(view: SweepView) -> float | None:
    """The trials to come at the time of those that ended last, over what runs at once; None: nothing to go by."""
    left = target(view) - ended(view)
    if not left:
        return 0.0
    each = _seconds_each(view.trials)
    if each is None:
        return None
    running = [trial for trial in view.trials if trial.state is State.RUNNING]
    behind = sum(min(trial.seconds, each) for trial in running)
    slots = max(min(view.outlook.at_once or len(running), left), 1)
    return max(each * left - behind, 0.0) / slots


def _seconds_each(trials: Sequence[TrialView]) -> float | None:
    """The latest ended trials' mean time; before there is one, the running ones' pace."""
    times = [trial.seconds for trial in trials if trial.state in (State.FINISHED, State.PRUNED)][-LATEST:]
    times = times or [
        trial.seconds * trial.total / trial.step
        for trial in trials
        if trial.state is State.RUNNING and trial.step and trial.total
    ]
    return sum(times) / len(times) if times else None


@dataclass(frozen=True)
class Forecast:
    """Device hours: of the whole sweep, of each trial that is not over (by number), and of one that is still to come."""

    total: float
    under_way: dict[int, float]
    each: float
    trials: int  # that it rests on


def forecast(view: SweepView) -> Forecast | None:
    """The cost in the end; None before a trial has finished, or where no plan says how much work there is."""
    rates, works = measured_rates(view), [work for trial in view.trials if (work := _work(trial)) is not None]
    if rates is None or not works:
        return None
    each = sum(map(rates.hours, works)) / len(works)
    open_ = [trial for trial in view.trials if not trial.state.is_over]
    under_way = {trial.number: max(_hours(rates, trial, each), trial.gpu_hours) for trial in open_}
    spent = sum(trial.gpu_hours for trial in view.trials if trial.state.is_over)
    to_come = max((target(view) or len(view.trials)) - len(view.trials), 0)
    return Forecast(spent + sum(under_way.values()) + to_come * each, under_way, each, rates.trials)


def measured_rates(view: SweepView) -> Rates | None:
    """What a token has cost the finished trials."""
    finished = (trial for trial in view.trials if trial.state is State.FINISHED)
    seen = ((_work(trial), trial.gpu_hours * HOUR) for trial in finished)
    return fit_rates([(work, seconds) for work, seconds in seen if work is not None])


def _work(trial: TrialView) -> Work | None:
    return read_work(trial.plan.get("work"))


def _hours(rates: Rates, trial: TrialView, otherwise: float) -> float:
    work = _work(trial)
    return otherwise if work is None else rates.hours(work)
