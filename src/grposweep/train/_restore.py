"""What a resume restores apart from the state that transformers keeps: the reference model, and the
rates of a continuation.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from grporecipe.errors import UserError
from grporecipe.files import without

# in a checkpoint, with kl.sync_ref_model
REFERENCE = "reference_model.pt"
# ways of sharding that leave a whole reference model on each rank
WHOLE = ("none", "zero1", "zero2")


def save_reference(model: Any, checkpoint: Path) -> None:
    """Write the weights of the reference model into a checkpoint's folder."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), checkpoint / REFERENCE)


def load_reference(model: Any, checkpoint: Path) -> None:
    """Restore the reference model. Raises UserError if the checkpoint has none: the model before
    training is another one.
    """
    path = checkpoint / REFERENCE
    if not path.is_file():
        raise UserError(
            f"kl.sync_ref_model=true: {checkpoint.name} has no {REFERENCE}, so the reference "
            "model, which follows the policy, "
            "is lost. Checkpoints of trainer.sharding=zero3 and fsdp have none. Delete "
            f"{checkpoint.parent} and run the same command to train this trial from the start."
        )
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))


def allow_deepspeed_states(sharding: str) -> None:
    """Let torch read DeepSpeed's checkpoints also with TORCH_FORCE_WEIGHTS_ONLY_LOAD=1, which
    refuses unknown classes.

    Source: what `torch.serialization.get_unsafe_globals_in_checkpoint` finds in those of DeepSpeed
    0.19.8.
    """
    if not sharding.startswith("zero") or not os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD"):
        return
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    torch.serialization.add_safe_globals(
        [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
    )


@contextmanager
def configured(optimizer: Any, scheduler: Any) -> Iterator[None]:
    """Load states within. Afterwards learning rates, weight decay and betas are those of the
    configuration again.

    For a continuation: torch restores them all from a checkpoint, and transformers its scheduler's
    base rates. The moments and the scheduler's step stay as loaded.
    """
    # accelerate's wrapper
    scheduler = getattr(scheduler, "scheduler", scheduler)
    if not isinstance(scheduler, LambdaLR):
        raise UserError(
            f"a continuation with the learning rate scheduler {type(scheduler).__name__}: its "
            "state cannot be separated from its "
            "learning rates. Set optimizer.lr_scheduler_type=constant, linear or cosine."
        )
    given = [without(group, ("params",)) for group in optimizer.param_groups]
    rates = list(scheduler.base_lrs)
    yield
    scheduler.base_lrs = rates
    for group, values, rate, scale in zip(
        optimizer.param_groups, given, rates, scheduler.lr_lambdas, strict=True
    ):
        group |= {**values, "lr": rate * scale(scheduler.last_epoch)}
    # what transformers logs
    scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]
