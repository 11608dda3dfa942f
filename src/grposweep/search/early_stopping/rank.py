"""Pause trials that are behind the others, and spend at most a chosen share of the full cost.

The full cost is that of finishing every trial. A trial may pause at three rungs: its first
evaluation after a tenth, a quarter and half of its training. The first is earlier if the effort is
below 0.3. With a budget of six or more trainings the rungs are at a fifth, 30 % and half.

At a rung a trial is compared with every trial that has reached it. Its rank is the number of those
that were better by more than the standard error of the difference. It may continue if its rank is
within ``exp(-STEEPNESS x rung / effort)`` of all started trials: 61, 29 and 8 % at an effort of
0.6. The leader always may. A rank counts once ``FEWEST`` trials have come as far or dropped out.

A free slot resumes a paused trial that may continue, the shortest first, and otherwise starts a new
one. If none is left to start, what is left of the effort resumes the other paused trials in the
order of their ranks. Nothing resumes beyond the effort, and what the leader needs to finish is
reserved. If no trial has finished when the effort is spent, the one that has come furthest
finishes. No trial is ended: with more effort it continues.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from grposweep.search.curves import Curve, State
from grposweep.search.early_stopping import CONTINUE, Action, Allowance, Decision, NoStopping

# Shares of the training.
RUNGS = (0.1, 0.25, 0.5)
# Those of a budget of LATER trainings or more, which can pay for better ranks. Chosen on half of
# the recorded files at 7 to 19 trainings. With 3 and 5 they were worse on curves of a real model.
LATER_RUNGS = (0.2, 0.3, 0.5)
LATER = 6.0
# The first rung takes at most this share of the effort.
FIRST = 1 / 3
STEEPNESS = 3.0
# Trials that a rank is among before it counts.
FEWEST = 8
# Evaluations that are chosen or advised.
MOST_EVALUATIONS = 20
# A budget is this share of what finishing every trial costs, which gives their number. More of it
# is reserved until all have started. Chosen on half of the recorded files.
SHARE = 0.4
STEEPNESS_OF_BUDGET = 6.0
# The part of what the first rungs leave of a budget that finishes trials, on the same files.
FINISHING = 0.7
# Trials that a budget buys.
MOST_TRIALS = 500
# Shares that differ by less are the same.
SAME = 1e-3


@dataclass
class RankPolicy(NoStopping):
    """Continue trials in the order of their ranks.

    ``effort`` is the share of the full cost to spend, above 0 to 1. A ``budget`` decides it
    instead. The number of trials follows from a budget (`trials`), and ties are not counted as
    equal.
    """

    effort: float = 1.0
    budget: Allowance | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            self.effort = SHARE

    def trials(self, curves: Sequence[Curve]) -> int | None:
        """Return how many trials the budget is for, as far as known; None without a budget."""
        if self.budget is None:
            return None
        trainings = self._trainings(curves)
        return FEWEST if trainings is None else affordable(trainings)

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:
        """Pause a trial at a rung, unless a free slot would resume it at once."""
        if self.effort >= 1:
            return CONTINUE
        evaluations = rung_evaluations(curve, self._shares([*others, curve]))
        if len(curve.held_out) - 1 not in evaluations:
            return CONTINUE

        standings = self._standings([*others, replace(curve, state=State.PAUSED)], more)
        if standings.next(more) == curve.number:
            return CONTINUE
        reason = standings.describe(curve)
        if standings.may_continue(curve):
            reason += ", waits for others to compare with"
        return Decision(Action.PAUSE, reason)

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the paused trial that a free slot resumes, or None to start a new one."""
        return self._standings(curves, more).next(more)

    def describe(self, curves: Sequence[Curve]) -> dict[int, str]:
        """Return the ranks of all paused trials in words, by number."""
        standings = self._standings(curves)
        return {curve.number: standings.describe(curve) for curve in standings.paused}

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the last values of paused trials."""
        paused = [curve for curve in curves if curve.held_out and curve.state is State.PAUSED]
        return {curve.number: curve.held_out[-1] for curve in paused}

    def _standings(self, curves: Sequence[Curve], more: bool = False) -> "Standings":
        shares = self._shares(curves)
        if self.budget is None:
            return rank_trials(curves, shares, self.effort)
        # While trials may start, a budget is worth what an effort is.
        completions = None if more else self.budget(curves)
        return rank_trials(
            curves, shares, self.effort, STEEPNESS_OF_BUDGET, completions, has_ties=False
        )

    def _shares(self, curves: Sequence[Curve]) -> tuple[float, ...]:
        """Return the shares of the training at which a trial may pause."""
        if self.budget is None:
            return rungs(self.effort)
        return rungs_of_budget(self._trainings(curves) or 0.0)

    def _trainings(self, curves: Sequence[Curve]) -> float | None:
        """Return the budget in whole trainings; None while that is unknown, or without a budget."""
        completions = None if self.budget is None else self.budget(curves)
        totals = [curve.total for curve in curves if curve.total]
        if completions is None or not totals:
            return None
        return completions / fmean(totals)


def affordable(trainings: float) -> int:
    """Return how many trials may start with a budget, in whole trainings."""
    return min(max(round(trainings / SHARE), 1), MOST_TRIALS)


def describe_budget(trainings: float, evaluations: int) -> str:
    """Return in words how many trials a budget is for; it pays for so many whole trainings."""
    trials = affordable(trainings)
    first = first_evaluation(rungs_of_budget(trainings), evaluations)
    finish = FINISHING * max(trainings - first * trials, 0.0) / max(1 - first, 0.1)
    return f"about {trials} trials start, up to {max(round(min(finish, trials)), 1)} finish"


def rungs(effort: float) -> tuple[float, ...]:
    """Return the shares of the training at which a trial may pause, with an effort."""
    return (min(RUNGS[0], FIRST * effort), *RUNGS[1:])


def rungs_of_budget(trainings: float) -> tuple[float, ...]:
    """Return the shares at which a trial may pause, with a budget of so many whole trainings."""
    return LATER_RUNGS if trainings >= LATER else RUNGS


def rung_evaluations(curve: Curve, shares: Sequence[float]) -> list[int]:
    """Return the index of the first evaluation at each rung that a trial has reached.

    A trial that paused before the first one, under another budget or effort, has reached it.
    """
    evaluations = len(curve.completions)
    indexes = []
    for share in shares:
        index = bisect_left(curve.completions, (share - SAME) * curve.total)
        if index < evaluations:
            indexes.append(index)
    if not indexes and curve.state is State.PAUSED and evaluations > 0:
        return [evaluations - 1]
    return indexes


def first_evaluation(shares: Sequence[float], evaluations: int) -> float:
    """Return the share of the training at the first rung's evaluation."""
    return math.ceil((shares[0] - SAME) * max(evaluations, 1)) / max(evaluations, 1)


