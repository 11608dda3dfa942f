"""What one replayed sweep cost and found; knows nothing of how it searched."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from pool import Pool, Recorded


@dataclass
class Outcome:
    """What one sweep cost and found. A place is the index of a recorded point."""

    # completions spent until then, place
    finished: list[tuple[float, int]] = field(default_factory=list)
    # places
    started: list[int] = field(default_factory=list)
    # spent in all
    completions: float = 0.0
    # completions of finishing every started trial
    full: float = 0.0
    # of all slots until the end
    slot_seconds: float = 0.0
    idle_seconds: float = 0.0
    # promotions of paused trials
    resumed: int = 0

    def figures(self, pool: Pool) -> dict[str, Any]:
        """Return the figures that replay.py defines. If nothing finished, the worst point counts as
        found at the end.
        """
        worth = [place.truth for place in pool.places]
        found = max((worth[place] for _, place in self.finished), default=min(worth))
        arrived = min(
            (spent for spent, place in self.finished if worth[place] == found),
            default=self.completions,
        )
        return {
            "cost": self.completions / self.full,
            "lost": max(worth[place] for place in self.started) - found > pool.tolerance,
            "regret": (pool.best - found) / abs(pool.best),
            "arrived": arrived / self.full,
            "idle": self.idle_seconds / self.slot_seconds if self.slot_seconds else 0.0,
            "started": len(self.started),
            "resumed": self.resumed,
            "completions": self.completions,
        }


def draw_trainings(pool: Pool, seed: int) -> list[Recorded]:
    """Return one training per place, of its seeds: the same for every policy that is given this
    seed.
    """
    draw = Random(f"rehearsal:{seed}")
    return [draw.choice(place.trainings) for place in pool.places]
