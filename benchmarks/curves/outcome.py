"""What one rehearsed sweep cost, and what it had found when; knows nothing of how it searched."""

import math
from dataclasses import dataclass, field
from random import Random

from pool import Pool, Recorded


@dataclass
class Outcome:
    """What one sweep cost, and what it had found when."""

    finished: list[tuple[float, float, int]] = field(default_factory=list)  # completions, seconds until then; place
    completions: float = 0.0
    seconds: float = 0.0
    started: list[int] = field(default_factory=list)  # places
    slot_seconds: float = 0.0  # of all slots until the end
    idle_seconds: float = 0.0
    resumed: int = 0  # how often a paused trial continued

    def arrival(self, pool: Pool) -> tuple[float, float] | None:
        """Completions and seconds until a point within one per cent of the best had finished."""
        close = (f for f in self.finished if pool.places[f[2]].truth >= pool.best - pool.tolerance)
        return next(((completions, seconds) for completions, seconds, _ in close), None)

    def regret(self, pool: Pool, budget: float) -> float:
        """Of the best point that had finished within a budget in completions."""
        return pool.regret(place for completions, _, place in self.finished if completions <= budget)

    def is_won(self, pool: Pool, budget: float) -> bool:
        """Whether the best that had finished within a budget is the best of all, or within noise of it."""
        done = [place for completions, _, place in self.finished if completions <= budget]
        found = max((pool.places[place].truth for place in done), default=-math.inf)
        return found >= pool.best - max(pool.tolerance, 2 * pool.error)

    def stopped_best(self, pool: Pool) -> bool:
        """Whether the best of the points that were started did not get to finish."""
        best = max(self.started, key=lambda place: pool.places[place].truth)
        return best not in {place for _, _, place in self.finished}

    def lost_best(self, pool: Pool) -> bool:
        """Whether that cost more than one per cent: points within it are ties, here as for an arrival."""
        worths = [pool.places[place].truth for place in self.started]
        found = max((pool.places[place].truth for _, _, place in self.finished), default=-math.inf)
        return max(worths) - found > pool.tolerance


def draw_trainings(pool: Pool, seed: int) -> list[Recorded]:
    """One training a place, of its seeds: the same for every policy that is given this seed."""
    draw = Random(f"rehearsal:{seed}")
    return [draw.choice(place.trainings) for place in pool.places]
