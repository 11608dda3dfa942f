"""Optuna's pruners as policies: median, successive halving, ASHA and Hyperband. A stopped trial has
ended.

Their step is the number of the evaluation, from 1. These pruners ignore evaluation noise and late
risers.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, State, StoppingPolicy

# 0.2 s that --help and --cfg should not pay
if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

# Optuna's default
HYPERBAND_FACTOR = 3


class _PrunerPolicy(StoppingPolicy):
    """Stop when the pruner would prune. Optuna's samplers use the evaluations of pruned trials
    themselves.
    """

    name: str

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Return whether to stop the trial or continue."""
        evaluation = len(curve.held_out)
        trial = _freeze(curve)
        history = _History([*map(_freeze, others), trial])
        if not self._prunes(history, trial, round(evaluation / curve.share)):
            return CONTINUE
        return Decision(
            Action.STOP, f"{self.name} at evaluation {evaluation}: {curve.held_out[-1]:.4g}"
        )

    def _prunes(self, history: Any, trial: "FrozenTrial", evaluations: int) -> bool:
        raise NotImplementedError


class MedianPolicy(_PrunerPolicy):
    """Stop a trial that is worse than the median of the others at the same evaluation."""

    name = "median"

    def _prunes(self, history: Any, trial: "FrozenTrial", evaluations: int) -> bool:  # noqa: ARG002 - the contract's arguments
        from optuna.pruners import MedianPruner

        return MedianPruner().prune(history, trial)


class HalvingPolicy(_PrunerPolicy):
    """Keep the best half at each rung: evaluations 2, 4, 8, ..."""

    name = "halving"
    factor = 2
    rate = 1

    def _prunes(self, history: Any, trial: "FrozenTrial", evaluations: int) -> bool:  # noqa: ARG002 - the contract's arguments
        return _halve(history.trials, trial, self.factor, self.rate)


class AshaPolicy(HalvingPolicy):
    """Keep the best quarter at each rung: evaluations 1, 4, 16, ..."""

    name = "asha"
    factor = 4
    rate = 0


class HyperbandPolicy(_PrunerPolicy):
    """Successive halving within the bracket that Optuna assigns to a trial by its number."""

    name = "hyperband"

    def _prunes(self, history: Any, trial: "FrozenTrial", evaluations: int) -> bool:
        from optuna.pruners import HyperbandPruner

        pruner = HyperbandPruner(1, evaluations, HYPERBAND_FACTOR)
        # brackets are known from the start
        pruner._try_initialization(history)
        bracket = pruner._get_bracket_id(history, trial)
        rivals = [one for one in history.trials if pruner._get_bracket_id(history, one) == bracket]
        return _halve(rivals, trial, HYPERBAND_FACTOR, bracket)


def _halve(trials: "list[FrozenTrial]", trial: "FrozenTrial", factor: int, rate: int) -> bool:
    """Return whether successive halving prunes one of these trials.

    Its rungs are at factor ** rate, factor ** (rate + 1), ... evaluations.
    """
    from optuna.pruners import SuccessiveHalvingPruner

    for other in trials:
        # The pruner itself notes the rung at the trial's last evaluation.
        evaluations, rung = len(other.intermediate_values) - (other is trial), 0
        while (step := factor ** (rate + rung)) <= evaluations:
            other.system_attrs[f"completed_rung_{rung}"] = other.intermediate_values[step]
            rung += 1
    history: Any = _History(trials)
    return SuccessiveHalvingPruner(1, factor, rate).prune(history, trial)


def _freeze(curve: Curve) -> "FrozenTrial":
    from optuna.trial import TrialState, create_trial

    is_finished = curve.state == State.FINISHED
    trial = create_trial(
        state=TrialState.COMPLETE if is_finished else TrialState.PRUNED,
        value=curve.held_out[-1] if is_finished else None,
        intermediate_values=dict(enumerate(curve.held_out, 1)),
    )
    trial.number = trial._trial_id = curve.number
    return trial


class _History:
    """The part of a study that pruners read; Optuna's own study would copy every trial."""

    study_name = "sweep"

    def __init__(self, trials: "list[FrozenTrial]") -> None:
        from optuna.study import StudyDirection

        self.trials, self.direction, self._storage = trials, StudyDirection.MAXIMIZE, self

    def get_trials(self, deepcopy: bool = True, states: Any = None) -> "list[FrozenTrial]":  # noqa: ARG002 - Optuna's
        """Return all trials, or those in these states."""
        return [trial for trial in self.trials if states is None or trial.state in states]

    def set_trial_system_attr(self, *_: Any) -> None:
        """Leave the trials as they are: the pruner adds the value of its own trial itself."""
