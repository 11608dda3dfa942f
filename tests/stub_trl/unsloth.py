"""Unsloth, the part that replaces TRL's classes when it is imported: by generated source in a file
of the working directory.

Source: unsloth models/rl.py (``_patch_trl_rl_trainers``), unsloth_zoo compiler.py
(``create_new_function``).
"""

import importlib.util
from pathlib import Path
from typing import Any

import trl
import trl.trainer.grpo_config
import trl.trainer.grpo_trainer

GENERATED = """
from dataclasses import dataclass, field
from typing import Any
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.grpo_config import GRPOConfig


@dataclass
class UnslothGRPOConfig(GRPOConfig):
    vllm_sampling_params: Any = field(default=None)
    unsloth_num_chunks: int = -1

    def __init__(self, output_dir=None, learning_rate=5e-5, per_device_train_batch_size=4, num_generations=8,
                 vllm_sampling_params=None, unsloth_num_chunks=-1, **kwargs):
        if output_dir is None:
            output_dir = "unsloth_training_checkpoints"
        if per_device_train_batch_size % num_generations:
            per_device_train_batch_size = num_generations
        super().__init__(output_dir=output_dir, learning_rate=learning_rate, num_generations=num_generations,
                         per_device_train_batch_size=per_device_train_batch_size, **kwargs)
        self.vllm_sampling_params = vllm_sampling_params
        self.unsloth_num_chunks = unsloth_num_chunks


class _UnslothGRPOTrainer(GRPOTrainer):
    pass


class UnslothGRPOTrainer(_UnslothGRPOTrainer):
    def __init__(self, model, reward_funcs, args=None, train_dataset=None, processing_class=None, **kwargs):
        if args is None:
            args = UnslothGRPOConfig()
        args.bf16, args.unsloth_num_chunks = True, 1
        super().__init__(model=model, reward_funcs=reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
"""


def _patch() -> None:
    folder = Path("unsloth_compiled_cache")
    folder.mkdir(exist_ok=True)
    file = folder / "UnslothGRPOTrainer.py"
    file.write_text(GENERATED)
    spec = importlib.util.spec_from_file_location("UnslothGRPOTrainer", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    for module in (trl, trl.trainer.grpo_config, trl.trainer.grpo_trainer):
        for name in ("GRPOConfig", "GRPOTrainer"):
            if hasattr(module, name):
                setattr(module, name, getattr(made, f"Unsloth{name}"))


_patch()


class Model:
    """A model with an adapter."""

    name_or_path = "tiny"

    def save_lora(self, _: str) -> None:
        """Do nothing."""


class FastLanguageModel:
    """Loads nothing."""

    @staticmethod
    def from_pretrained(**_: Any) -> tuple[Model, None]:
        """Return a model and a tokenizer."""
        return Model(), None

    @staticmethod
    def get_peft_model(model: Model, **_: Any) -> Model:
        """Return the model."""
        return model
