"""What a training script imports."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser, TrainingArguments
from transformers.trainer import Trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

__version__ = "1.16.0"
__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "ModelConfig",
    "SFTConfig",
    "SFTTrainer",
    "ScriptArguments",
    "TrlParser",
]


@dataclass
class ModelConfig:
    """The model."""

    model_name_or_path: str = ""


@dataclass
class ScriptArguments:
    """The data."""

    dataset_name: str = ""


@dataclass
class SFTConfig(TrainingArguments):
    """Another trainer's configuration."""

    max_steps: int = 1
    save_strategy: str = "no"


class SFTTrainer(Trainer):
    """Another trainer."""


class TrlParser(HfArgumentParser):
    """Reads ``--config`` as well."""

    def parse_args_and_config(self) -> tuple[Any, ...]:
        """Return an object of each class; options win."""
        self.add_argument("--config")
        given, _ = self.parse_known_args()
        if given.config:
            self._defaults.update(yaml.safe_load(Path(given.config).read_text()))
        return self.parse_args_into_dataclasses()


def get_peft_config(_: Any) -> None:
    """Return no adapter."""
