"""Replicates: trials of the same points on other seeds. A search never sees them; only they decide which point wins."""

from collections.abc import Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from grposweep.config.schema import Experiment
from grposweep.search.race import Runner, Standing, fresh_seeds, race

CONFIRM = "confirm"  # a replicate's role


def is_replicate(trial: FrozenTrial) -> bool:
    """Whether a trial repeats another one's point on a fresh seed."""
    return bool(trial.user_attrs.get("role") == CONFIRM)


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

    def standing(self, trials: Sequence[FrozenTrial], sign: int) -> Standing:
        """Where the race is; ``sign`` is 1 where larger objectives are better, otherwise -1."""
        finished = [trial for trial in trials if trial.state == TrialState.COMPLETE and not is_replicate(trial)]
        ranked = sorted(finished, key=lambda trial: (-sign * (trial.value or 0.0), trial.number))[: self.leaders]
        results: dict[int, dict[int, float | None]] = {trial.number: self._own(trial, sign) for trial in ranked}
        for trial in trials:
            if is_replicate(trial) and trial.state.is_finished() and trial.user_attrs["of"] in results:
                value = trial.value if trial.state == TrialState.COMPLETE else None
                results[trial.user_attrs["of"]][trial.user_attrs["seed"]] = None if value is None else sign * value
        runners = [Runner(number, found) for number, found in results.items()]
        return race(runners, self.seeds) if self.leaders is not None else self._series(runners)

    def _own(self, trial: FrozenTrial, sign: int) -> dict[int, float | None]:
        return {} if self.own is None else {self.own: sign * (trial.value or 0.0)}

    def _series(self, runners: Sequence[Runner]) -> Standing:
        """All of them on all seeds."""
        wanted = [(runner.number, seed) for seed in self.seeds for runner in runners if seed not in runner.results]
        best_first = sorted(runners, key=lambda runner: -runner.mean(runner.values))
        return Standing(tuple(best_first), wanted=tuple(wanted))


def build_replication(base: Experiment) -> Replication | None:
    """What a sweep's configuration asks for; None for no replicates."""
    search = base.search
    if search.sampler == "one_factor":
        return Replication(fresh_seeds(base.seed, search.seeds - 1), leaders=None, own=base.seed)
    return Replication(fresh_seeds(base.seed, search.seeds), search.leaders) if search.seeds else None
