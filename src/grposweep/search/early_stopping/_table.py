"""All started trials, compared at the rungs that they have reached."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from grposweep.search.curves import Curve, Place, State
from grposweep.search.early_stopping.rungs import FEWEST, SAME, at_evaluation

STEEPNESS = 3.0


@dataclass(frozen=True)
class Table:
    """All started trials at the rungs at these shares. With ``has_ties`` a difference counts if it
    is larger than its standard error.
    """

    curves: Sequence[Curve]
    shares: tuple[float, ...]
    effort: float
    has_ties: bool

    def find_place(self, curve: Curve) -> Place:
        """Return where a trial stands: at its first evaluation at each rung.

        A trial that paused before the first rung, under another budget or effort, has reached it.
        The curve keeps the answer, because every decision compares all trials again.
        """
        known = curve.places.get((self.shares, self.has_ties))
        if known is not None:
            return known
        indexes = []
        for share in self.shares:
            index = bisect_left(curve.completions, (share - SAME) * curve.total)
            if index < len(curve.completions):
                indexes.append(index)
        newest = len(curve.completions) - 1
        is_at_rung = newest in indexes
        if not indexes and curve.completions and curve.state is State.PAUSED:
            indexes.append(newest)
        values = [curve.held_out[index] for index in indexes]
        tied = values[-1] if values else 0.0
        if self.has_ties and values and curve.errors:
            tied += math.sqrt(2) * max(curve.errors[indexes[-1]] or 0.0, 0.0)
        interval = curve.completions[0] if curve.completions else 0.0
        place = Place(
            curve.number,
            curve.state,
            curve.total,
            curve.done,
            interval,
            curve.share,
            len(values),
            values,
            tied,
            is_at_rung,
        )
        curve.places[self.shares, self.has_ties] = place
        return place

    @cached_property
    def places(self) -> list[Place]:
        """The places of all trials, in their order."""
        return list(map(self.find_place, self.curves))

    @cached_property
    def values(self) -> list[list[float]]:
        """The values of all trials that have reached each rung, the smallest first."""
        values = []
        for level in range(len(self.shares)):
            here = [place.values[level] for place in self.places if place.level > level]
            values.append(sorted(here))
        return values

    @cached_property
    def pauses(self) -> list[float]:
        """The shares of the training at which a trial pauses, and 1, its end. Before the first
        evaluation of any trial they are all 1.
        """
        begun = [place for place in self.places if place.interval and place.total]
        evaluations = min([place.total / place.interval for place in begun], default=1.0)
        return [at_evaluation(share, evaluations) for share in (*self.shares, 1.0)]

    def end(self, place: Place) -> float:
        """Return the completions at which a trial pauses next, or ends."""
        return max(self.pauses[place.level] * place.total, place.done)

    def spends(self, place: Place) -> float:
        """Return the completions that a trial has spent when it next pauses or ends."""
        return self.end(place) if place.state is State.RUNNING else place.done

    def rank(self, place: Place) -> tuple[int, int]:
        """Return how many trials were better at the last rung of a trial, and of how many."""
        values = self.values[place.level - 1]
        return len(values) - bisect_right(values, place.tied), len(values)

    def order(self, place: Place) -> tuple[float, int, int]:
        """Return a key: the best ranks first, of equal ones the furthest first."""
        rank, among = self.rank(place)
        return rank / among, -place.level, place.number

    def describe(self, place: Place) -> str:
        """Return the rank in words."""
        rank, among = self.rank(place)
        return f"rank {rank + 1} of {among} after {place.share:.0%} of the training"

    def is_ahead(self, place: Place) -> bool:
        """Return whether a trial resumes before the order of the ranks decides."""
        rank, among = self.rank(place)
        most = math.exp(-STEEPNESS * self.shares[place.level - 1] / self.effort) * len(self.places)
        return among >= FEWEST and rank < max(most, 1.0)

    def find_best(self, is_allowed: Callable[[Place], bool]) -> list[Place]:
        """Return the best of the allowed trials at each rung, the first rung's first."""
        best = []
        for level, values in enumerate(self.values, 1):
            allowed = [place for place in self.places if place.level == level and is_allowed(place)]
            if allowed:
                highest = max([place.tied for place in allowed])
                # Trials that no value separates have the same rank.
                least = values[bisect_right(values, highest) - 1]
                best.append(min(place for place in allowed if place.tied >= least))
        return best
