"""What a sweep will have cost when it is done, by what its finished trials cost."""

from dataclasses import dataclass

from grposweep.cost import HOUR, Rates, Work, fit_rates, read_work
from grposweep.report.progress import target
from grposweep.report.read import SweepView
from grposweep.report.trial import State, TrialView


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
