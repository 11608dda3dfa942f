"""What all callbacks share: signs of life, and a stop of all ranks at the same rollout boundary."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class BoundaryCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """The shared part of all callbacks: give signs of life, and stop all ranks at the same rollout
    boundary.
    """

    stopped = False

    def beat(self, state: TrainerState) -> None:
        """Show a sign of life."""

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.beat(state)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        # an evaluation may be long: it lives
        self.beat(state)

    def stop_if_asked(self, asked: bool, args: TrainingArguments, control: TrainerControl) -> bool:
        """Return whether any rank was asked to stop. All ranks must call this at the same step."""
        self.stopped = broadcast_any(asked, args.world_size, args.device)
        control.should_training_stop = control.should_training_stop or self.stopped
        return self.stopped


def broadcast_any(flag: bool, ranks: int, device: Any) -> bool:
    """Return on every rank whether the flag is set on any: all must leave the loop at one step, or
    the others hang.
    """
    if ranks == 1:
        return flag
    # only several ranks need it here
    import torch

    flags = torch.tensor([int(flag)], device=device)
    torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
    return bool(flags.item())
