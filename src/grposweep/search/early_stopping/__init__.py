"""Early stopping by name: what becomes of a trial at each of its evaluations, and which paused one goes on.

Every answer is a pure function of the curves it is given; a sweep's tick and ``benchmarks/curves/replay.py`` call the same
classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from grposweep.search.early_stopping.learning_curve import Curve

DEFAULT = "curve"  # of searches that look for the best point only
STOPPINGS = ("none", "curve", "median", "asha", "hyperband")
COMPARES_ALL = ("grid", "one_factor")  # samplers whose every trial is wanted to its end


class Action(StrEnum):
    """What a trial is told after an evaluation."""

    CONTINUE = "go on"
    PAUSE = "pause"  # at the next rollout boundary, with a checkpoint; it may be promoted later
    STOP = "stop"  # for good


@dataclass(frozen=True)
class Decision:
    """An action, and the evidence for it in words, as the trial's record keeps it."""

    action: Action
    reason: str = ""


CONTINUE = Decision(Action.CONTINUE)


class Stopping(Protocol):
    """One way of stopping early."""

    def judge(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """What becomes of a running trial that has a new evaluation; ``others`` are all other started trials."""

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """The paused trial (its number) that a free slot should go to; None: a new point instead.

        ``more`` is False where no new point will be started: then None ends the paused ones for good.
        """

    def foresee(self, curves: Sequence[Curve]) -> dict[int, float]:
        """The final values to tell a sampler of trials that have not finished, by number; it never hears of the others."""


class NoStopping:
    """No early stopping."""

    def judge(self, curve: Curve, others: Sequence[Curve]) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Go on."""
        return CONTINUE

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:  # noqa: ARG002 - the contract's arguments
        """Nothing is ever paused."""
        return None

    def foresee(self, curves: Sequence[Curve]) -> dict[int, float]:  # noqa: ARG002 - the contract's arguments
        """A finished trial's own value is all that counts."""
        return {}


def choose_stopping(name: str, sampler: str, objectives: int = 1) -> str:
    """``auto`` resolved: none where every point is to be compared, or where several objectives make no order."""
    if objectives > 1 or (name == "auto" and sampler in COMPARES_ALL):
        return "none"
    return DEFAULT if name == "auto" else name


def build_stopping(name: str) -> Stopping:
    """The way of stopping behind a name of ``search.stopping``; KeyError for an unknown one."""
    if name == "none":
        return NoStopping()
    if name == "curve":
        from grposweep.search.early_stopping.curve import CurveStopping

        return CurveStopping()
    if name in STOPPINGS:
        from grposweep.search.early_stopping.optuna_pruners import OptunaPruner

        return OptunaPruner(name)
    raise KeyError(name)
