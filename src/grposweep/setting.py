"""The framework-neutral numbers that plan and rules read; no Hydra, no Optuna, no torch.

Batch sizes count completions, as in TRL. ``None`` means unknown or unset, never a default in disguise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setting:
    """One recipe in TRL's words (facts: ``completions`` unless the name says prompts).

    ``keys`` maps a field to the native key that a person would edit, for messages and fixes.
    """

    framework: str = "trl"
    processes: int | None = None
    # the batch
    num_generations: int = 8
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    steps_per_generation: int | None = None  # micro-steps; None: the accumulation
    num_iterations: int = 1
    prompts_per_step: int | None = None  # what a person asked for, where they did
    auto: frozenset[str] = frozenset()  # sizes left to the planner
    unsolved: frozenset[str] = frozenset()  # those of them that no value fits
    max_per_device_train_batch_size: int | None = None  # the planner's bound
    # evaluation
    evaluates: bool = True
    per_device_eval_batch_size: int = 8
    num_generations_eval: int | None = None  # None: num_generations
    eval_prompts: int | None = None
    # data and schedule
    train_prompts: int | None = None
    max_steps: int | None = None  # optimizer steps
    epochs: float | None = None  # passes over the training prompts
    budget_completions: int | None = None
    evaluations: int = 0
    checkpoints: int = 0
    save_steps: int | None = None  # optimizer steps
    # KL
    kl_enabled: bool | None = None  # None where a framework has no such word
    beta: float = 0.0
    use_bias_correction_kl: bool | None = None
    sync_ref_model: bool = False
    ref_model_sync_steps: int = 512
    ref_model_mixup_alpha: float = 0.6
    # loss
    loss_type: str = "dapo"
    epsilon: float = 0.2
    epsilon_high: float | None = None
    delta: float | None = None
    scale_rewards: str = "group"
    importance_sampling_level: str = "token"
    # optimizer
    learning_rate: float = 1e-6
    lr_scheduler_type: str = "linear"
    warmup_steps: float = 0.0
    # model and generation
    lora: bool = False
    temperature: float = 1.0
    max_completion_length: int = 256
    keys: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def key(self, name: str) -> str:
        """The native key behind a field; the field's own name where the recipe has no other word."""
        return self.keys.get(name, name)
