"""The sweep's study: Optuna's trials in memory, which are built from the trial folders, and the
copy that samplers draw from.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from random import Random
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from grporecipe.files import Config, only
from grposweep.schema import sign_of
from grposweep.search.replication import EndedTrial, Ranking, Replication, is_replicate
from grposweep.search.sampler import ValidPoints, candidates, distribution
from grposweep.search.sampling import UNKNOWN, Sampling
from grposweep.search.space import Direction, Label, Point, Space, freeze

# that a copy may hold beyond as many as it has trials
FAILED_DRAWS = 256


class SamplerView:
    """An in-memory copy of a study's told and running trials, for samplers to draw from.

    Invalid and failed trials are left out. Running ones are in, and TPE avoids them. A trial that
    is unfinished, or was stopped early, counts as finished if the early-stopping policy predicts
    its final value.
    """

    def __init__(self, direction: Direction, prior: Sequence[FrozenTrial] = ()) -> None:
        """Begin with ``prior``, finished trials of earlier sweeps."""
        self._direction = direction
        self._prior = prior
        self._begin()

    def _begin(self) -> None:
        # the copies of trials that may still change, by number in the sweep's study
        self._open: dict[int, FrozenTrial] = {}
        # what they show; most are the same at the next request
        self._shown: dict[int, tuple[FrozenTrial, float | None]] = {}
        # trials looked at
        self._seen = 0
        self._study = optuna.create_study(direction=self._direction)
        self._study.add_trials(self._prior)

    def updated(
        self, trials: Sequence[FrozenTrial], predicted: Mapping[int, float] | None = None
    ) -> optuna.Study:
        """Return the copy as of now; rebuilt once failed draws make up most of it, because every
        request walks past them.
        """
        if (
            len(self._study.get_trials(deepcopy=False))
            > 2 * (len(trials) + len(self._prior)) + FAILED_DRAWS
        ):
            self._begin()
        for trial in trials[self._seen :]:
            is_of_search = not (is_replicate(trial) or trial.user_attrs.get("invalid"))
            if is_of_search and trial.state != TrialState.FAIL:
                self._study.add_trial(trial)
                self._open[trial.number] = self._study.get_trials(deepcopy=False)[-1]
        self._seen = len(trials)
        values = predicted or {}
        shown = {number: (trials[number], values.get(number)) for number in self._open}
        for number, now in shown.items():
            if now != self._shown.get(number):
                _update_copy(self._open[number], *now)
                if now[0].state in (TrialState.COMPLETE, TrialState.FAIL):
                    del self._open[number]
        self._shown = shown
        return self._study


def _update_copy(copied: FrozenTrial, trial: FrozenTrial, predicted: float | None) -> None:
    """Update a trial's copy in place as samplers should see it; Optuna lets no finished trial
    change.
    """
    copied.state = trial.state
    copied.values = trial.values
    # what samplers know a stopped trial by
    copied.intermediate_values = trial.intermediate_values
    if trial.state == TrialState.PRUNED and not trial.intermediate_values:
        copied.state = TrialState.FAIL
    if predicted is not None and trial.state != TrialState.COMPLETE:
        copied.state = TrialState.COMPLETE
        copied.values = [predicted]


# invalid grid points kept in the study; all are in invalid.jsonl
RECORDED_INVALID = 1000


class SweepStudy:
    """One sweep's trials, as Optuna describes them. It is empty until those of a sweep's folder are
    added.
    """

    def __init__(self, space: Space, direction: Direction) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = space
        self.trials: list[FrozenTrial] = []
        """All trials by number, invalid ones included. One that changes is replaced by another
        object.
        """
        self._distributions = {
            parameter.name: distribution(parameter) for parameter in space.parameters
        }
        # set where leaders are evaluated again
        self.replication: Replication | None = None
        # Returns the standard error of a finished trial's evaluation, by number and experiment:
        # only its folder has it.
        self.sampling_of: Callable[[int, str], Sampling] = lambda _number, _experiment: UNKNOWN
        self._direction = direction
        self._view = SamplerView(direction)
        # Numbers and points: what a trial is never changes.
        self._started, self._searched, self._taken = list[int](), list[int](), set[Any]()

    def learn(self, observations: Sequence[tuple[Point, float]]) -> None:
        """Tell samplers what earlier sweeps found at points of this space; the study itself stays
        as it is.
        """
        prior = [
            self._trial(point, {}, state=TrialState.COMPLETE, value=value)
            for point, value in observations
        ]
        self._view = SamplerView(self._direction, prior)

    @property
    def started(self) -> list[FrozenTrial]:
        """Return all trials that this or an earlier controller started, without recorded invalid
        points.
        """
        return [self.trials[number] for number in self._started]

    @property
    def searched(self) -> list[FrozenTrial]:
        """Return the started trials of the search itself, without replicates on fresh seeds."""
        return [self.trials[number] for number in self._searched]

    @property
    def sign(self) -> int:
        """Return the factor that makes larger objectives better."""
        return sign_of(self._direction)

    @property
    def ranking(self) -> Ranking | None:
        """Return the race of the leaders on fresh seeds, or None if there is none."""
        if self.replication is None:
            return None
        return self.replication.ranking(
            [self._ended(t) for t in self.started if t.state.is_finished()]
        )

    def _ended(self, trial: FrozenTrial) -> EndedTrial:
        """Return an ended trial as the race counts it."""
        if trial.state != TrialState.COMPLETE or trial.value is None:
            return EndedTrial(trial.number, None, trial.user_attrs)
        sampling = self.sampling_of(trial.number, str(trial.user_attrs.get("experiment")))
        return EndedTrial(trial.number, self.sign * trial.value, trial.user_attrs, sampling)

    @property
    def best(self) -> FrozenTrial | None:
        """Return the trial whose point won on fresh seeds; before that, or without seeds, the best
        finished one.

        Of two equal ones it is the earlier.
        """
        ranking = self.ranking
        if ranking is not None and ranking.winner is not None:
            return self.trials[ranking.winner.number]
        finished = [
            trial
            for trial in self.searched
            if trial.state == TrialState.COMPLETE and trial.value is not None
        ]
        # max() returns the first of equal ones
        return max(finished, key=lambda trial: self.sign * (trial.value or 0.0), default=None)

    @property
    def kept(self) -> set[int]:
        """Return the trials whose models may still be needed: the best one, and during a race those
        still in it.
        """
        ranking = self.ranking
        if ranking is not None and ranking.wanted:
            return {runner.number for runner in ranking.alive}
        best = self.best
        return set() if best is None else {best.number}

    def add(self, point: Point, attributes: Config) -> int:
        """Start a trial at a point, and return its number. Raises ValueError for a point outside
        the space.
        """
        trial = self._trial(point, attributes, state=TrialState.RUNNING)
        trial.number = trial._trial_id = number = len(self.trials)
        self.trials.append(trial)
        self._taken.add(freeze(point))
        if not trial.user_attrs.get("invalid"):
            self._started.append(number)
            self._searched += [] if is_replicate(trial) else [number]
        return number

    def add_invalid(self, point: Point, problems: list[str]) -> None:
        """Record an invalid grid point as pruned, with its reasons."""
        self.tell(self.add(point, {"invalid": True, "problems": problems}), None, pruned=True)

    def tell(
        self,
        number: int,
        value: float | None,
        evaluations: Mapping[int, float] | None = None,
        pruned: bool = False,
    ) -> None:
        """End a running trial: finished with a value, failed without one, or pruned;
        ``evaluations`` by optimizer step.

        Optuna takes the last evaluation of a pruned trial as its value.
        """
        trial = copy(self.trials[number])
        seen = dict(evaluations or {})
        if trial.state.is_finished():
            return
        trial.state = TrialState.FAIL if value is None else TrialState.COMPLETE
        if pruned:
            trial.state, value = TrialState.PRUNED, seen[max(seen)] if seen else None
        trial.value = value
        trial.intermediate_values = seen
        trial.datetime_complete = datetime.now()
        self.trials[number] = trial

    def ask(
        self,
        valid: ValidPoints,
        sampler: str,
        seed: int,
        fixed: Mapping[str, Label] | None = None,
        predicted: Mapping[int, float] | None = None,
    ) -> Point | None:
        """Return a valid point for the next trial, or None if none is left.

        ``predicted`` are values of trials that have none, by number.
        """
        # the same at every request for this trial
        random = Random(f"{seed}:{len(self.trials)}")
        history = self._view.updated(self.trials, predicted)
        taken = self._taken if self.space.is_finite else ()
        drawn = candidates(
            history, self.space, self._distributions, sampler, random, fixed or {}, valid.finite
        )
        return next(
            (point for point in drawn if freeze(point) not in taken and valid.is_valid(point)), None
        )

    def _trial(self, point: Point, attributes: Config, **end: Any) -> FrozenTrial:
        parameters = only(self._distributions, point)
        return optuna.trial.create_trial(
            params=dict(point), distributions=parameters, user_attrs=dict(attributes), **end
        )
