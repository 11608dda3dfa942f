"""EasyR1's recipes: dotted keys over its dataclasses to a setting, and changes of a setting back to its keys.

Sources: EasyR1 verl/trainer/main.py (OmegaConf: classes, then ``config=``, then the dot-list), verl/trainer/config.py,
verl/workers/*/config.py; which key exists when is in frameworks/easyr1_keys.json.
"""

from collections.abc import Mapping
from typing import Any

from grposweep.frameworks import dotted_keys as schema
from grposweep.frameworks.dotted import (
    ESTIMATORS,
    WORDS,
    Values,
    build,
    collect,
    dual_clip,
    gpu_change,
    in_rollouts,
    model_fields,
    optimizer_fields,
    schedule_word,
)
from grposweep.frameworks.trl.reader import ParsedRecipe
from grposweep.recipe import Recipe
from grposweep.setting import FrameworkTraits, Setting, Version

RENAMED = {  # read by today's name in every version; GV301 says which does not exist
    "worker.actor.ulysses_sequence_parallel_size": "worker.actor.ulysses_size",
    "worker.actor.optim.warmup_style": "worker.actor.optim.lr_scheduler_type",
    "trainer.total_episodes": "trainer.total_epochs",
}
TRAITS = FrameworkTraits("easyr1", "EasyR1", unit="prompts", syntax="dotted")
KEYS = {
    "processes": "trainer.n_gpus_per_node",
    "sequence_parallel_size": "worker.actor.ulysses_size",
    "num_generations": "worker.rollout.n",
    "prompts_per_rollout": "data.rollout_batch_size",
    "prompts_per_generation": "data.mini_rollout_batch_size",
    "prompts_per_step": "worker.actor.global_batch_size",
    "per_device_train_batch_size": "worker.actor.micro_batch_size_per_device_for_update",
    "experience_batch_size": "worker.actor.micro_batch_size_per_device_for_experience",
    "dynamic_batching": "worker.actor.dynamic_batching",
    "offloads_parameters": "worker.actor.fsdp.enable_cpu_offload",
    "filters_groups": "algorithm.online_filtering",
    "num_iterations": "worker.actor.ppo_epochs",
    "max_steps": "trainer.max_steps",
    "epochs": "trainer.total_epochs",
    "save_steps": "trainer.save_freq",
    "eval_steps": "trainer.val_freq",
    "advantage_estimator": "algorithm.adv_estimator",
    "beta": "algorithm.kl_coef",
    "kl_reward_coefficient": "algorithm.kl_coef",
    "kl_placement": "algorithm.use_kl_loss",
    "loads_reference": "algorithm.disable_kl",
    "kl_estimator": "algorithm.kl_penalty",
    "kl_reward_estimator": "algorithm.kl_penalty",
    "kl_controller": "algorithm.kl_type",
    "kl_horizon": "algorithm.kl_horizon",
    "kl_target": "algorithm.kl_target",
    "loss_type": "worker.actor.loss_type",
    "loss_average": "worker.actor.loss_avg_mode",
    "epsilon": "worker.actor.clip_ratio_low",
    "epsilon_high": "worker.actor.clip_ratio_high",
    "delta": "worker.actor.clip_ratio_dual",
    "learning_rate": "worker.actor.optim.lr",
    "lr_scheduler_type": "worker.actor.optim.lr_scheduler_type",
    "warmup_steps": "worker.actor.optim.lr_warmup_steps",
    "minimum_learning_rate_ratio": "worker.actor.optim.min_lr_ratio",
    "weight_decay": "worker.actor.optim.weight_decay",
    "max_grad_norm": "worker.actor.max_grad_norm",
    "seed": "data.seed",
    "model_name_or_path": "worker.actor.model.model_path",
    "parameters": "worker.actor.model.model_path",
    "dataset_name": "data.train_files",
    "lora": "worker.actor.model.lora.rank",
    "temperature": "worker.rollout.temperature",
    "top_p": "worker.rollout.top_p",
    "top_k": "worker.rollout.top_k",
    "max_prompt_length": "data.max_prompt_length",
    "max_completion_length": "data.max_response_length",
    "vllm_tensor_parallel_size": "worker.rollout.tensor_parallel_size",
    "vllm_gpu_memory_utilization": "worker.rollout.gpu_memory_utilization",
    "max_batched_tokens": "worker.rollout.max_num_batched_tokens",
}
BEFORE = {  # EasyR1 0.2: the KL loss belongs to the actor, the coefficient in the reward to the algorithm
    "beta": "worker.actor.kl_loss_coef",
    "kl_placement": "worker.actor.use_kl_loss",
    "kl_estimator": "worker.actor.kl_loss_type",
    "epsilon": "worker.actor.clip_ratio",
    "epsilon_high": "worker.actor.clip_ratio",
}
COUNTS = ("sequence_parallel_size", "num_generations", "prompts_per_rollout", "prompts_per_step",
          "per_device_train_batch_size", "experience_batch_size", "num_iterations", "max_prompt_length",
          "max_completion_length", "vllm_tensor_parallel_size", "max_batched_tokens", "seed")  # fmt: skip
