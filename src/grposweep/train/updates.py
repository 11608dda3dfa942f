"""How far each optimizer step moves the weights: the dial between a training that stands still and one that breaks.

EasyR1's guide to stable training asks for it beside the gradient norm. AdamW divides the gradient's size away, so the norm alone
does not tell; in bfloat16 a small learning rate may move nothing at all.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SAMPLED = 1 << 16  # weights looked at, of all: enough for a norm to a percent or two


@dataclass
class Sample:
    """A regular sample of the trainable weights, as they were when last looked at."""

    every: int
    _before: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    # Found once: the walk over a model and a view of each weight cost more than what is done with them.
    _trained: list[torch.nn.Parameter] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)
    _views: list[torch.Tensor] = field(default_factory=list)

    def take(self, model: torch.nn.Module) -> None:
        """Remember the weights; a sharded rank's own part of them."""
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._before = self._look()

    def change(self) -> float | None:
        """|after - before| / |before| over the sample, and remember the weights anew; None where there are none."""
        before, self._before = self._before, self._look()
        if not len(before):
            return None
        size = torch.linalg.vector_norm(before)
        moved = torch.linalg.vector_norm(before.sub_(self._before))
        return float(moved / size.clamp_min(torch.finfo(torch.float32).tiny))

    def _look(self) -> torch.Tensor:
        """A copy of the weights as they are now."""
        parts = [own_part(p) for p in self._trained]
        places = [part.data_ptr() for part in parts]
        if places != self._places:  # the first time, or weights were moved
            self._places, self._views = places, [part.detach().reshape(-1)[:: self.every] for part in parts]
        return torch.cat(self._views).float() if self._views else torch.empty(0)


def own_part(weight: torch.nn.Parameter) -> torch.Tensor:
    """What this rank holds of a weight: one that FSDP has divided is talked about with the others at any operation."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


class UpdateSize(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """``value`` is the relative size of the last optimizer step's update, on rank 0."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._sample: Sample | None = None

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any
    ) -> None:
        if state.is_world_process_zero and self._sample is None:  # the first step; each one ends where the next begins
            model = known["model"]
            weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
            self._sample = Sample(every=max(weights // SAMPLED, 1))
            self._sample.take(model)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._sample is not None:
            self.value = self._sample.change()
