"""Optuna's pruners as ways of stopping: median, ASHA (asynchronous successive halving) and Hyperband, for good.

Their step is the number of the evaluation, from 1. None of them knows noise, or that some curves rise late.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from grposweep.search.early_stopping import CONTINUE, Action, Decision
from grposweep.search.early_stopping.learning_curve import Curve, State

if TYPE_CHECKING:  # 0.2 s that --help and --cfg should not pay
    from optuna.trial import FrozenTrial


HALVING_FACTOR = 4  # Optuna's default for successive halving
HYPERBAND_FACTOR = 3  # and for Hyperband


class OptunaPruner:
    """One of Optuna's pruners: median, asha or hyperband."""

    def __init__(self, name: str) -> None:
        self._name = name

    def judge(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """Stop for good where the pruner would prune."""
        history = _History([_freeze(other) for other in others])
        mine = _freeze(curve)
        if self._name == "median":
            prunes = _median(history, mine)
        elif self._name == "asha":
            prunes = _halve(history, mine, HALVING_FACTOR, 0)
        else:
            prunes = _hyperband(history, mine, round(len(curve.held_out) / curve.share))
        if not prunes:
            return CONTINUE
        return Decision(Action.STOP, f"{self._name} at evaluation {len(curve.held_out)}: {curve.held_out[-1]:.4g}")

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:  # noqa: ARG002 - the contract's arguments
        """What these stop is stopped for good."""
        return None

    def foresee(self, curves: Sequence[Curve]) -> dict[int, float]:  # noqa: ARG002 - the contract's arguments
        """Optuna's samplers use the evaluations of pruned trials themselves."""
        return {}


def _median(history: "_History", mine: "FrozenTrial") -> bool:
    from optuna.pruners import MedianPruner

    return MedianPruner().prune(history.with_(mine), mine)  # type: ignore[arg-type]  # a study as far as pruners look


def _halve(history: "_History", mine: "FrozenTrial", factor: int, rate: int) -> bool:
    """Successive halving, whose rungs are at factor ** rate, factor ** (rate + 1), ... evaluations."""
    from optuna.pruners import SuccessiveHalvingPruner

    for trial in history.trials:
        _climb(trial, factor, rate, len(trial.intermediate_values))
    _climb(mine, factor, rate, len(mine.intermediate_values) - 1)
    pruner = SuccessiveHalvingPruner(min_resource=1, reduction_factor=factor, min_early_stopping_rate=rate)
    return pruner.prune(history.with_(mine), mine)  # type: ignore[arg-type]  # a study as far as pruners look


def _hyperband(history: "_History", mine: "FrozenTrial", evaluations: int) -> bool:
    """Successive halving within the bracket that Optuna deals to a trial by its number."""
    from optuna.pruners import HyperbandPruner

    pruner = HyperbandPruner(min_resource=1, max_resource=evaluations, reduction_factor=HYPERBAND_FACTOR)
    pruner._try_initialization(history)  # type: ignore[arg-type]  # brackets are known from the start

    def bracket(trial: "FrozenTrial") -> int:
        return pruner._get_bracket_id(history, trial)  # type: ignore[arg-type]  # it reads the study's name

    rate = bracket(mine)
    return _halve(_History([trial for trial in history.trials if bracket(trial) == rate]), mine, HYPERBAND_FACTOR, rate)


def _climb(trial: "FrozenTrial", factor: int, rate: int, evaluations: int) -> None:
    """Note the rungs that a trial has reached within so many evaluations, as the pruner would have."""
    rung = 0
    while (step := factor ** (rate + rung)) <= evaluations:
        trial.system_attrs[f"completed_rung_{rung}"] = trial.intermediate_values[step]
        rung += 1


def _freeze(curve: Curve) -> "FrozenTrial":
    from optuna.trial import TrialState, create_trial

    state = TrialState.COMPLETE if curve.state == State.FINISHED else TrialState.PRUNED
    value = curve.held_out[-1] if curve.state == State.FINISHED else None
    trial = create_trial(state=state, value=value, intermediate_values=dict(enumerate(curve.held_out, 1)))
    trial.number = trial._trial_id = curve.number
    return trial


class _History:
    """The little of a study that pruners look at; a study of Optuna's own would copy every trial."""

    study_name = "sweep"

    def __init__(self, trials: "list[FrozenTrial]") -> None:
        from optuna.study import StudyDirection

        self.trials, self.direction, self._storage = trials, StudyDirection.MAXIMIZE, self

    def with_(self, trial: "FrozenTrial") -> "_History":
        """This and the trial in question."""
        return _History([*self.trials, trial])

    def get_trials(self, deepcopy: bool = True, states: Collection[Any] | None = None) -> "list[FrozenTrial]":  # noqa: ARG002 - Optuna's
        """All trials, or those in these states."""
        return [trial for trial in self.trials if states is None or trial.state in states]

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """The rungs that a pruner lets its trial climb."""
        next(trial for trial in self.trials if trial._trial_id == trial_id).system_attrs[key] = value