NUMBERS = ("learning_rate", "weight_decay", "max_grad_norm", "temperature", "top_p", "vllm_gpu_memory_utilization",
           "kl_horizon", "kl_target")  # fmt: skip
# What EasyR1's losses are in TRL's words; its token mean is taken over all ranks.
LOSSES = {"default": "dapo", "gspo": "dapo", "gspo_token": "dapo"}


def reading(recipe: Recipe) -> ParsedRecipe:
    """The setting, and what of it could not be read."""
    found = collect(recipe, schema.easyr1(recipe.version), RENAMED)
    keys = keys_of(found, recipe.version)
    fields: dict[str, Any] = {name: found.whole(keys[name], 1) for name in COUNTS}
    fields |= {name: found.number(keys[name]) for name in NUMBERS}
    fields |= _topology(recipe, found) | _kl(found, recipe.version) | _loss(found, recipe.version)
    fields |= optimizer_fields(found, "worker.actor.optim.betas", "worker.rollout.top_k")
    fields |= model_fields(found.word("worker.actor.model.model_path"))
    warmup = _warmup(found)
    rollouts = {
        "max_steps": found.get("trainer.max_steps", "int"),
        "warmup_steps": warmup,
        "save_steps": _frequency(found, "trainer.save_freq"),
        "eval_steps": _frequency(found, "trainer.val_freq"),
    }
    epochs = found.get("trainer.total_epochs", "int")
    fields |= {
        "epochs": None if rollouts["max_steps"] is not None and "trainer.total_epochs" not in found.given else epochs,
        "lr_scheduler_type": schedule_word(found.word(keys["lr_scheduler_type"], "constant"), warmup),
        "minimum_learning_rate_ratio": found.get("worker.actor.optim.min_lr_ratio", "float"),
        "dataset_name": found.word("data.train_files") or None,
        "advantage_estimator": found.word("algorithm.adv_estimator"),
        "evaluates": rollouts["eval_steps"] is not None,
        "eval_strategy": "no" if rollouts["eval_steps"] is None else "steps",
        "save_strategy": "no" if rollouts["save_steps"] is None else "steps",
    }
    return build(TRAITS, recipe, found, fields, keys, rollouts)


def keys_of(found: Values, version: Version) -> dict[str, str]:
    """The native key behind each field in one version."""
    keys = {**KEYS, **BEFORE} if version < schema.ALGORITHM_KL else dict(KEYS)
    if not found.get("worker.actor.optim.lr_warmup_steps", "int"):
        keys["warmup_steps"] = "worker.actor.optim.lr_warmup_ratio"
    if "trainer.n_gpus_per_node" not in found.given and "trainer.nnodes" in found.given:
        keys["processes"] = "trainer.nnodes"
    return keys


def _topology(recipe: Recipe, found: Values) -> dict[str, Any]:
    gpus = found.whole("trainer.nnodes", 1) * found.whole("trainer.n_gpus_per_node", 8)
    is_known = not found.bad & {"trainer.nnodes", "trainer.n_gpus_per_node"}
    return {
        "processes": recipe.processes if recipe.processes is not None else gpus if is_known else None,
        "prompts_per_generation": found.get("data.mini_rollout_batch_size", "int"),
        "dynamic_batching": found.flag("worker.actor.dynamic_batching"),
        "offloads_parameters": found.flag("worker.actor.fsdp.enable_cpu_offload"),
        "filters_groups": found.flag("algorithm.online_filtering"),
        "lora": found.whole("worker.actor.model.lora.rank") > 0,
        "use_vllm": True,
        "vllm_mode": "colocate",
    }


