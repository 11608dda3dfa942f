"""Pause trials that are behind the others, and spend at most a chosen share of what finishing every
trial would cost.

A trial may pause at three rungs: its first evaluation after a tenth, a quarter and half of its
training. The first is earlier if the effort is below 0.3. With a budget of six or more trainings
the rungs are at a fifth, 30 % and half. At a rung a trial is compared with every trial that has
reached it. Its rank is the number of those that were better by more than the standard error of the
difference. It may continue if its rank is within ``exp(-STEEPNESS x rung / effort)`` of all started
trials: 61, 29 and 8 % at an effort of 0.6. The leader always may. A rank counts once ``FEWEST``
trials have come as far or dropped out. A free slot resumes a paused trial that may continue, the
shortest first, and otherwise starts a new one. If none is left to start, what is left of the effort
resumes the other paused trials in the order of their ranks. Nothing resumes beyond the effort, and
what the leader needs to finish is kept. If no trial has finished when the effort is spent, the one
that has come furthest finishes. No trial is ended: with more effort it continues.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from statistics import fmean

from grposweep.search.early_stopping import (
    CONTINUE,
    Action,
    Allowance,
    Curve,
    Decision,
    NoStopping,
    State,
)

# shares of the training
RUNGS = (0.1, 0.25, 0.5)
# of a budget of LATER trainings or more, which can pay for better ranks. Chosen on half
LATER_RUNGS = (0.2, 0.3, 0.5)
# of the recorded files at 7 to 19 trainings. With 3 and 5 they were worse on curves of a real model
LATER = 6.0
# the first rung takes at most this share of the effort
FIRST = 1 / 3
STEEPNESS = 3.0
# trials
FEWEST = 8
# that are chosen or advised
MOST_EVALUATIONS = 20
# a budget is this share of what finishing every trial costs, which gives their number,
SHARE = 0.4
# and more of it is kept until all have started. Chosen on half of the recorded files
STEEPNESS_OF_BUDGET = 6.0
# of what the first rungs leave of a budget, the part that finishes trials, on the same files
FINISHING = 0.7
# that a budget buys
MOST_TRIALS = 500
# shares that differ by less are the same
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
        """Return how many trials the budget is for, by what is known; None without a budget."""
        if self.budget is None:
            return None
        budget, totals = self.budget(curves), [curve.total for curve in curves if curve.total]
        return FEWEST if budget is None or not totals else affordable(budget / fmean(totals))

    def _table(self, curves: Sequence[Curve], more: bool = False) -> "Table":
        shares = self._rungs(curves)
        if self.budget is None:
            return Table(curves, self.effort, shares)
        return Table(
            curves,
            self.effort,
            shares,
            None if more else self.budget(curves),
            STEEPNESS_OF_BUDGET,
            ties=False,
        )

    def _rungs(self, curves: Sequence[Curve]) -> tuple[float, ...]:
        """Return the shares of the training at which a trial may pause."""
        if self.budget is None:
            return rungs(self.effort)
        budget, totals = self.budget(curves), [curve.total for curve in curves if curve.total]
        return rungs_of_budget(0.0 if budget is None or not totals else budget / fmean(totals))

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:
        """Pause a trial at a rung, unless a free slot would resume it at once."""
        if self.effort >= 1 or len(curve.held_out) - 1 not in rung_evaluations(
            curve, self._rungs([*others, curve])
        ):
            return CONTINUE
        table = self._table([*others, replace(curve, state=State.PAUSED)], more)
        if table.next(more) == curve.number:
            return CONTINUE
        waits = ", waits for others to compare with" if table.may_continue(curve) else ""
        return Decision(Action.PAUSE, f"{table.place(curve)}{waits}")

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the paused trial that a free slot resumes, or None to start a new one."""
        return self._table(curves, more).next(more)

    def describe(self, curves: Sequence[Curve]) -> dict[int, str]:
        """Return the places of all paused trials in words, by number."""
        table = self._table(curves)
        return {c.number: table.place(c) for c in table.paused}

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the last values of paused trials."""
        return {c.number: c.held_out[-1] for c in curves if c.held_out and c.state is State.PAUSED}


def affordable(trainings: float) -> int:
    """Return how many trials may start with a budget, in whole trainings."""
    return min(max(round(trainings / SHARE), 1), MOST_TRIALS)


def describe_budget(trainings: float, evaluations: int) -> str:
    """Return in words how many trials a budget is for; ``trainings`` is what so many whole
    trainings cost.
    """
    trials = affordable(trainings)
    first = first_evaluation(rungs_of_budget(trainings), evaluations)
    finish = FINISHING * max(trainings - first * trials, 0.0) / max(1 - first, 0.1)
    return f"about {trials} trials start, up to {max(round(min(finish, trials)), 1)} finish"


def rungs(effort: float) -> tuple[float, ...]:
    """Return the shares of the training at which a trial may pause, with an effort."""
    return (min(RUNGS[0], FIRST * effort), *RUNGS[1:])


def rungs_of_budget(trainings: float) -> tuple[float, ...]:
    """Return the shares of the training at which a trial may pause, with a budget of so many whole
    trainings.
    """
    return LATER_RUNGS if trainings >= LATER else RUNGS


def rung_evaluations(curve: Curve, shares: Sequence[float]) -> list[int]:
    """Return the index of the first evaluation at each rung that a trial has reached.

    A trial that paused before the first one, under another budget or effort, counts as one that has
    reached it.
    """
    done, total, evaluations = curve.completions, curve.total, len(curve.completions)
    indexes = [
        index
        for rung in shares
        if (index := bisect_left(done, (rung - SAME) * total)) < evaluations
    ]
    return indexes or [evaluations - 1] * (curve.state is State.PAUSED and evaluations > 0)


def first_evaluation(shares: Sequence[float], evaluations: int) -> float:
    """Return the share of the training at the first rung's evaluation."""
    return math.ceil((shares[0] - SAME) * max(evaluations, 1)) / max(evaluations, 1)


