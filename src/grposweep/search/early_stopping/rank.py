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
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from grposweep.search.curves import Curve, State
from grposweep.search.early_stopping import CONTINUE, Action, Allowance, Decision, StoppingPolicy
from grposweep.search.early_stopping.rungs import (
    SHARE,
    at_evaluation,
    reached,
    rungs,
)

STEEPNESS = 3.0
# Trials that a rank is among before it counts.
FEWEST = 8
# Amounts of completions that differ by less are the same.
SAME = 1e-9


class Place(NamedTuple):
    """Where a started trial stands."""

    curve: Curve
    # The rungs that it has reached. At the last of them so many trials were better, of so many.
    level: int
    rank: int
    among: int
    # Whether it resumes before the order of the ranks decides.
    is_ahead: bool
    # The completions at which it pauses next, or ends.
    end: float

    @property
    def order(self) -> tuple[float, int, int]:
        """Return a key: the best ranks first, of equal ones the furthest first."""
        return self.rank / self.among, -self.level, self.curve.number

    def describe(self) -> str:
        """Return the rank in words."""
        share = self.curve.share
        return f"rank {self.rank + 1} of {self.among} after {share:.0%} of the training"

    @property
    def spends(self) -> float:
        """Return the completions that the trial has spent when it next pauses or ends."""
        return self.end if self.curve.state is State.RUNNING else self.curve.done

    @property
    def left(self) -> float:
        """Return the completions that the trial then needs to finish."""
        return self.curve.total - self.spends


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
        first, *_ = find_pauses(curves, self._rungs(curves))
        left = trainings
        for place in self._places(curves):
            left -= place.spends / (place.curve.total or 1.0)
        if not any(curve.state is State.FINISHED for curve in curves):
            left -= 1 - first
        more = math.floor(left / first * (1 + SAME))
        return max(min(round(trainings / SHARE), len(curves) + more), 1)

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:
        """Pause a trial at a rung, unless a free slot would resume it at once."""
        curves = [*others, replace(curve, state=State.PAUSED)]
        is_at_rung = len(curve.held_out) - 1 in reached(curve, self._rungs(curves))
        if self.effort >= 1 or not is_at_rung:
            return CONTINUE
        places = self._places(curves)
        if self._next(places, more) == curve.number:
            return CONTINUE
        return Decision(Action.PAUSE, places[-1].describe())

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the paused trial that a free slot resumes, or None to start a new one."""
        return self._next(self._places(curves), more)

    def describe(self, curves: Sequence[Curve]) -> dict[int, str]:
        """Return the ranks of all paused trials in words, by number."""
        waiting = [p for p in self._places(curves) if p.level and p.curve.state is State.PAUSED]
        return {place.curve.number: place.describe() for place in waiting}

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the last values of paused trials."""
        return {c.number: c.held_out[-1] for c in curves if c.held_out and c.state is State.PAUSED}

    def _places(self, curves: Sequence[Curve]) -> list[Place]:
        return rank_trials(curves, self._rungs(curves), self.effort, self.budget is None)

    def _next(self, places: Sequence[Place], more: bool) -> int | None:
        curves = [place.curve for place in places]
        full = self.effort * sum(curve.total for curve in curves)
        if self.budget is not None:
            # It pays for nothing but first rungs until all have started.
            full = 0.0 if more else (self.budget(curves) or 0.0)
        left = full - sum(place.spends for place in places)

        states = {curve.state for curve in curves}
        unfinished = [p for p in places if p.curve.state in (State.PAUSED, State.RUNNING)]
        ranked = sorted((p for p in unfinished if p.level), key=lambda place: place.order)
        leader = None if State.FINISHED in states else next(iter(ranked), None)
        row = [place for place in ranked if place.is_ahead]
        row.sort(key=lambda place: (place.level, place.rank))
        if not more:
            row += ranked
        for place in row:
            needed = place.end - place.curve.done
            if leader is not None and leader is not place:
                needed += leader.left
            elif leader is not None and self.budget is not None:
                needed = place.left
            if place.curve.state is State.PAUSED and needed <= left * (1 + SAME):
                return place.curve.number
        if leader is None or more or State.RUNNING in states:
            return None
        # Nothing has finished, and nothing will.
        paid = math.inf if self.budget is None else left * (1 + SAME)
        return next((place.curve.number for place in ranked if place.left <= paid), None)

    def _rungs(self, curves: Sequence[Curve]) -> tuple[float, ...]:
        """Return the shares of the training at which a trial may pause."""
        return rungs(self.effort, self._trainings(curves))

    def _trainings(self, curves: Sequence[Curve]) -> float:
        """Return the budget in whole trainings; 0 while that is unknown, and without a budget."""
        totals = [curve.total for curve in curves if curve.total]
        if self.budget is None or not totals:
            return 0.0
        return (self.budget(curves) or 0.0) / fmean(totals)


def find_pauses(curves: Sequence[Curve], shares: Sequence[float]) -> list[float]:
    """Return the shares of the training at which a trial pauses, and 1, its end. Before the first
    evaluation of any trial they are all 1.
    """
    begun = [curve for curve in curves if curve.completions and curve.total]
    evaluations = min((curve.total / curve.completions[0] for curve in begun), default=1.0)
    return [at_evaluation(share, evaluations) for share in (*shares, 1.0)]


def rank_trials(
    curves: Sequence[Curve], shares: Sequence[float], effort: float, has_ties: bool
) -> list[Place]:
    """Compare all started trials at each rung."""
    judged = [reached(curve, shares) for curve in curves]
    values: list[list[float]] = [[] for _ in shares]
    for curve, indexes in zip(curves, judged, strict=True):
        for rung, index in zip(values, indexes, strict=False):
            rung.append(curve.held_out[index])
    for rung in values:
        rung.sort()
    ends = find_pauses(curves, shares)
    most = [max(math.exp(-STEEPNESS * share / effort) * len(curves), 1.0) for share in shares]

    places = []
    for curve, indexes in zip(curves, judged, strict=True):
        level, rank, among, is_ahead = len(indexes), 0, 0, False
        if level:
            among = len(values[level - 1])
            error = 0.0
            if has_ties and curve.errors:
                error = curve.errors[indexes[-1]] or 0.0
            tied = curve.held_out[indexes[-1]] + math.sqrt(2) * error
            rank = among - bisect_right(values[level - 1], tied)
            is_ahead = among >= FEWEST and rank < most[level - 1]
        end = max(ends[level] * curve.total, curve.done)
        places.append(Place(curve, level, rank, among, is_ahead, end))
    return places
