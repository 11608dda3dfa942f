"""How far each optimizer step moves the weights: the dial between a training that stands still and one that breaks.

EasyR1's guide to stable training asks for it beside the gradient norm. AdamW divides the gradient's size away, so the norm alone
does not tell; in bfloat16 a small learning rate may move nothing at all.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

SAMPLED = 1 << 20  # weights looked at, of all; 8 MiB while a step is taken, whatever the model's size


@dataclass
class Sample:
    """A regular sample of the trainable weights, as they were before a step."""

    every: int
    before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # a view of the weights, its copy
    trained: list[torch.nn.Parameter] = field(
        default_factory=list
    )  # found once: the walk over a model costs as much as the rest

    def take(self, model: torch.nn.Module) -> None:
        """Remember the weights; a sharded rank's own part of them."""
        self.trained = self.trained or [p for p in model.parameters() if p.requires_grad]
        views = [p.detach().reshape(-1)[:: self.every] for p in self.trained if p.numel()]
        self.before = [(view, view.float().clone()) for view in views]

    def change(self) -> float | None:
        """|after - before| / |before| over the sample; None where there is none."""
        if not self.before:
            return None
        views, copies = [view.float() for view, _ in self.before], [copy for _, copy in self.before]
        self.before = []
        moved = torch.stack(torch._foreach_norm(torch._foreach_sub(views, copies))).norm()
        size = torch.stack(torch._foreach_norm(copies)).norm()
        return float(moved / size.clamp_min(torch.finfo(torch.float32).tiny))


class UpdateSize(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """``value`` is the relative size of the last optimizer step's update, on rank 0."""

    def __init__(self) -> None:
        self.value: float | None = None
        self._sample: Sample | None = None

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **known: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        model = known["model"]
        if self._sample is None:
            weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
            self._sample = Sample(every=max(weights // SAMPLED, 1))
        self._sample.take(model)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._sample is not None:
            self.value = self._sample.change()
