"""Replicates: trials of the same points on other seeds. A search never sees them; only they decide which point wins."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from grposweep.search.race import Runner, Standing, fresh_seeds, race

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

CONFIRM = "confirm"  # a replicate's role


def is_replicate(trial: "FrozenTrial") -> bool:
    """Whether a trial repeats another one's point on a fresh seed."""
    return bool(trial.user_attrs.get("role") == CONFIRM)


class Replicate(NamedTuple):
    """One that has ended: the trial whose point it repeats, its seed, and its result, larger is better; None: it failed."""

    of: int
    seed: int
    value: float | None


@dataclass(frozen=True)
class Replication:
    """The leaders of the search are evaluated again on these fresh seeds; all points (``leaders`` None) without a race.

    ``own`` is the search's seed, where its results count as well because nothing was chosen by them.
    """

    seeds: tuple[int, ...]
    leaders: int | None
    own: int | None = None

    def most(self, points: int) -> int:
        """How many replicates that are at most."""
        return len(self.seeds) * (points if self.leaders is None else min(points, self.leaders))

    def standing(self, found: Mapping[int, float], replicates: Iterable[Replicate]) -> Standing:
        """Where the race is: ``found`` is what the search's finished trials are worth, larger is better, by number."""
        ranked = sorted(found, key=lambda number: (-found[number], number))[: self.leaders]
        results: dict[int, dict[int, float | None]] = {number: self._own(found[number]) for number in ranked}
        for replicate in replicates:
            if replicate.of in results:
                results[replicate.of][replicate.seed] = replicate.value
        runners = [Runner(number, values) for number, values in results.items()]
        return race(runners, self.seeds) if self.leaders is not None else self._series(runners)

    def _own(self, value: float) -> dict[int, float | None]:
        return {} if self.own is None else {self.own: value}

    def _series(self, runners: Sequence[Runner]) -> Standing:
        """All of them on all seeds."""
        wanted = [(runner.number, seed) for seed in self.seeds for runner in runners if seed not in runner.results]
        best_first = sorted(runners, key=lambda runner: -runner.mean(runner.values))
        return Standing(tuple(best_first), wanted=tuple(wanted))


def build_replication(sampler: str, seed: int, seeds: int, leaders: int) -> Replication | None:
    """What ``search.seeds`` asks for with this base seed; None for no replicates."""
    if sampler == "one_factor":
        return Replication(fresh_seeds(seed, seeds - 1), leaders=None, own=seed)
    return Replication(fresh_seeds(seed, seeds), leaders) if seeds else None
