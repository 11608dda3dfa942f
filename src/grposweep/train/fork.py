"""What a training changes of the checkpoint that it was forked from: rates and the like are those of its own configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from grposweep.errors import UserError


@contextmanager
def configured(optimizer: Any, scheduler: Any) -> Iterator[None]:
    """Load states within: afterwards learning rates, weight decay and betas are again as the configuration has them.

    torch restores them all from a checkpoint, and transformers its scheduler's base rates. The moments and the scheduler's step
    stay as loaded.
    """
    scheduler = getattr(scheduler, "scheduler", scheduler)  # accelerate's wrapper
    if not isinstance(scheduler, LambdaLR):
        raise UserError(
            f"a fork with the learning rate scheduler {type(scheduler).__name__}: its state cannot be told from its rates. "
            "Set optimizer.lr_scheduler_type=constant or another that is a function of the step."
        )
    given = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    rates = list(scheduler.base_lrs)
    yield
    scheduler.base_lrs = rates
    for group, values, rate, scale in zip(optimizer.param_groups, given, rates, scheduler.lr_lambdas, strict=True):
        group |= {**values, "lr": rate * scale(scheduler.last_epoch)}
    scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]  # what transformers logs
