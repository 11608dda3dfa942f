"""Which keys of an Experiment decide which fields of a setting.

``KEYS`` maps each field to the key that a user types, which messages and fixes name. A few fields are derived from several
keys; ``DERIVED`` names these keys.
"""

from grporecipe.setting import UNSET, Setting
from grposweep.schema import AUTO_SIZES

# A field of the setting -> the key of its value.
KEYS = {
    "processes": "cluster.processes",
    "num_generations": "batch.num_generations",
    "per_device_train_batch_size": "batch.per_device_train_batch_size",
    "gradient_accumulation_steps": "batch.gradient_accumulation_steps",
    "steps_per_generation": "batch.steps_per_generation",
    "num_iterations": "batch.num_iterations",
    "prompts_per_step": "batch.prompts_per_step",
    "max_per_device_train_batch_size": "batch.max_per_device_train_batch_size",
    "per_device_eval_batch_size": "batch.per_device_eval_batch_size",
    "num_generations_eval": "batch.num_generations_eval",
    "eval_prompts": "task.eval_prompts",
    "train_prompts": "task.train_prompts",
    "chat": "task.chat",
    "max_steps": "schedule.max_steps",
    "epochs": "schedule.epochs",
    "budget_completions": "schedule.budget_completions",
    "evaluations": "schedule.evaluations",
    "checkpoints": "schedule.checkpoints",
    "kl_enabled": "kl.enabled",
    "beta": "kl.beta",
    "use_bias_correction_kl": "kl.use_bias_correction_kl",
    "sync_ref_model": "kl.sync_ref_model",
    "ref_model_sync_steps": "kl.ref_model_sync_steps",
    "ref_model_mixup_alpha": "kl.ref_model_mixup_alpha",
    "loss_type": "loss.loss_type",
    "epsilon": "loss.epsilon",
    "epsilon_high": "loss.epsilon_high",
    "delta": "loss.delta",
    "scale_rewards": "loss.scale_rewards",
    "importance_sampling_level": "loss.importance_sampling_level",
    "mask_truncated_completions": "loss.mask_truncated_completions",
    "learning_rate": "lr",
    "lr_scheduler_type": "optimizer.lr_scheduler_type",
    "warmup_steps": "optimizer.warmup_steps",
    "optim": "optimizer.optim",
    "weight_decay": "optimizer.weight_decay",
    "adam_beta1": "optimizer.adam_beta1",
    "adam_beta2": "optimizer.adam_beta2",
    "adam_epsilon": "optimizer.adam_epsilon",
    "max_grad_norm": "optimizer.max_grad_norm",
    "seed": "seed",
    "lora": "model.lora.enabled",
    "lora_rank": "model.lora.r",
    "lora_alpha": "model.lora.alpha",
    "lora_dropout": "model.lora.dropout",
    "weights_dtype": "model.dtype",
    "autocast_dtype": "model.mixed_precision",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "sharding": "trainer.sharding",
    "gpu_memory_gib": "cluster.gpu_memory_gib",
    "temperature": "generation.temperature",
    "top_p": "generation.top_p",
    "top_k": "generation.top_k",
    "max_completion_length": "generation.max_completion_length",
    "use_vllm": "generation.use_vllm",
    "vllm_mode": "generation.vllm_mode",
    "vllm_tensor_parallel_size": "generation.vllm_tensor_parallel_size",
    "vllm_gpu_memory_utilization": "generation.vllm_gpu_memory_utilization",
    "vllm_max_model_length": "generation.vllm_max_model_length",
    "nodes": "cluster.nodes",
    "gpus_per_node": "cluster.gpus_per_node",
    "server_gpus": "generation.vllm_gpus",
    "server_command": "generation.vllm_server_command",
    "walltime_min": "cluster.walltime_min",
    "host_memory_gib": "cluster.mem_gb",
    "eval_at_start": "schedule.eval_at_start",
    "checkpoint_minutes": "schedule.checkpoint_minutes",
    **{name: f"{section}.{name}" for section in ("loss", "generation") for name in UNSET[section]},
}

# Fields that follow from several keys (or sections), and from what preparation counted.
DERIVED: dict[str, tuple[str, ...]] = {
    "auto": tuple(f"batch.{name}" for name in AUTO_SIZES),
    "evaluates": ("schedule.evaluations", "schedule.eval_at_start"),
    "eval_strategy": ("schedule.evaluations",),
    "has_chat_template": ("model", "task"),
    "loads_on_every_rank": ("trainer.sharding", "trainer.fsdp_config"),
    "train_prompts": ("model", "task"),  # as prepared for this model and task
    "eval_prompts": ("model", "task"),
    "rewards": ("task.rewards",),
    "reward_weights": ("task.reward_weights",),
    "parameters": ("model.shape.parameters",),
    "architecture": ("model", "task"),  # as configured, or as prepared
    "lora_targets": ("model.lora.target_modules",),
    "runtime": ("model.quantization", "model.attn_implementation", "trainer.offload", "trainer.fsdp_config"),
    "weights_dtype": ("model.dtype", "model.mixed_precision", "model.lora.enabled"),
    "autocast_dtype": ("model.dtype", "model.mixed_precision", "model.lora.enabled"),
    "gpu_memory_gib": ("cluster.gpu", "cluster.gpu_memory_gib", "cluster.trials_per_gpu"),
    "gpu_trials": ("cluster.trials_per_gpu",),
    "gpu": ("cluster.gpu",),
    "prompt_tokens": ("model", "task"),  # as prepared
    "signal_shares": ("model", "task", "generation"),  # as screened
    "truncated_share": ("model", "task", "generation"),
    "vllm_max_model_length": ("generation.vllm_max_model_length", "generation.max_completion_length", "model", "task"),
}
# Fields that only ``trainer.args`` sets, with the key of each.
ARGS = {
    "split_batches": "trainer.args.accelerator_config",
    **{f"{name}_parallel_size": "trainer.args.parallelism_config" for name in ("tensor", "sequence", "context")},
    **{name: f"trainer.args.{name}" for name in ("auto_find_batch_size", "dataloader_drop_last", "load_best_model_at_end",
                                                 "log_completions_hub_repo", "use_liger_kernel")},
}  # fmt: skip
# An external trainer has these in its own recipe, or they are unknown: model, data, and generation.
FROM_RECIPE = frozenset(
    ["lora", "lora_rank", "lora_alpha", "lora_dropout", "weights_dtype", "autocast_dtype", "gradient_checkpointing", "sharding",
     "eval_prompts", "server_gpus", "chat", "server_command", "eval_at_start",
     *(name for name in KEYS if name.startswith(("vllm_", "use_vllm")))]
)  # fmt: skip
# Fields that are left to the trainer if they are not set.
OPTIONS = frozenset([*UNSET["loss"], *UNSET["generation"]])
# Every field that an Experiment decides -> the keys (or sections) that it depends on.
SOURCES: dict[str, tuple[str, ...]] = {
    **{name: (path,) for name, path in KEYS.items()},
    **DERIVED,
    **dict.fromkeys(ARGS, ("trainer.args",)),
}
PLAIN = Setting(keys={**KEYS, **ARGS})
OF_TASKS = PLAIN.replace({"keys": {**PLAIN.keys, "processes": "cluster.tasks_per_node"}})
