"""Early stopping: whether a trial continues after an evaluation, and which paused trial is
promoted.

The terms are those of Ray Tune's TrialScheduler. Every answer is a pure function of the learning
curves it is given, so a sweep and ``benchmarks/curves/replay.py`` call the same classes. A new
policy is a class in a file of this package and a line in ``grposweep.schema.registries.POLICIES``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from grposweep.schema import AUTO
from grposweep.schema.registries import POLICIES, SAMPLERS
from grposweep.search.curves import Curve, State

__all__ = [
    "CONTINUE",
    "DEFAULT",
    "EFFORT",
    "Action",
    "Curve",
    "Decision",
    "State",
    "StoppingPolicy",
    "build_policy",
    "choose_effort",
]

DEFAULT = "rank"
# of searches that look for the best point only
EFFORT = 0.6
# The completions that a budget allows all trials; None: not known yet.
Allowance = Callable[[Sequence[Curve]], float | None]


class Action(StrEnum):
    """What a trial does after an evaluation."""

    CONTINUE = "continue"
    # at the next rollout boundary, with a checkpoint; it may be promoted later
    PAUSE = "pause"
    # finally
    STOP = "stop"


@dataclass(frozen=True)
class Decision:
    """An action and its reason in words, as the trial's record keeps it."""

    action: Action
    reason: str = ""


CONTINUE = Decision(Action.CONTINUE)


class StoppingPolicy:
    """An early-stopping policy. This base stops nothing, and trials that another policy has paused
    continue.

    ``effort`` is the share of the cost of finishing every trial that it may spend. ``more`` is
    whether a new trial could still be started.
    """

    effort = 1.0

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Return what a running trial does after its newest evaluation; ``others`` are all other
        started trials. By default it continues.
        """
        return CONTINUE

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:  # noqa: ARG002 - the contract's arguments
        """Return the number of the paused trial that a free slot should resume, or None to start a
        new point instead. By default it is the first one.
        """
        return min((curve.number for curve in curves if curve.state is State.PAUSED), default=None)

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:  # noqa: ARG002 - the contract's arguments
        """Return the values to tell a sampler for unfinished trials, by number; it ignores all
        others.
        """
        return {}

    def describe(self, curves: Sequence[Curve]) -> dict[int, str]:  # noqa: ARG002 - the contract's arguments
        """Return why paused trials wait, in words by number; those that it leaves out keep the
        reason of their pause.
        """
        return {}

    def trials(self, curves: Sequence[Curve]) -> int | None:  # noqa: ARG002 - the contract's arguments
        """Return how many trials its budget is for, by what is known; None without a budget."""
        return None


def choose_effort(effort: float | None, sampler: str) -> float:
    """Resolve ``search.effort``: every trial of a list finishes unless the user wants less."""
    if effort is not None:
        return effort
    return 1.0 if SAMPLERS[sampler].lists_points else EFFORT


def build_policy(name: str, effort: float, budget: Allowance | None = None) -> StoppingPolicy:
    """Return the policy with this name in ``POLICIES``; ``auto`` is ``rank``, or ``none`` if every
    trial finishes.
    """
    if name == AUTO:
        name = DEFAULT if effort < 1 or budget is not None else "none"
    policy: StoppingPolicy = (
        POLICIES[name](effort, budget) if POLICIES[name].follows_effort else POLICIES[name]()
    )
    return policy
