"""TRL's GRPOConfig, the part that sweeps of scripts read; source: trl 1.16
trainer/grpo_config.py.
"""

from dataclasses import asdict, dataclass
from typing import Any

from transformers import TrainingArguments


@dataclass
class GRPOConfig(TrainingArguments):
    """Some of its fields, with its defaults and its rule of whole groups."""

    output_dir: str = "out"
    learning_rate: float = 1e-6
    beta: float = 0.0
    max_steps: int = -1
    num_train_epochs: float = 3.0
    per_device_train_batch_size: int = 8
    per_device_eval_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    steps_per_generation: int | None = None
    generation_batch_size: int | None = None
    num_generations: int = 8
    num_iterations: int = 1
    max_completion_length: int = 256
    weight_decay: float = 0.0
    warmup_steps: float = 0
    logging_steps: float = 10
    eval_strategy: str = "no"
    eval_steps: float | None = None
    save_strategy: str = "steps"
    save_steps: float = 500
    report_to: Any = "none"
    seed: int = 42
    lora_like: int = 0
    hub_token: str | None = None
    use_vllm: bool = False
    vllm_mode: str = "server"
    vllm_tensor_parallel_size: int = 1
    resume_from_checkpoint: str | None = None
    bf16: bool | None = None
    use_cpu: bool = False
    gradient_checkpointing: bool = True
    temperature: float = 1.0
    epsilon: float = 0.2
    reward_weights: list[float] | None = None
    loss_type: str = "dapo"
    lr_scheduler_type: str = "linear"
    run_name: str | None = None
    save_total_limit: int | None = None
    remove_unused_columns: bool = False
    log_completions: bool = False
    deepspeed: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_per_generation is not None and self.generation_batch_size is not None:
            raise ValueError(
                "'generation_batch_size' and 'steps_per_generation' can not be both configured"
            )
        step = self.per_device_train_batch_size * self.world_size
        if self.generation_batch_size is None:
            self.steps_per_generation = (
                self.steps_per_generation or self.gradient_accumulation_steps
            )
            self.generation_batch_size = step * self.steps_per_generation
        self.steps_per_generation = self.generation_batch_size // step
        if self.generation_batch_size % self.num_generations:
            raise ValueError(
                f"generation_batch_size ({self.generation_batch_size}) must be divisible by "
                "num_generations"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)