def least_share(effort: float, trials: int, evaluations: int) -> float:
    """Return the least share of the full cost at which every trial reaches its first rung and one
    finishes.
    """
    first = first_evaluation(rungs(effort), evaluations)
    return first + (1 - first) / max(trials, 1)


def choose_evaluations(effort: float, trials: int, usual: int) -> int:
    """Return the fewest evaluations, ``usual`` at least, that leave a tenth of the effort for a
    choice; else ``usual``.
    """
    enough = (
        n
        for n in range(usual, MOST_EVALUATIONS + 1)
        if least_share(effort, trials, n) <= 0.9 * effort
    )
    return next(enough, usual)


def describe_least(effort: float, trials: int, evaluations: int) -> str:
    """Return in words why an effort is impossible with so many trials and evaluations; empty if it
    is possible.
    """
    least = least_share(effort, trials, evaluations)
    if trials < 2 or least <= effort:
        return ""
    more = (
        n
        for n in range(evaluations + 1, MOST_EVALUATIONS + 1)
        if least_share(effort, trials, n) <= effort
    )
    fewest = next(more, None)
    change = (
        f"schedule.evaluations={fewest} makes {effort:g} possible"
        if fewest
        else f"Set search.effort={least:.2g}"
    )
    return (
        f"search.effort={effort:g}: with {trials} trials and schedule.evaluations={evaluations} "
        f"a sweep spends {least:.0%} at "
        f"least, because each trial trains until its first evaluation and one finishes. {change}."
    )