def _kl(found: Values, version: Version) -> dict[str, Any]:
    """Where the KL term is: in the loss or in the reward, never in both; ``disable_kl`` ends all of it."""
    fixed = {"kl_controller": found.word("algorithm.kl_type", "fixed")}
    reward = {
        "kl_reward_coefficient": found.number("algorithm.kl_coef"),
        "kl_reward_estimator": _estimator(found.word("algorithm.kl_penalty")),
    }
    if version < schema.ALGORITHM_KL:
        in_loss = found.flag("worker.actor.use_kl_loss", True)
        loss = {
            "beta": found.number("worker.actor.kl_loss_coef"),
            "kl_estimator": _estimator(found.word("worker.actor.kl_loss_type")),
        }
        return fixed | {
            "kl_placement": "loss" if in_loss else "reward",
            "loads_reference": True,
            **(loss if in_loss else reward),
        }
    if found.flag("algorithm.disable_kl"):
        return fixed | {"kl_placement": "none", "loads_reference": False}
    if not found.flag("algorithm.use_kl_loss"):
        return fixed | {"kl_placement": "reward", "loads_reference": True, **reward}
    loss = {"beta": reward["kl_reward_coefficient"], "kl_estimator": reward["kl_reward_estimator"]}
    return fixed | {"kl_placement": "loss", "loads_reference": True, **loss}


def _estimator(word: str) -> str:
    return ESTIMATORS.get(word, word)


def _loss(found: Values, version: Version) -> dict[str, Any]:
    """Losses and clips in TRL's words; a ratio of the sequence is a level there."""
    old = version < schema.ALGORITHM_KL
    word, average = found.word("worker.actor.loss_type", "default"), found.word("worker.actor.loss_avg_mode", "token")
    loss = "grpo" if word in LOSSES and average == "seq" else LOSSES.get(word, word)
    return {
        "loss_type": loss,
        "loss_average": average,
        "importance_sampling_level": "sequence" if word.startswith("gspo") else "token",
        "epsilon": found.number("worker.actor.clip_ratio" if old else "worker.actor.clip_ratio_low", 0.2),
        "epsilon_high": found.number("worker.actor.clip_ratio" if old else "worker.actor.clip_ratio_high", 0.3),
        "delta": None if old else dual_clip(found.number("worker.actor.clip_ratio_dual", 3.0)),
        "scale_rewards": "group",
    }


def _warmup(found: Values) -> float:
    """Rollouts of warmup, which win, or the share of all rollouts."""
    steps = found.get("worker.actor.optim.lr_warmup_steps", "int")
    return float(steps) if steps is not None else found.number("worker.actor.optim.lr_warmup_ratio")


def _frequency(found: Values, key: str) -> int | None:
    """Every so many rollouts; -1 is never."""
    every = found.whole(key, -1)
    return every if every > 0 else None


def native(change: Mapping[str, Any], recipe: Recipe, setting: Setting) -> dict[str, Any] | None:
    """A change of fields as a change of EasyR1's keys, None removing one; None where EasyR1 has no words for it."""
    values = collect(recipe, schema.easyr1(recipe.version), RENAMED)
    found: dict[str, Any] = {}
    for name, value in change.items():
        said = _said(name, value, recipe, setting, values)
        if said is None:
            return None
        found |= said
    return {_written(key, recipe): value for key, value in found.items()}


def _said(name: str, value: Any, recipe: Recipe, s: Setting, values: Values) -> dict[str, Any] | None:
    """One field in EasyR1's words."""
    key = s.keys.get(name)
    if name == "processes":
        return gpu_change(value, recipe, values)
    if name == "kl_placement":
        return _placed(value, s)
    if key is None or name in ("parameters", "lora", "loss_type", "importance_sampling_level"):
        return None
    if name == "loads_reference":
        return {key: not value}
    if name == "max_steps" and value is not None:
        return {key: in_rollouts(s, value)}
    if name == "warmup_steps" and value >= 1:
        return {"worker.actor.optim.lr_warmup_steps": in_rollouts(s, value)}
    if name in ("kl_estimator", "kl_reward_estimator"):
        return {key: WORDS.get(value, value)}
    return {key: value}


def _placed(value: str, s: Setting) -> dict[str, Any] | None:
    if value == "none" and s.version >= schema.ALGORITHM_KL:
        return {"algorithm.disable_kl": True}
    return {s.key("kl_placement"): value == "loss"} if value in ("loss", "reward") else None


def _written(key: str, recipe: Recipe) -> str:
    """The key as the recipe spells it."""
    older = next((old for old, new in RENAMED.items() if new == key and old in recipe.config), key)
    return older if key not in recipe.config else key
