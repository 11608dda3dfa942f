"""The base of all configurations."""

import os
from dataclasses import dataclass
from typing import Any


@dataclass
class TrainingArguments:
    """The fields that the stub of the trainer reads."""

    output_dir: str = "out"
    learning_rate: float = 5e-5
    max_steps: int = -1
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    logging_steps: float = 500
    eval_strategy: str = "no"
    eval_steps: float | None = None
    save_strategy: str = "steps"
    save_steps: float = 500
    report_to: Any = "none"
    seed: int = 42
    push_to_hub: bool = False

    def __post_init__(self) -> None:
        """Check nothing."""

    @property
    def world_size(self) -> int:
        """The ranks of a launcher."""
        return int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def device(self) -> str:
        """Where tensors would be."""
        return "cpu"
