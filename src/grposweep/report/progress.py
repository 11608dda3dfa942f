"""How far a sweep is, what goes on in it, and when it will be done: arithmetic on what its folder tells."""

from collections.abc import Sequence

from grposweep.report.read import SweepView
from grposweep.report.trial import State, TrialView

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
