"""The in-memory copy of a study that samplers draw from: what they may know of each trial, and nothing else."""

from collections.abc import Mapping, Sequence

import optuna
from optuna.trial import FrozenTrial, TrialState

from grposweep.search.front import Further
from grposweep.search.journal import Direction
from grposweep.search.replicates import is_replicate

FAILED_DRAWS = 256  # that a copy may hold beyond as many as it has trials


class Scratch:
    """An in-memory copy of a study's told and running trials, for samplers to draw from.

    Invalid and failed trials stay out; running ones are in, and TPE steers clear of them. A trial that has not finished, or
    was stopped early, counts as finished where somebody foresees its value.
    """

    def __init__(self, direction: Direction, prior: Sequence[FrozenTrial] = (), further: Further | None = None) -> None:
        """``prior`` are finished trials of earlier sweeps, which samplers know as well."""
        self._direction, self._prior, self._further = direction, prior, further
        self._open: dict[int, int] = {}  # trials that may still change: number in the sweep's study -> in this copy
        self._seen = 0  # trials looked at
        self._study = self._begun()

    def updated(self, trials: Sequence[FrozenTrial], foreseen: Mapping[int, float] | None = None) -> optuna.Study:
        """The copy as of now; made anew once failed draws make up most of it, because every ask walks past them."""
        if len(self._study.get_trials(deepcopy=False)) > 2 * (len(trials) + len(self._prior)) + FAILED_DRAWS:
            self._open, self._seen = {}, 0
            self._study = self._begun()
        for trial in trials[self._seen :]:
            if trial.state != TrialState.FAIL and not (is_replicate(trial) or trial.user_attrs.get("invalid")):
                self._open[trial.number] = len(self._study.get_trials(deepcopy=False))
                self._study.add_trial(trial if self._further is None else _unweighed(trial))
        self._seen = len(trials)
        copies = self._study.get_trials(deepcopy=False)
        for number, copied in list(self._open.items()):
            if self._further is None:
                _become(copies[copied], trials[number], (foreseen or {}).get(number))
            else:
                _weigh(copies[copied], trials[number], self._further)
            if trials[number].state in (TrialState.COMPLETE, TrialState.FAIL):
                del self._open[number]
        return self._study

    def _begun(self) -> optuna.Study:
        further = self._further.directions.values() if self._further else ()
        study = optuna.create_study(directions=[self._direction, *further])
        study.add_trials(self._prior)
        return study


def _become(copied: FrozenTrial, trial: FrozenTrial, foreseen: float | None) -> None:
    """The copy in an in-memory study as its sampler is to see it; in place, for Optuna lets no finished trial change."""
    if trial.state == TrialState.COMPLETE:
        copied.state, copied.values = TrialState.COMPLETE, trial.values
    elif foreseen is not None:
        copied.state, copied.values = TrialState.COMPLETE, [foreseen]
    else:
        known = trial.state == TrialState.RUNNING or bool(trial.intermediate_values)
        copied.state, copied.values = trial.state if known else TrialState.FAIL, trial.values
        copied.intermediate_values = trial.intermediate_values  # what samplers know a stopped trial by


def _unweighed(trial: FrozenTrial) -> FrozenTrial:
    """A trial for a study of several objectives, before anybody knows what it is worth there."""
    return optuna.trial.create_trial(
        state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions, user_attrs=trial.user_attrs
    )


def _weigh(copied: FrozenTrial, trial: FrozenTrial, further: Further) -> None:
    """As ``_become``, with the values of all objectives; nobody foresees these."""
    values = further.values(trial) if trial.state == TrialState.COMPLETE else None
    ended = TrialState.FAIL if values is None else TrialState.COMPLETE
    copied.state = TrialState.RUNNING if trial.state == TrialState.RUNNING else ended
    copied.values = None if values is None else list(values)
