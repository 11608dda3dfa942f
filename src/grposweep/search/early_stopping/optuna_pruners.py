"""Optuna's pruners as policies: median, ASHA (asynchronous successive halving) and Hyperband. A
stopped trial has ended.

Their step is the number of the evaluation, from 1. These pruners ignore evaluation noise and late
risers.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, NoStopping, State

# 0.2 s that --help and --cfg should not pay
if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


# Optuna's default for successive halving
HALVING_FACTOR = 4
# and for Hyperband
HYPERBAND_FACTOR = 3


class _PrunerPolicy(NoStopping):
    """Stop when the pruner would prune. Optuna's samplers use the evaluations of pruned trials
    themselves.
    """

    name: str

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Return whether to stop the trial or continue."""
        if not self._prunes(_History([_freeze(other) for other in others]), _freeze(curve), curve):
            return CONTINUE
        return Decision(
            Action.STOP,
            f"{self.name} at evaluation {len(curve.held_out)}: {curve.held_out[-1]:.4g}",
        )

    def _prunes(self, history: "_History", trial: "FrozenTrial", curve: Curve) -> bool:
        raise NotImplementedError


class MedianPolicy(_PrunerPolicy):
    """Stop a trial that is worse than the median of the others at the same evaluation."""

    name = "median"

    def _prunes(self, history: "_History", trial: "FrozenTrial", curve: Curve) -> bool:  # noqa: ARG002 - the contract's arguments
        from optuna.pruners import MedianPruner

        return MedianPruner().prune(history.with_(trial), trial)  # type: ignore[arg-type]  # a study as far as pruners look


class AshaPolicy(_PrunerPolicy):
    """Keep the best quarter at each rung: evaluations 1, 4, 16, ..."""

    name = "asha"

    def _prunes(self, history: "_History", trial: "FrozenTrial", curve: Curve) -> bool:  # noqa: ARG002 - the contract's arguments
        return _halve(history, trial, HALVING_FACTOR, 0)


class HyperbandPolicy(_PrunerPolicy):
    """Successive halving within the bracket that Optuna assigns to a trial by its number."""

    name = "hyperband"

    def _prunes(self, history: "_History", trial: "FrozenTrial", curve: Curve) -> bool:
        from optuna.pruners import HyperbandPruner

        evaluations = round(len(curve.held_out) / curve.share)
        pruner = HyperbandPruner(
            min_resource=1, max_resource=evaluations, reduction_factor=HYPERBAND_FACTOR
        )
        pruner._try_initialization(history)  # type: ignore[arg-type]  # brackets are known from the start

        def bracket(trial: "FrozenTrial") -> int:
            return pruner._get_bracket_id(history, trial)  # type: ignore[arg-type]  # it reads the study's name

        rate = bracket(trial)
        rivals = _History([other for other in history.trials if bracket(other) == rate])
        return _halve(rivals, trial, HYPERBAND_FACTOR, rate)


def _halve(history: "_History", trial: "FrozenTrial", factor: int, rate: int) -> bool:
    """Return whether successive halving prunes; its rungs are at factor ** rate, factor ** (rate +
    1), ... evaluations.
    """
    from optuna.pruners import SuccessiveHalvingPruner

    for other in history.trials:
        _note_rungs(other, factor, rate, len(other.intermediate_values))
    _note_rungs(trial, factor, rate, len(trial.intermediate_values) - 1)
    pruner = SuccessiveHalvingPruner(
        min_resource=1, reduction_factor=factor, min_early_stopping_rate=rate
    )
    return pruner.prune(history.with_(trial), trial)  # type: ignore[arg-type]  # a study as far as pruners look


def _note_rungs(trial: "FrozenTrial", factor: int, rate: int, evaluations: int) -> None:
    """Note the rungs that a trial reached within so many evaluations, as the pruner would have
    done.
    """
    rung = 0
    while (step := factor ** (rate + rung)) <= evaluations:
        trial.system_attrs[f"completed_rung_{rung}"] = trial.intermediate_values[step]
        rung += 1


def _freeze(curve: Curve) -> "FrozenTrial":
    from optuna.trial import TrialState, create_trial

    state = TrialState.COMPLETE if curve.state == State.FINISHED else TrialState.PRUNED
    value = curve.held_out[-1] if curve.state == State.FINISHED else None
    trial = create_trial(
        state=state, value=value, intermediate_values=dict(enumerate(curve.held_out, 1))
    )
    trial.number = trial._trial_id = curve.number
    return trial


class _History:
    """The part of a study that pruners read; Optuna's own study would copy every trial."""

    study_name = "sweep"

    def __init__(self, trials: "list[FrozenTrial]") -> None:
        from optuna.study import StudyDirection

        self.trials, self.direction, self._storage = trials, StudyDirection.MAXIMIZE, self

    def with_(self, trial: "FrozenTrial") -> "_History":
        """Return the history and one more trial."""
        return _History([*self.trials, trial])

    def get_trials(
        self,
        deepcopy: bool = True,  # noqa: ARG002 - Optuna's
        states: Collection[Any] | None = None,
    ) -> "list[FrozenTrial]":
        """Return all trials, or those in these states."""
        return [trial for trial in self.trials if states is None or trial.state in states]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Note a rung that a pruner lets its trial reach."""
        next(trial for trial in self.trials if trial._trial_id == trial_id).system_attrs[key] = (
            value
        )
