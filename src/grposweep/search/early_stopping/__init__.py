"""Early stopping: whether a trial continues after an evaluation, and which paused trial is promoted.

The terms are those of Ray Tune's TrialScheduler. Every answer is a pure function of the learning curves it is given, so a
sweep and ``benchmarks/curves/replay.py`` call the same classes. A new policy is a class in a file of this package and a
line in ``grposweep.registries.POLICIES``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Protocol

from grposweep.errors import UserError
from grposweep.registries import POLICIES, SAMPLERS
from grposweep.schema import AUTO
from grposweep.search.space import Point, Space

DEFAULT = "curve"  # of searches that look for the best point only


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


@dataclass(frozen=True)
class PlannedTraining:
    """The plan of a point before its training; 0 is unknown. ``completions_per_step`` counts an optimizer step's."""

    learning_rate: float = 0.0
    completions_per_step: float = 0.0
    num_generations: float = 0.0
    total: float = 0.0  # completions


@dataclass(frozen=True)
class SearchContext:
    """What a policy may know about the search: its space, the plans of points, valid finite combinations, and the seed.

    ``trials`` is how many will be started in all, None if unknown. ``effort`` is the share of the cost of finishing all of them
    that the search may spend, above 0 to 1. ``has_points`` returns whether new points may still be started.
    """

    space: Space
    plan: Callable[[Point], PlannedTraining] = lambda _point: PlannedTraining()
    finite: Sequence[Point] = ()
    seed: int = 0
    effort: float = 1.0
    trials: int | None = None
    has_points: Callable[[], bool] = lambda: True

    def draw(self, random: Random, count: int) -> list[Point]:
        """Return random points whose finite part is valid."""
        return [self.space.draw(random, self.finite) for _ in range(count)]


class StoppingPolicy(Protocol):
    """An early-stopping policy."""

    def begin(self, context: SearchContext) -> None:
        """Store the search context; called before all other methods."""

    def decide(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """Return what a running trial does after its newest evaluation; ``others`` are all other started trials."""

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the number of the paused trial that a free slot should resume, or None to start a new point instead.

        If ``more`` is False, no new point will be started. Then None ends the paused trials.
        """

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the final values to tell a sampler for unfinished trials, by number; it ignores all others."""

    def propose(self, curves: Sequence[Curve]) -> Sequence[Point]:
        """Return new points, the best first, for the sampler of the policy's name; empty if it has none."""


class NoStopping:
    """No early stopping."""

    def begin(self, context: SearchContext) -> None:
        """Ignore the search: learning curves suffice."""

    def decide(self, curve: Curve, others: Sequence[Curve]) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Continue."""
        return CONTINUE

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:  # noqa: ARG002 - the contract's arguments
        """Return None: nothing is ever paused."""
        return None

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:  # noqa: ARG002 - the contract's arguments
        """Return nothing: only finished trials count."""
        return {}

    def propose(self, curves: Sequence[Curve]) -> Sequence[Point]:  # noqa: ARG002 - the contract's arguments
        """Return nothing: the sampler asks for points by itself."""
        return ()


def choose_policy(name: str, sampler: str, objectives: int = 1) -> str:
    """Resolve ``auto``: no early stopping if every point is compared, or if several objectives give no order."""
    if objectives > 1 or (name == AUTO and SAMPLERS[sampler].lists_points):
        return "none"
    if name == AUTO:
        return sampler if SAMPLERS[sampler].is_ranked else DEFAULT
    return name


def build_policy(name: str) -> StoppingPolicy:
    """Return the policy with this name in ``POLICIES``.

    Raises UserError for an unknown name.
    """
    if name not in POLICIES:
        raise UserError(f"search.stopping={name}: no such policy. Set one of {', '.join(POLICIES)}.")
    policy: StoppingPolicy = POLICIES[name]()
    return policy
