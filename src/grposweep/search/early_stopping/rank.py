"""Pause trials that are behind the others, and spend a chosen share of what finishing every trial would cost.

A trial may pause at three rungs: its first evaluation after a tenth, a quarter and half of its training. There it is compared
with every trial that has reached the same rung. Its rank is the number of those that were better by more than the standard error
of the difference. It may continue if its rank is within ``exp(-STEEPNESS x rung / effort)`` of all started trials: 61, 29 and 8 %
at an effort of 0.6. The leader always may. A rank counts once ``FEWEST`` trials have come as far or dropped out. A free slot
resumes a paused trial that may continue, the shortest first, and otherwise starts a new one. If none is left to start, what is
left of the effort resumes the other paused trials in the order of their ranks. No trial is ended: with more effort it continues.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, NoStopping, State

RUNGS = (0.1, 0.25, 0.5)  # shares of the training
STEEPNESS = 3.0
FEWEST = 8  # trials
SAME = 1e-3  # shares that differ by less are the same


@dataclass
class RankPolicy(NoStopping):
    """Continue trials in the order of their ranks. ``effort`` is the share of the full cost to spend, above 0 to 1."""

    effort: float = 1.0

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:
        """Pause a trial at a rung, unless a free slot would resume it at once."""
        if self.effort >= 1 or len(curve.held_out) - 1 not in rung_evaluations(curve):
            return CONTINUE
        table = Table([*others, replace(curve, state=State.PAUSED)], self.effort)
        if table.next(more) == curve.number:
            return CONTINUE
        waits = ", waits for others to compare with" if table.may_continue(curve) else ""
        return Decision(Action.PAUSE, f"{table.place(curve)}{waits}")

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the paused trial that a free slot resumes, or None to start a new one."""
        return Table(curves, self.effort).next(more)

    def describe(self, curves: Sequence[Curve]) -> dict[int, str]:
        """Return the places of all paused trials in words, by number."""
        table = Table(curves, self.effort)
        return {c.number: table.place(c) for c in curves if c.state is State.PAUSED and rung_evaluations(c)}

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the last values of paused trials."""
        return {c.number: c.held_out[-1] for c in curves if c.held_out and c.state is State.PAUSED}


def rung_evaluations(curve: Curve) -> list[int]:
    """Return the index of the first evaluation at each rung that a trial has reached."""
    reached = (bisect_left(curve.completions, (rung - SAME) * curve.total) for rung in RUNGS)
    return [index for index in reached if index < len(curve.completions)]


class Table:
    """The ranks of all started trials at each rung, and what the effort still allows."""

    def __init__(self, curves: Sequence[Curve], effort: float) -> None:
        self._curves, self._effort = curves, effort
        self._rungs = {curve.number: rung_evaluations(curve) for curve in curves}
        columns = (
            [c.held_out[at[i]] for c in curves if i < len(at := self._rungs[c.number])] for i in range(len(RUNGS))
        )
        self._columns = [sorted(column) for column in columns]  # values by rung
        self._settled = [self._is_settled(level) for level in range(1, len(RUNGS) + 1)]
        full = effort * sum(curve.total for curve in curves)
        self._left = full - sum(self._end(c) if c.state is State.RUNNING else _done(c) for c in curves)  # completions

    def next(self, more: bool) -> int | None:
        """Return the number of the paused trial to resume, or None. ``more``: whether a new trial could start instead."""
        paused = [curve for curve in self._curves if curve.state is State.PAUSED and self._level(curve)]
        good = [c for c in paused if self.may_continue(c) and (not more or self._settled[self._level(c) - 1])]
        for curve in sorted(good, key=lambda c: (self._level(c), self.rank(c), c.number)):
            if not more or self._fits(curve):
                return curve.number
        if more:
            return None
        ranked = sorted(paused, key=lambda c: (self.rank(c) / self.known(c), -self._level(c), c.number))
        return next((curve.number for curve in ranked if self._fits(curve)), None)

    def place(self, curve: Curve) -> str:
        """Return a trial's rank at its rung in words."""
        share = curve.until(self._rungs[curve.number][-1] + 1).share
        place = self.rank(curve) + 1
        ending = "th" if 10 < place % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
        return f"{place}{ending} of {self.known(curve)} after {share:.0%} of the training"

    def rank(self, curve: Curve) -> int:
        """Return how many trials were better at a trial's rung, by more than the standard error of the difference."""
        index = self._rungs[curve.number][-1]
        error = (curve.errors[index] if curve.errors else None) or 0.0
        column = self._columns[self._level(curve) - 1]
        return len(column) - bisect_right(column, curve.held_out[index] + math.sqrt(2) * error)

    def known(self, curve: Curve) -> int:
        """Return the number of trials that have reached a trial's rung."""
        return len(self._columns[self._level(curve) - 1])

    def may_continue(self, curve: Curve) -> bool:
        """Return whether a trial's rank is within the share of all started trials that continue from its rung."""
        share = math.exp(-STEEPNESS * RUNGS[self._level(curve) - 1] / self._effort)
        return self.rank(curve) < max(1.0, share * len(self._curves))

    def _level(self, curve: Curve) -> int:
        """Return the number of rungs that a trial has reached; one at least if it is paused."""
        return len(self._rungs[curve.number])

    def _is_settled(self, level: int) -> bool:
        """Return whether enough trials have reached a rung or dropped out; each that is on its way asks for one more."""
        below = [curve for curve in self._curves if self._level(curve) < level]
        away = sum(curve.state is State.RUNNING for curve in below)
        waiting = sum(curve.state is State.PAUSED and self.may_continue(curve) for curve in below if self._level(curve))
        return len(self._curves) - 2 * away - waiting >= FEWEST

    def _end(self, curve: Curve) -> float:
        """Return the completions at which a trial reaches its next rung or its end."""
        rung = next(iter(RUNGS[self._level(curve) :]), 1.0)
        return max(rung * curve.total, _done(curve))

    def _fits(self, curve: Curve) -> bool:
        return self._end(curve) - _done(curve) <= self._left * (1 + 1e-9)


def _done(curve: Curve) -> float:
    return curve.completions[-1] if curve.completions else 0.0
