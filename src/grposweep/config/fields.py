"""Which keys of an Experiment decide which fields of a setting.

``KEYS`` maps each field to the key that a user types, which messages and fixes name. A few fields
are derived from several keys; ``DERIVED`` names these keys.
"""

from collections.abc import Iterator

from grporecipe.model.setting import Setting
from grposweep.schema import AUTO_SIZES, keys_of

# The groups that hold a recipe's numbers. The others set what is trained, where, and how it is
# searched.
NUMBERS = ("batch", "optimizer", "kl", "loss", "schedule", "generation")


def _keys() -> Iterator[tuple[str, str]]:
    """Yield every field of the setting that one key sets, and the key.

    The schema names the field in the key's metadata. In the groups of numbers both have the same
    name otherwise.
    """
    for path, key in keys_of():
        name = key.metadata.get("setting")
        if name is None and path.partition(".")[0] in NUMBERS:
            name = key.name
        if name in Setting.__dataclass_fields__:
            yield name, path


# A field of the setting -> the key of its value.
KEYS = dict(_keys())

# Fields that follow from several keys (or sections), and from what preparation counted.
DERIVED: dict[str, tuple[str, ...]] = {
    # as configured, or as prepared
    "chat": ("model", "task"),
    "auto": tuple(f"batch.{name}" for name in AUTO_SIZES),
    "evaluates": ("schedule.evaluations", "schedule.eval_at_start"),
    "eval_strategy": ("schedule.evaluations",),
    "has_chat_template": ("model", "task"),
    "loads_on_every_rank": ("trainer.sharding", "trainer.fsdp_config"),
    # as prepared for this model and task
    "train_prompts": ("model", "task"),
    "eval_prompts": ("model", "task"),
    "rewards": ("task.rewards",),
    "reward_weights": ("task.reward_weights",),
    "parameters": ("model.shape.parameters",),
    # as configured, or as prepared
    "architecture": ("model", "task"),
    "lora": ("model.lora.r",),
    "lora_targets": ("model.lora.target_modules",),
    "runtime": (
        "model.quantization",
        "model.attn_implementation",
        "trainer.offload",
        "trainer.fsdp_config",
    ),
    "weights_dtype": ("model.dtype", "model.mixed_precision", "model.lora.r"),
    "autocast_dtype": ("model.dtype", "model.mixed_precision", "model.lora.r"),
    "gpu_memory_gib": ("cluster.gpu", "cluster.gpu_memory_gib", "cluster.trials_per_gpu"),
    "gpu_trials": ("cluster.trials_per_gpu",),
    "gpu": ("cluster.gpu",),
    # as prepared
    "prompt_tokens": ("model", "task"),
    "vllm_max_model_length": (
        "generation.vllm_max_model_length",
        "generation.max_completion_length",
        "model",
        "task",
    ),
}
# Fields of the loss, the optimizer and vLLM that only ``trainer.args`` sets.
OF_ARGS = (
    "delta",
    "entropy_coef",
    "use_adaptive_entropy",
    "entropy_coef_min",
    "entropy_coef_max",
    "entropy_coef_delta",
    "entropy_target",
    "off_policy_mask_threshold",
    "sapo_temperature_neg",
    "sapo_temperature_pos",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
    "multi_objective_aggregation",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_clip_max",
    "mask_truncated_completions",
    "top_entropy_quantile",
    "vllm_enable_sleep_mode",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
)
# Fields that only ``trainer.args`` sets, with the key of each.
ARGS = {
    "split_batches": "trainer.args.accelerator_config",
    **{
        f"{name}_parallel_size": "trainer.args.parallelism_config"
        for name in ("tensor", "sequence", "context")
    },
    **{
        name: f"trainer.args.{name}"
        for name in (
            "auto_find_batch_size",
            "dataloader_drop_last",
            "load_best_model_at_end",
            "log_completions_hub_repo",
            "use_liger_kernel",
            *OF_ARGS,
        )
    },
}
# Beginnings of keys that an external trainer has in its own recipe, or that are unknown: model,
# data, and generation.
OF_RECIPES = (
    "model.",
    "task.",
    "trainer.",
    "generation.use_vllm",
    "generation.vllm_",
    "schedule.eval_at_start",
)
FROM_RECIPE = frozenset(name for name, path in KEYS.items() if path.startswith(OF_RECIPES)) - {
    "train_prompts"
}
# Keys below these that an external trainer reads nevertheless.
READ = (
    "task.train_prompts",
    *(
        f"trainer.{name}"
        for name in (
            "kind",
            "keep",
            "command",
            "python",
            "workdir",
            "environment",
            "args",
        )
    ),
)


def reaches(key: str) -> bool:
    """Return whether a key, or the option of a group, affects an external trainer."""
    return key == "trainer" or key.startswith(READ) or not f"{key}.".startswith(OF_RECIPES)


# Every field that an Experiment decides -> the keys (or sections) that it depends on.
SOURCES: dict[str, tuple[str, ...]] = {
    **{name: (path,) for name, path in KEYS.items()},
    **DERIVED,
    **dict.fromkeys(ARGS, ("trainer.args",)),
}
PLAIN = Setting(
    keys={
        **KEYS,
        **ARGS,
        "rewards": "task.rewards",
        "reward_weights": "task.reward_weights",
        "lora": "model.lora.r",
        "lora_targets": "model.lora.target_modules",
    }
)
OF_TASKS = PLAIN.replace({"keys": {**PLAIN.keys, "processes": "cluster.tasks_per_node"}})
