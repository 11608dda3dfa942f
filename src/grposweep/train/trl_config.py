"""Our configuration as GRPOConfig takes it. Every number is passed, because TRL's defaults have changed before.

`ROWS` copies keys; a new key is a row there. What follows from the plan, the machine or several keys is computed below it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from trl import GRPOConfig

from grposweep.config.precision import read_precision
from grposweep.schema import UNSET, Experiment, Model, value_at
from grposweep.train.attempt import Attempt
from grposweep.train.models import Loaded, loading_options
from grposweep.train.sharding import sharding_options
from grposweep.train.vllm import server_address

NEVER = 1 << 30  # optimizer steps


def always(_: Experiment) -> bool:
    """Every configuration passes the key."""
    return True


def colocates(experiment: Experiment) -> bool:
    """Return whether vLLM generates in the training processes."""
    return experiment.generation.use_vllm and experiment.generation.vllm_mode == "colocate"


def is_set(key: str) -> Callable[[Experiment], bool]:
    """Return what tells whether a key is set; otherwise it is left to TRL."""
    return lambda experiment: value_at(experiment, key) not in (None, {})


@dataclass(frozen=True)
class Row:
    """A key that is copied: ours, and GRPOConfig's if that is not the last part of ours. Passed only ``when``."""

    ours: str
    theirs: str = ""
    when: Callable[[Experiment], bool] = always

    @property
    def name(self) -> str:
        """GRPOConfig's key."""
        return self.theirs or self.ours.rpartition(".")[2]

    def value(self, experiment: Experiment) -> Any:
        """Return the value, where infinity is no bound."""
        value = value_at(experiment, self.ours)
        return None if value == inf else value


ROWS = (
    Row("seed"),
    Row("seed", "data_seed"),
    Row("model.gradient_checkpointing"),
    Row("model.chat_template_kwargs", when=is_set("model.chat_template_kwargs")),
    Row("model.trust_remote_code"),
    Row("batch.num_iterations"),
    Row("kl.beta"),
    Row("kl.use_bias_correction_kl"),
    Row("kl.sync_ref_model"),
    Row("kl.ref_model_sync_steps"),
    Row("kl.ref_model_mixup_alpha"),
    Row("loss.loss_type"),
    Row("loss.epsilon"),
    Row("loss.epsilon_high"),
    Row("loss.delta"),
    Row("loss.scale_rewards"),
    Row("loss.importance_sampling_level"),
    Row("loss.mask_truncated_completions"),
    *(Row(f"loss.{name}", when=is_set(f"loss.{name}")) for name in UNSET["loss"]),
    Row("task.reward_weights"),
    Row("optimizer.learning_rate"),
    Row("optimizer.optim"),
    Row("optimizer.weight_decay"),
    Row("optimizer.adam_beta1"),
    Row("optimizer.adam_beta2"),
    Row("optimizer.adam_epsilon"),
    Row("optimizer.max_grad_norm"),
    Row("optimizer.lr_scheduler_type"),
    Row("optimizer.warmup_steps"),
    Row("generation.max_completion_length"),
    Row("generation.temperature"),
    Row("generation.top_p"),
    Row("generation.top_k"),
    *(Row(f"generation.{name}", when=is_set(f"generation.{name}")) for name in UNSET["generation"]),
    Row("generation.use_vllm"),
    Row("generation.vllm_mode", when=lambda experiment: experiment.generation.use_vllm),
    Row("generation.vllm_tensor_parallel_size", when=colocates),
    Row("generation.vllm_gpu_memory_utilization", when=colocates),
    Row("trainer.log_completions"),  # to checkpoints/completions/*.parquet
    Row("trainer.compile", "torch_compile"),
)


def build_config(attempt: Attempt, model: Loaded) -> GRPOConfig:
    """Return GRPOConfig for one rank of an attempt. With several ranks this connects them."""
    return GRPOConfig(**grpo_arguments(attempt, model))


def grpo_arguments(attempt: Attempt, model: Loaded) -> dict[str, Any]:
    """Return GRPOConfig's arguments by name."""
    experiment = attempt.experiment
    return {
        **{row.name: row.value(experiment) for row in ROWS if row.when(experiment)},
        **batch_arguments(attempt),
        **course_arguments(attempt),
        **device_arguments(attempt, model),
        **vllm_arguments(attempt),
        **sharding_options(experiment),
        **experiment.trainer.args,
    }


def batch_arguments(attempt: Attempt) -> dict[str, Any]:
    """Return the batch as the plan has it: only steps_per_generation, since TRL refuses it with generation_batch_size."""
    plan, setting = attempt.plan, attempt.setting
    return {
        "per_device_train_batch_size": plan.per_device_train_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "steps_per_generation": plan.steps_per_generation,
        "num_generations": plan.num_generations,
        "per_device_eval_batch_size": setting.per_device_eval_batch_size,
        "num_generations_eval": setting.num_generations_eval or plan.num_generations,
    }


def vllm_arguments(attempt: Attempt) -> dict[str, Any]:
    """Return the longest sequence of a colocated engine in tokens (None: the model's own), or where a server is."""
    if colocates(attempt.experiment):
        return {"vllm_max_model_length": attempt.setting.vllm_max_model_length}
    return server_address(attempt.experiment.generation)


def course_arguments(attempt: Attempt) -> dict[str, Any]:
    """Return the course of the run. Evaluations and checkpoints are placed by our callback, at the plan's steps."""
    evaluates, keep = bool(attempt.plan.evaluation_steps), attempt.experiment.trainer.keep
    return {
        "output_dir": str(attempt.checkpoints),
        "max_steps": attempt.total,
        "eval_strategy": "steps" if evaluates else "no",  # on, so that TRL checks the evaluation batch
        "eval_steps": attempt.total if evaluates else NEVER,
        "save_strategy": "no",
        "save_total_limit": None if keep == "all" else 1,
        "logging_steps": 1,
        "num_completions_to_print": 0,
        "report_to": list(attempt.tracker.report_to),  # rank 0 alone writes; other trackers are ours
        "disable_tqdm": True,
    }


def device_arguments(attempt: Attempt, model: Loaded) -> dict[str, Any]:
    """Return what depends on the machine: device, backend of the ranks, and numeric types."""
    cpu = not torch.cuda.is_available()
    return {
        "model_init_kwargs": {**model.init_kwargs, **loading_options(attempt.experiment.model)},
        "use_cpu": cpu,
        "ddp_backend": "gloo" if cpu and attempt.ranks > 1 else None,
        "ddp_find_unused_parameters": False,  # every parameter has a gradient; looking for others costs a walk a step
        **precision_arguments(attempt.experiment.model, has_gpu=not cpu),
    }


def precision_arguments(model: Model, has_gpu: bool) -> dict[str, Any]:
    """Return the autocast; none without a GPU, where half precision is slower and less exact than single."""
    mixed = read_precision(model).mixed if has_gpu else "none"
    tf32 = {"tf32": model.tf32} if has_gpu and model.tf32 is not None else {}
    return {"bf16": mixed == "bf16", "fp16": mixed == "fp16", **tf32}