def least_share(effort: float, trials: int, evaluations: int) -> float:
    """Return the least share of the full cost: all trials at their first rung, one at its end."""
    first = first_evaluation(rungs(effort), evaluations)
    return first + (1 - first) / max(trials, 1)


def choose_evaluations(effort: float, trials: int, usual: int) -> int:
    """Return the fewest evaluations that leave a tenth of the effort for a choice.

    ``usual`` at least, and also if no number does.
    """
    for evaluations in range(usual, MOST_EVALUATIONS + 1):
        if least_share(effort, trials, evaluations) <= 0.9 * effort:
            return evaluations
    return usual


def describe_least(effort: float, trials: int, evaluations: int) -> str:
    """Return why an effort is impossible with so many evaluations; empty if it is not."""
    least = least_share(effort, trials, evaluations)
    if trials < 2 or least <= effort:
        return ""
    change = f"Set search.effort={least:.2g}"
    for more in range(evaluations + 1, MOST_EVALUATIONS + 1):
        if least_share(effort, trials, more) <= effort:
            change = f"schedule.evaluations={more} makes {effort:g} possible"
            break
    return (
        f"search.effort={effort:g}: with {trials} trials and schedule.evaluations={evaluations} a "
        f"sweep spends {least:.0%} at least, because each trial trains until its first evaluation "
        f"and one finishes. {change}."
    )


@dataclass(frozen=True)
class Rung:
    """A share of the training at which trials are compared."""

    share: float
    # The held-out values of the trials that have reached it, the lowest first.
    values: Sequence[float]
    # A trial continues if its rank, from 0, is below this.
    continuing: float

    def rank(self, value: float) -> int:
        """Return how many trials were better than this value."""
        return len(self.values) - bisect_right(self.values, value)


@dataclass(frozen=True)
class Purse:
    """The completions that all trials may spend, and those that they have spent or will."""

    full: float
    reserved: float

    def can_pay(self, completions: float) -> bool:
        """Return whether so many more completions are left."""
        return completions <= (self.full - self.reserved) * (1 + 1e-9)


def rank_trials(
    curves: Sequence[Curve],
    shares: Sequence[float],
    effort: float,
    steepness: float = STEEPNESS,
    budget: float | None = None,
    has_ties: bool = True,
) -> "Standings":
    """Compare all started trials at each rung. ``budget``: completions, instead of the effort."""
    reached = {curve.number: rung_evaluations(curve, shares) for curve in curves}
    found = []
    for level, share in enumerate(shares):
        values = []
        for curve in curves:
            evaluations = reached[curve.number]
            if level < len(evaluations):
                values.append(curve.held_out[evaluations[level]])
        continuing = max(1.0, math.exp(-steepness * share / effort) * len(curves))
        found.append(Rung(share, sorted(values), continuing))
    full = effort * sum(curve.total for curve in curves) if budget is None else budget
    return Standings(curves, found, reached, full, has_ties)


