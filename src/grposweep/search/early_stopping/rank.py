"""Start trials, pause them at rungs, and finish the best with what is left of an effort or budget.

A trial is ahead if at least ``FEWEST`` have come as far and its rank is within
``exp(-STEEPNESS x rung / effort)`` of all started trials. With an effort, a free slot resumes a
trial that is ahead, or starts a new one. With a budget all start first. Then those ahead resume,
the shortest first, and the others in the order of their ranks. Nothing resumes beyond the effort,
and what the leader needs to finish is reserved. If nothing has finished when all is spent, the
leader finishes. A budget is a ceiling: a trial starts or resumes only if its training until the
next pause is paid, and one can finish after that. No trial is ended: with more to spend, it
continues.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from grposweep.search.curves import Curve, Place, State
from grposweep.search.early_stopping import CONTINUE, Action, Allowance, Decision, StoppingPolicy
from grposweep.search.early_stopping._table import Table
from grposweep.search.early_stopping.rungs import FEWEST, SHARE, rungs

# Amounts of completions that differ by less are the same.
SAME = 1e-9


@dataclass
class RankPolicy(StoppingPolicy):
    """Continue trials in the order of their ranks.

    ``effort`` is the share of the full cost to spend, above 0 to 1. A ``budget`` decides it
    instead, and the number of trials follows from it (`trials`).
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
        if any(curve.state is State.RUNNING and not curve.total for curve in curves):
            # what it costs is known soon
            return len(curves)
        trainings = self._trainings(curves)
        if not trainings:
            return FEWEST
        table = self._table(curves)
        first = table.pauses[0]
        left = trainings
        for place in table.places:
            left -= table.spends(place) / (place.total or 1.0)
        if not any(curve.state is State.FINISHED for curve in curves):
            left -= 1 - first
        more = math.floor(left / first * (1 + SAME))
        return max(min(round(trainings / SHARE), len(curves) + more), 1)

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:
        """Pause a trial at a rung, unless a free slot would resume it at once."""
        table = self._table([*others, replace(curve, state=State.PAUSED)])
        if self.effort >= 1 or not table.find_place(curve).is_at_rung:
            return CONTINUE
        if self._next(table, more) == curve.number:
            return CONTINUE
        return Decision(Action.PAUSE, table.describe(table.places[-1]))

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the paused trial that a free slot resumes, or None to start a new one."""
        return self._next(self._table(curves), more)

    def describe(self, curves: Sequence[Curve]) -> dict[int, str]:
        """Return the ranks of all paused trials in words, by number."""
        table = self._table(curves)
        waiting = [p for p in table.places if p.level and p.state is State.PAUSED]
        return {place.number: table.describe(place) for place in waiting}

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the last values of paused trials."""
        return {c.number: c.held_out[-1] for c in curves if c.held_out and c.state is State.PAUSED}

    def _next(self, table: Table, more: bool) -> int | None:
        full = self.effort * sum([place.total for place in table.places])
        if self.budget is not None:
            # It pays for nothing but first rungs until all have started.
            full = 0.0 if more else (self.budget(table.curves) or 0.0)
        left = full - sum(map(table.spends, table.places))

        states = {place.state for place in table.places}
        leader, reserved = None, 0.0
        if State.FINISHED not in states:
            best = table.find_best(lambda place: place.state in (State.PAUSED, State.RUNNING))
            leader = min(best, key=table.order, default=None)
        if leader is not None:
            reserved = leader.total - table.spends(leader)

        def is_paid(place: Place) -> bool:
            needed = table.end(place) - place.done + reserved
            if place is leader:
                end = table.end(place) if self.budget is None else place.total
                needed = end - place.done
            return place.state is State.PAUSED and needed <= left * (1 + SAME)

        best = table.find_best(is_paid)
        chosen = next(filter(table.is_ahead, best), None)
        if chosen is None and not more:
            chosen = min(best, key=table.order, default=None)
        if chosen is None and leader is not None and not more and State.RUNNING not in states:
            # Nothing has finished, and nothing will.
            most = math.inf if self.budget is None else left * (1 + SAME)
            best = table.find_best(
                lambda place: place.state is State.PAUSED and place.total - place.done <= most
            )
            chosen = min(best, key=table.order, default=None)
        return None if chosen is None else chosen.number

    def _table(self, curves: Sequence[Curve]) -> Table:
        shares = rungs(self.effort, self._trainings(curves))
        return Table(curves, shares, self.effort, has_ties=self.budget is None)

    def _trainings(self, curves: Sequence[Curve]) -> float:
        """Return the budget in whole trainings; 0 while that is unknown, and without a budget."""
        totals = [curve.total for curve in curves if curve.total]
        if self.budget is None or not totals:
            return 0.0
        return (self.budget(curves) or 0.0) / fmean(totals)