class Table:
    """The ranks of all started trials at each rung, and what the effort still allows."""

    def __init__(
        self,
        curves: Sequence[Curve],
        effort: float,
        shares: Sequence[float],
        budget: float | None = None,
        steepness: float = STEEPNESS,
        ties: bool = True,
    ) -> None:
        self._curves, self._shares, self._ties = curves, shares, ties
        self._rungs = {curve.number: rung_evaluations(curve, shares) for curve in curves}
        columns: list[list[float]] = [[] for _ in shares]
        for curve in curves:
            # a trial has an index for each rung that it has reached
            for column, index in zip(columns, self._rungs[curve.number], strict=False):
                column.append(curve.held_out[index])
        # values by rung
        self._columns = [sorted(column) for column in columns]
        self._places = [
            max(1.0, math.exp(-steepness * share / effort) * len(curves)) for share in shares
        ]
        self.paused = [
            curve for curve in curves if curve.state is State.PAUSED and self._level(curve)
        ]
        self._good = [curve for curve in self.paused if self.may_continue(curve)]
        away = Counter(self._level(curve) for curve in curves if curve.state is State.RUNNING)
        waiting = Counter(map(self._level, self._good))
        # By rung: whether enough trials have reached it or dropped out; each that is on its way
        # asks for one more.
        below = accumulate(2 * away[level] + waiting[level] for level in range(len(shares)))
        self._settled = [len(curves) - coming >= FEWEST for coming in below]
        full = effort * sum(curve.total for curve in curves) if budget is None else budget
        # completions
        self._left = full - sum(
            self._end(c) if c.state is State.RUNNING else c.done for c in curves
        )

    def next(self, more: bool) -> int | None:
        """Return the number of the paused trial to resume, or None. ``more``: whether a new trial
        could start instead.
        """
        good = [c for c in self._good if not more or self._settled[self._level(c) - 1]]
        for curve in sorted(good, key=lambda c: (self._level(c), self.rank(c), c.number)):
            if self._fits(curve):
                return curve.number
        if more or not self.paused:
            return None
        ranked = sorted(
            self.paused, key=lambda c: (self.rank(c) / self.known(c), -self._level(c), c.number)
        )
        fitting = next((curve.number for curve in ranked if self._fits(curve)), None)
        if fitting is None and not any(
            c.state in (State.FINISHED, State.RUNNING) for c in self._curves
        ):
            # the one exception
            return self._leader.number if self._leader else None
        return fitting

    def place(self, curve: Curve) -> str:
        """Return a trial's rank at its rung in words."""
        share = curve.until(self._rungs[curve.number][-1] + 1).share
        place = self.rank(curve, self._ties) + 1
        ending = (
            "th" if 10 < place % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
        )
        # tied with trials that are better within the noise
        tied = "tied for " if self.rank(curve, ties=False) >= place else ""
        return f"{tied}{place}{ending} of {self.known(curve)} after {share:.0%} of the training"

    def rank(self, curve: Curve, ties: bool = True) -> int:
        """Return how many trials were better at a trial's rung, by more than the standard error of
        the difference if ``ties``.
        """
        index = self._rungs[curve.number][-1]
        error = (ties and curve.errors and curve.errors[index]) or 0.0
        column = self._columns[self._level(curve) - 1]
        return len(column) - bisect_right(column, curve.held_out[index] + math.sqrt(2) * error)

    def known(self, curve: Curve) -> int:
        """Return the number of trials that have reached a trial's rung."""
        return len(self._columns[self._level(curve) - 1])

    def may_continue(self, curve: Curve) -> bool:
        """Return whether a trial's rank is within the share of all started trials that continue
        from its rung.
        """
        return self.rank(curve, self._ties) < self._places[self._level(curve) - 1]

    @cached_property
    def _leader(self) -> Curve | None:
        """The unfinished trial that has come furthest, and of those the best; None once a trial has
        finished.
        """
        if any(c.state is State.FINISHED for c in self._curves):
            return None
        known = [
            c for c in self._curves if self._level(c) and c.state in (State.PAUSED, State.RUNNING)
        ]
        return min(
            known,
            key=lambda c: (-self._level(c), self.rank(c), -c.held_out[-1], c.number),
            default=None,
        )

    def _level(self, curve: Curve) -> int:
        """Return the number of rungs that a trial has reached; one at least if it is paused."""
        return len(self._rungs[curve.number])

    @cached_property
    def _interval(self) -> float:
        """The share of the training between two evaluations, as far as it is known."""
        return max(
            (c.completions[0] / c.total for c in self._curves if c.completions and c.total),
            default=0.0,
        )

    def _end(self, curve: Curve) -> float:
        """Return the completions at which a trial reaches its next rung or its end."""
        rung = next(iter(self._shares[self._level(curve) :]), 1.0)
        interval = (
            curve.completions[0] / curve.total
            if curve.completions and curve.total
            else self._interval
        )
        if interval > 0:
            rung = min(math.ceil((rung - SAME) / interval) * interval, 1.0)
        return max(rung * curve.total, curve.done)

    def _fits(self, curve: Curve) -> bool:
        """Return whether the effort allows a trial's next rung, with what another one that leads
        needs to finish.
        """
        leader = self._leader
        kept = (
            0.0
            if leader in (None, curve)
            else leader.total
            - (self._end(leader) if leader.state is State.RUNNING else leader.done)
        )
        return self._end(curve) - curve.done + kept <= self._left * (1 + 1e-9)
