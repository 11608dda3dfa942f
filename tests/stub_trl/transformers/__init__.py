"""Callbacks and their state, as transformers names them."""

from dataclasses import dataclass
from typing import Any


class TrainerCallback:
    """Every event does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)


@dataclass
class TrainerControl:
    """What a callback may ask for."""

    should_training_stop: bool = False
    should_save: bool = False


@dataclass
class TrainerState:
    """Where a training is, in optimizer steps."""

    global_step: int = 0
    max_steps: int = 0
    is_world_process_zero: bool = True


class TrainingArguments:
    """Only its name is needed."""
