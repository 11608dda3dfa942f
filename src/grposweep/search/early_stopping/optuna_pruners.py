"""The rules of Optuna's pruners as policies: the median, successive halving, ASHA and Hyperband. A
stopped trial has ended.

Their step is the number of the evaluation, from 1. These pruners ignore evaluation noise and late
risers.
"""

import math
from binascii import crc32
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, NoStopping, State

# Optuna's defaults: finished trials before the median counts, and Hyperband's factor.
STARTUP = 5
HYPERBAND_FACTOR = 3


class _PrunerPolicy(NoStopping):
    """Stop when the pruner would prune. Optuna's samplers use the evaluations of pruned trials
    themselves.
    """

    name: str

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Return whether to stop the trial or continue."""
        if not self.prunes(curve, others):
            return CONTINUE
        return Decision(
            Action.STOP,
            f"{self.name} at evaluation {len(curve.held_out)}: {curve.held_out[-1]:.4g}",
        )

    def prunes(self, curve: Curve, others: Sequence[Curve]) -> bool:
        """Return whether the pruner would prune a trial after its last evaluation."""
        raise NotImplementedError


class MedianPolicy(_PrunerPolicy):
    """Stop a trial whose best evaluation is worse than the median of the finished trials at the
    same evaluation.
    """

    name = "median"

    def prunes(self, curve: Curve, others: Sequence[Curve]) -> bool:
        """Return whether at least five have finished, and the trial is below their median."""
        finished = [other for other in others if other.state is State.FINISHED]
        values = _values_at(len(curve.held_out), finished)
        if len(finished) < STARTUP or not values:
            return False
        return max(curve.held_out) < median(values)


class HalvingPolicy(_PrunerPolicy):
    """Keep the best half at each rung: evaluations 2, 4, 8, ..."""

    name = "halving"
    factor = 2
    first = 2

    def prunes(self, curve: Curve, others: Sequence[Curve]) -> bool:
        """Return whether the trial is at a rung and behind there."""
        return _is_behind(curve, others, self.factor, self.first)


class AshaPolicy(HalvingPolicy):
    """Keep the best quarter at each rung: evaluations 1, 4, 16, ..."""

    name = "asha"
    factor = 4
    first = 1


class HyperbandPolicy(_PrunerPolicy):
    """Successive halving within the bracket that Optuna assigns to a trial by its number."""

    name = "hyperband"

    def prunes(self, curve: Curve, others: Sequence[Curve]) -> bool:
        """Return whether the trial is behind the others of its bracket."""
        evaluations = round(len(curve.held_out) / curve.share)
        bracket = _bracket(curve.number, evaluations)
        rivals = [other for other in others if _bracket(other.number, evaluations) == bracket]
        return _is_behind(curve, rivals, HYPERBAND_FACTOR, HYPERBAND_FACTOR**bracket)


def _values_at(evaluation: int, curves: Sequence[Curve]) -> list[float]:
    return [c.held_out[evaluation - 1] for c in curves if len(c.held_out) >= evaluation]


def _is_behind(curve: Curve, others: Sequence[Curve], factor: int, first: int) -> bool:
    """Return whether a trial is at a rung (evaluations first, first x factor, ...) and not among
    the best there, one in ``factor``.
    """
    evaluation, rung = len(curve.held_out), first
    while rung < evaluation:
        rung *= factor
    if rung > evaluation:
        return False
    values = sorted(_values_at(evaluation, [*others, curve]))
    return curve.held_out[-1] < values[-max(len(values) // factor, 1)]


def _bracket(number: int, evaluations: int) -> int:
    """Return the bracket of a trial, as Optuna draws it in a study named sweep."""
    brackets = math.floor(math.log(evaluations, HYPERBAND_FACTOR)) + 1
    sizes = []
    for left in reversed(range(brackets)):
        sizes.append(math.ceil(brackets * HYPERBAND_FACTOR**left / (left + 1)))
    drawn = crc32(f"sweep_{number}".encode()) % sum(sizes)
    return bisect_right(list(accumulate(sizes)), drawn)
