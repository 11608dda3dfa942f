"""The learning curve of a training, which guards and early-stopping policies judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
    point: Mapping[str, Any]
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
