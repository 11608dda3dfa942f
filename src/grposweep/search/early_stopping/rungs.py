"""The rungs at which a trial may pause, and what a budget or an effort can pay with them.

A rung is a share of the training. A trial is judged at its first evaluation at or after it.
"""

import math
from collections.abc import Callable

RUNGS = (0.1, 0.25, 0.5)
# Those of a budget of LATER trainings or more, which can pay for better ranks. Chosen on half of
# the recorded files at 7 to 19 trainings. With 3 and 5 they were worse on curves of a real model.
LATER_RUNGS = (0.2, 0.3, 0.5)
LATER = 6.0
# The first rung takes at most this share of the effort.
FIRST = 1 / 3
# A budget is this share of what finishing every trial costs, which gives their number. Chosen on
# half of the recorded files.
SHARE = 0.4
# Trials that a rank is among before it counts.
FEWEST = 8
# Trials below which a budget says what starts more.
FEWEST_STARTS = 4
# Evaluations that are chosen or advised.
MOST_EVALUATIONS = 20
# Shares that differ by less are the same.
SAME = 1e-3


def rungs(effort: float, trainings: float = 0.0) -> tuple[float, ...]:
    """Return the rungs of an effort, or of a budget of so many whole trainings."""
    if trainings >= LATER:
        return LATER_RUNGS
    return (min(RUNGS[0], FIRST * effort), *RUNGS[1:])


def at_evaluation(share: float, evaluations: float) -> float:
    """Return the share of the training at the first of evenly spaced evaluations after a share."""
    return min(math.ceil((share - SAME) * evaluations) / evaluations, 1.0)


def affordable(trainings: float, evaluations: int) -> int:
    """Return how many trials may start with a budget, in whole trainings: all train until the
    first rung, and one finishes.
    """
    first = at_evaluation(rungs(SHARE, trainings)[0], evaluations)
    paid = math.floor((trainings - (1 - first)) / first + SAME)
    return max(min(round(trainings / SHARE), paid), 1)


def describe_budget(trainings: float, evaluations: int) -> str:
    """Return in words how many trials a budget is for; it pays for so many whole trainings."""
    trials = affordable(trainings, evaluations)
    first = at_evaluation(rungs(SHARE, trainings)[0], evaluations)
    starts = "1 trial starts" if trials == 1 else f"about {trials} trials start"
    text = f"{starts}, and the first comparison costs {first * trials:.3g}x"
    if trials >= FEWEST_STARTS:
        return text
    enough = _fewest(evaluations, lambda more: affordable(trainings, more) >= FEWEST_STARTS)
    change = f"schedule.evaluations={enough}" if enough else f"search.budget={FEWEST_STARTS}x"
    return f"{text}. To start more, set {change}"


def _fewest(least: int, is_enough: Callable[[int], bool]) -> int | None:
    """Return the fewest evaluations from a number on that are enough; None if none are."""
    return next(filter(is_enough, range(least, MOST_EVALUATIONS + 1)), None)


def least_share(effort: float, trials: int, evaluations: int) -> float:
    """Return the least share of the full cost: all trials at their first rung, one at its end."""
    first = at_evaluation(rungs(effort)[0], evaluations)
    return first + (1 - first) / max(trials, 1)


def choose_evaluations(effort: float, trials: int, usual: int) -> int:
    """Return the fewest evaluations that leave a tenth of the effort for a choice.

    ``usual`` at least, and also if no number does.
    """
    return _fewest(usual, lambda more: least_share(effort, trials, more) <= 0.9 * effort) or usual


def describe_least(effort: float, trials: int, evaluations: int) -> str:
    """Return why an effort is impossible with so many evaluations; empty if it is not."""
    least = least_share(effort, trials, evaluations)
    if trials < 2 or least <= effort:
        return ""
    more = choose_evaluations(effort, trials, evaluations)
    change = f"schedule.evaluations={more} makes {effort:g} possible"
    if more == evaluations:
        change = f"Set search.effort={least:.2g}"
    return (
        f"search.effort={effort:g}: with {trials} trials and schedule.evaluations={evaluations} a "
        f"sweep spends {least:.0%} at least, because each trial trains until its first evaluation "
        f"and one finishes. {change}."
    )
