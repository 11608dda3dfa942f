"""A trial's learning curve, as far as it is known: what guards and early stopping look at, in a sweep and in a replay alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from grposweep.search.space import Point


class State(StrEnum):
    """Where a trial stands."""

    RUNNING = "running"
    PAUSED = "paused"  # it has a checkpoint, and may go on from there
    FINISHED = "finished"
    STOPPED = "stopped"  # for good


@dataclass(frozen=True)
class Curve:
    """The evaluations of one trial after its start; all sequences have one entry an evaluation, or none at all.

    ``held_out`` is what the sweep optimises, larger is better (negated where it minimises), and ``errors`` its standard errors.
    ``completions`` counts what the training generated until each evaluation, ``total`` what a whole training generates.
    ``signals`` are means over the training steps since the evaluation before: train_reward, kl, entropy, grad_norm, zero_std
    (share of groups without reward variance), truncated (share of completions), update_size; None is not a number.
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
        """How much of the training is done, as of the last evaluation: 0 to 1."""
        return min(self.completions[-1] / self.total, 1.0) if self.completions else 0.0
