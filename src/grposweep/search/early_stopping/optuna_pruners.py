"""The rules of Optuna's pruners as policies: median, successive halving, ASHA and Hyperband. A
stopped trial has ended.

Their step is the number of the evaluation, from 1. These pruners ignore evaluation noise and late
risers. A test compares each decision with Optuna's own.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from zlib import crc32

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, State, StoppingPolicy

# Optuna's defaults
HYPERBAND_FACTOR = 3
FEWEST_FINISHED = 5


class _PrunerPolicy(StoppingPolicy):
    """Stop when the pruner would prune. Optuna's samplers use the evaluations of pruned trials
    themselves.
    """

    name: str

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Return whether to stop the trial or continue."""
        if not self._prunes(curve, others):
            return CONTINUE
        evaluation = len(curve.held_out)
        return Decision(
            Action.STOP, f"{self.name} at evaluation {evaluation}: {curve.held_out[-1]:.4g}"
        )

    def _prunes(self, curve: Curve, others: Sequence[Curve]) -> bool:
        raise NotImplementedError


class MedianPolicy(_PrunerPolicy):
    """Stop a trial whose best value is worse than the median of the finished trials at the same
    evaluation.
    """

    name = "median"

    def _prunes(self, curve: Curve, others: Sequence[Curve]) -> bool:
        finished = [other for other in others if other.state is State.FINISHED]
        values = _values_at(len(curve.held_out), finished)
        is_known = len(finished) >= FEWEST_FINISHED and bool(values)
        return is_known and max(curve.held_out) < median(values)


class HalvingPolicy(_PrunerPolicy):
    """Keep the best half at each rung: evaluations 2, 4, 8, ..."""

    name = "halving"
    factor = 2
    rate = 1

    def _prunes(self, curve: Curve, others: Sequence[Curve]) -> bool:
        return _halve(curve, others, self.factor, self.rate)


class AshaPolicy(HalvingPolicy):
    """Keep the best quarter at each rung: evaluations 1, 4, 16, ..."""

    name = "asha"
    factor = 4
    rate = 0


class HyperbandPolicy(_PrunerPolicy):
    """Successive halving within the bracket that Optuna assigns to a trial by its number."""

    name = "hyperband"

    def _prunes(self, curve: Curve, others: Sequence[Curve]) -> bool:
        evaluations = round(len(curve.held_out) / curve.share)
        bracket = _bracket(curve, evaluations)
        rivals = [other for other in others if _bracket(other, evaluations) == bracket]
        return _halve(curve, rivals, HYPERBAND_FACTOR, bracket)


def _halve(curve: Curve, others: Sequence[Curve], factor: int, rate: int) -> bool:
    """Return whether successive halving prunes a trial: at evaluation factor ** rate, factor **
    (rate + 1), ... the best of every ``factor`` continue, and at least one.
    """
    evaluations = len(curve.held_out)
    rung = factor**rate
    while rung < evaluations:
        rung *= factor
    if rung > evaluations:
        return False
    values = sorted([*_values_at(rung, others), curve.held_out[-1]])
    return curve.held_out[-1] < values[-max(len(values) // factor, 1)]


def _values_at(evaluation: int, curves: Sequence[Curve]) -> list[float]:
    return [c.held_out[evaluation - 1] for c in curves if len(c.held_out) >= evaluation]


def _bracket(curve: Curve, evaluations: int) -> int:
    """Return the bracket of a trial, as HyperbandPruner gives it in a study named ``sweep``."""
    brackets = math.floor(math.log(evaluations, HYPERBAND_FACTOR)) + 1
    later = reversed(range(brackets))
    sizes = [math.ceil(brackets * HYPERBAND_FACTOR**rungs / (rungs + 1)) for rungs in later]
    place = crc32(f"sweep_{curve.number}".encode()) % sum(sizes)
    return bisect_right(list(accumulate(sizes)), place)
