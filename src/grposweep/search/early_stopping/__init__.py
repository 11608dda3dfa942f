"""Early stopping: whether a trial continues after an evaluation, and which paused trial is promoted.

The terms are those of Ray Tune's TrialScheduler. Every answer is a pure function of the learning curves it is given, so a
sweep and ``benchmarks/curves/replay.py`` call the same classes. A new policy is a class in a file of this package and a
line in ``grposweep.registries.POLICIES``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from grposweep.errors import UserError
from grposweep.registries import POLICIES, SAMPLERS
from grposweep.schema import AUTO
from grposweep.search.space import Point

DEFAULT = "rank"
EFFORT = 0.6  # of searches that look for the best point only


class State(StrEnum):
    """The state of a trial."""

    RUNNING = "running"
    PAUSED = "paused"  # it has a checkpoint, from which it may be resumed
    FINISHED = "finished"
    STOPPED = "stopped"  # finally


@dataclass(frozen=True)
class Curve:
    """A trial's learning curve: its evaluations after the start. All sequences have one entry per evaluation, or are empty.

    ``held_out`` is the objective, larger is better (negated if the sweep minimises), and ``errors`` its standard errors.
    ``completions`` counts what the training generated until each evaluation, ``total`` what a whole training generates.
    ``signals`` are means over the training steps since the previous evaluation: train_reward, kl, entropy, grad_norm,
    zero_std (share of groups without reward variance), truncated (share of completions), update_size; None is not a number.
    """

    number: int
    point: Point
    state: State
    total: float
    completions: Sequence[float]
    held_out: Sequence[float]
    start: float | None = None
    errors: Sequence[float | None] = ()
    signals: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Return the share of the training that is done at the last evaluation, 0 to 1."""
        return min(self.completions[-1] / self.total, 1.0) if self.completions else 0.0

    def until(self, seen: int) -> "Curve":
        """Return the curve as it was after so many evaluations."""
        signals = {name: values[:seen] for name, values in self.signals.items()}
        values = self.completions[:seen], self.held_out[:seen]
        return Curve(self.number, self.point, self.state, self.total, *values, self.start, self.errors[:seen], signals)


class Action(StrEnum):
    """What a trial does after an evaluation."""

    CONTINUE = "continue"
    PAUSE = "pause"  # at the next rollout boundary, with a checkpoint; it may be promoted later
    STOP = "stop"  # finally


@dataclass(frozen=True)
class Decision:
    """An action and its reason in words, as the trial's record keeps it."""

    action: Action
    reason: str = ""


CONTINUE = Decision(Action.CONTINUE)


class StoppingPolicy(Protocol):
    """An early-stopping policy. ``more`` is whether a new trial could still be started."""

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:
        """Return what a running trial does after its newest evaluation; ``others`` are all other started trials."""

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the number of the paused trial that a free slot should resume, or None to start a new point instead."""

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the values to tell a sampler for unfinished trials, by number; it ignores all others."""


class NoStopping:
    """No early stopping. Trials that another policy has paused continue."""

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Continue."""
        return CONTINUE

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:  # noqa: ARG002 - the contract's arguments
        """Return the first paused trial."""
        return min((curve.number for curve in curves if curve.state is State.PAUSED), default=None)

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:  # noqa: ARG002 - the contract's arguments
        """Return nothing: only finished trials count."""
        return {}


def choose_effort(effort: float | None, sampler: str) -> float:
    """Resolve ``search.effort``: every trial of a list finishes unless the user wants less."""
    return (1.0 if SAMPLERS[sampler].lists_points else EFFORT) if effort is None else effort


def build_policy(name: str, effort: float, objectives: int = 1) -> StoppingPolicy:
    """Return the policy with this name in ``POLICIES``; ``auto`` is ``rank``, or ``none`` if several objectives give no order.

    Raises UserError for an unknown name.
    """
    if name == AUTO:
        name = DEFAULT if effort < 1 and objectives == 1 else "none"
    if name not in POLICIES:
        raise UserError(f"search.stopping={name}: no such policy. Set one of {', '.join(POLICIES)}.")
    policy: StoppingPolicy = POLICIES[name](effort) if name == DEFAULT else POLICIES[name]()
    return policy