@dataclass(frozen=True)
class Standings:
    """The ranks of all started trials at each rung, and what the effort still allows."""

    curves: Sequence[Curve]
    rungs: Sequence[Rung]
    # By trial, the index of its evaluation at each rung that it has reached.
    reached: Mapping[int, Sequence[int]]
    # Completions that all trials may spend.
    full: float
    # Whether trials within the noise of each other have the same rank.
    has_ties: bool = True

    def next(self, more: bool) -> int | None:
        """Return the paused trial to resume, or None. ``more``: a new trial could start instead."""
        good = self._good
        if more:
            good = [curve for curve in good if self._is_settled[self._level(curve) - 1]]
        for curve in sorted(good, key=lambda c: (self._level(c), self.rank(c), c.number)):
            if self._can_pay(curve):
                return curve.number
        if more or not self.paused:
            return None

        for curve in sorted(self.paused, key=self._order_of_the_rest):
            if self._can_pay(curve):
                return curve.number
        # The one exception: nothing has finished, and nothing will.
        if any(curve.state in (State.FINISHED, State.RUNNING) for curve in self.curves):
            return None
        return self._leader.number if self._leader else None

    def describe(self, curve: Curve) -> str:
        """Return a trial's rank at its rung in words."""
        share = curve.until(self.reached[curve.number][-1] + 1).share
        rank = self.rank(curve, self.has_ties) + 1
        ending = {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
        if 10 < rank % 100 < 20:
            ending = "th"
        # With trials that are better within the noise.
        tied = "tied for " if self.rank(curve, has_ties=False) >= rank else ""
        among = len(self._rung(curve).values)
        return f"{tied}{rank}{ending} of {among} after {share:.0%} of the training"

    def rank(self, curve: Curve, has_ties: bool = True) -> int:
        """Return how many trials were better at a trial's rung.

        With ties, by more than the standard error of the difference.
        """
        index = self.reached[curve.number][-1]
        error = 0.0
        if has_ties and curve.errors:
            error = curve.errors[index] or 0.0
        return self._rung(curve).rank(curve.held_out[index] + math.sqrt(2) * error)

    def may_continue(self, curve: Curve) -> bool:
        """Return whether a trial is among those that continue from its rung."""
        return self.rank(curve, self.has_ties) < self._rung(curve).continuing

    @cached_property
    def paused(self) -> list[Curve]:
        """The paused trials that have been evaluated."""
        return [c for c in self.curves if c.state is State.PAUSED and self._level(c)]

    @cached_property
    def _good(self) -> list[Curve]:
        """The paused trials that may continue."""
        return [curve for curve in self.paused if self.may_continue(curve)]

    @cached_property
    def _is_settled(self) -> list[bool]:
        """By rung, whether enough trials have reached it or dropped out.

        Each that is on its way asks for one more.
        """
        running = [self._level(c) for c in self.curves if c.state is State.RUNNING]
        coming = [*running, *running, *(self._level(curve) for curve in self._good)]
        settled = []
        for rung in range(len(self.rungs)):
            below = [level for level in coming if level <= rung]
            settled.append(len(self.curves) - len(below) >= FEWEST)
        return settled

    @cached_property
    def _leader(self) -> Curve | None:
        """The unfinished trial that has come furthest, and of those the best.

        None once a trial has finished.
        """
        if any(curve.state is State.FINISHED for curve in self.curves):
            return None
        unfinished = [c for c in self.curves if c.state in (State.PAUSED, State.RUNNING)]
        evaluated = [curve for curve in unfinished if self._level(curve)]
        return min(
            evaluated,
            key=lambda c: (-self._level(c), self.rank(c), -c.held_out[-1], c.number),
            default=None,
        )

    def _order_of_the_rest(self, curve: Curve) -> tuple[float, int, int]:
        """Return a key that sorts by rank among those at the same rung, then the furthest first."""
        among = len(self._rung(curve).values)
        return self.rank(curve) / among, -self._level(curve), curve.number

    def _level(self, curve: Curve) -> int:
        """Return the number of rungs that a trial has reached; one at least if it is paused."""
        return len(self.reached[curve.number])

    def _rung(self, curve: Curve) -> Rung:
        """Return the last rung that a trial has reached."""
        return self.rungs[self._level(curve) - 1]

    @cached_property
    def _interval(self) -> float:
        """The share of the training between two evaluations, as far as it is known."""
        begun = [curve for curve in self.curves if curve.completions and curve.total]
        return max((curve.completions[0] / curve.total for curve in begun), default=0.0)

    def _end(self, curve: Curve) -> float:
        """Return the completions at which a trial reaches its next rung or its end."""
        level, share = self._level(curve), 1.0
        if level < len(self.rungs):
            share = self.rungs[level].share
        interval = self._interval
        if curve.completions and curve.total:
            interval = curve.completions[0] / curve.total
        if interval > 0:
            share = min(math.ceil((share - SAME) / interval) * interval, 1.0)
        return max(share * curve.total, curve.done)

    def _spends(self, curve: Curve) -> float:
        """Return the completions that a trial has spent when it next pauses or ends."""
        return self._end(curve) if curve.state is State.RUNNING else curve.done

    @cached_property
    def _purse(self) -> Purse:
        return Purse(self.full, sum(map(self._spends, self.curves)))

    def _can_pay(self, curve: Curve) -> bool:
        """Return whether the effort allows a trial's next rung, and the leader's end besides."""
        reserved = 0.0
        if self._leader is not None and self._leader != curve:
            reserved = self._leader.total - self._spends(self._leader)
        return self._purse.can_pay(self._end(curve) - curve.done + reserved)
