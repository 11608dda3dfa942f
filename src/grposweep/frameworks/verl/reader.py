"""The key of verl behind each field of a setting, and the sections that they stand in.

verl's recipes: Hydra overrides over its composed configuration to a setting, and changes of a setting back to its keys.

Sources: verl 0.9.1 trainer/main_ppo.py, trainer/config/_generated_ppo_trainer.yaml (and _megatron_), utils/config.py,
workers/config/actor.py, workers/engine_workers.py, trainer/ppo/v1/trainer_base.py; keys in frameworks/verl_keys.json.
"""

from collections.abc import Mapping
from math import prod
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
from grposweep.setting import FrameworkTraits, Setting

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
MODEL, OPTIM = "actor_rollout_ref.model", f"{ACTOR}.optim"
TRAITS = FrameworkTraits("verl", "verl", unit="prompts", syntax="dotted")
KEYS = {
    "processes": "trainer.n_gpus_per_node",
    "sequence_parallel_size": f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
    "tensor_parallel_size": f"{ACTOR}.megatron.tensor_model_parallel_size",
    "pipeline_parallel_size": f"{ACTOR}.megatron.pipeline_model_parallel_size",
    "context_parallel_size": f"{ACTOR}.megatron.context_parallel_size",
    "num_generations": f"{ROLLOUT}.n",
    "prompts_per_rollout": "data.train_batch_size",
    "prompts_per_generation": "data.gen_batch_size",
    "prompts_per_step": f"{ACTOR}.ppo_mini_batch_size",
    "per_device_train_batch_size": f"{ACTOR}.ppo_micro_batch_size_per_gpu",
    "experience_batch_size": f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    "reference_batch_size": f"{REF}.log_prob_micro_batch_size_per_gpu",
    "dynamic_batching": f"{ACTOR}.use_dynamic_bsz",
    "offloads_parameters": f"{ACTOR}.fsdp_config.param_offload",
    "filters_groups": "algorithm.filter_groups.enable",
    "removes_padding": f"{MODEL}.use_remove_padding",
    "num_iterations": f"{ACTOR}.ppo_epochs",
    "max_steps": "trainer.total_training_steps",
    "epochs": "trainer.total_epochs",
    "save_steps": "trainer.save_freq",
    "eval_steps": "trainer.test_freq",
    "advantage_estimator": "algorithm.adv_estimator",
    "beta": f"{ACTOR}.kl_loss_coef",
    "kl_placement": f"{ACTOR}.use_kl_loss",
    "kl_estimator": f"{ACTOR}.kl_loss_type",
    "kl_reward_coefficient": "algorithm.kl_ctrl.kl_coef",
    "kl_reward_estimator": "algorithm.kl_penalty",
    "kl_controller": "algorithm.kl_ctrl.type",
    "kl_horizon": "algorithm.kl_ctrl.horizon",
    "kl_target": "algorithm.kl_ctrl.target_kl",
    "loads_reference": f"{ACTOR}.use_kl_loss",
    "loss_type": f"{ACTOR}.policy_loss.loss_mode",
    "loss_average": f"{ACTOR}.loss_agg_mode",
    "epsilon": f"{ACTOR}.clip_ratio_low",
    "epsilon_high": f"{ACTOR}.clip_ratio_high",
    "delta": f"{ACTOR}.clip_ratio_c",
    "scale_rewards": "algorithm.norm_adv_by_std_in_grpo",
    "learning_rate": f"{OPTIM}.lr",
    "lr_scheduler_type": f"{OPTIM}.lr_scheduler_type",
    "warmup_steps": f"{OPTIM}.lr_warmup_steps",
    "minimum_learning_rate_ratio": f"{OPTIM}.min_lr_ratio",
    "weight_decay": f"{OPTIM}.weight_decay",
    "max_grad_norm": f"{OPTIM}.clip_grad",
    "seed": "data.seed",
    "model_name_or_path": f"{MODEL}.path",
    "parameters": f"{MODEL}.path",
    "dataset_name": "data.train_files",
    "lora": f"{MODEL}.lora_rank",
    "temperature": f"{ROLLOUT}.temperature",
    "top_p": f"{ROLLOUT}.top_p",
    "top_k": f"{ROLLOUT}.top_k",
    "max_prompt_length": "data.max_prompt_length",
    "max_completion_length": "data.max_response_length",
    "vllm_tensor_parallel_size": f"{ROLLOUT}.tensor_model_parallel_size",
    "vllm_gpu_memory_utilization": f"{ROLLOUT}.gpu_memory_utilization",
    "max_batched_tokens": f"{ROLLOUT}.max_num_batched_tokens",
}


__all__ = [
    "ACTOR",
    "KEYS",
    "MODEL",
    "OPTIM",
    "REF",
    "ROLLOUT",
    "TRAITS",
    "engine_of",
    "native",
    "reading",
    "refills",
    "values_of",
]

MEGATRON = {"lr_scheduler_type": f"{OPTIM}.lr_decay_style"}
COUNTS = ("num_generations", "prompts_per_rollout", "prompts_per_step", "num_iterations", "max_prompt_length",
          "max_completion_length", "max_batched_tokens")  # fmt: skip
NUMBERS = ("learning_rate", "weight_decay", "max_grad_norm", "temperature", "top_p", "vllm_gpu_memory_utilization",
           "kl_horizon", "kl_target", "epsilon", "epsilon_high", "delta")  # fmt: skip
# What verl averages the loss over, as the losses of TRL that do the same.
AVERAGES = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo",
            "seq-mean-token-sum": "luspo"}  # fmt: skip
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"


def engine_of(recipe: Recipe) -> str:
    """Which of verl's configurations a recipe builds on: ``dp`` (FSDP) or ``megatron``."""
    config = recipe.config
    named = [config.get(f"{ACTOR}.strategy"), config.get("model_engine"), recipe.base]
    is_megatron = any("megatron" in str(name) for name in named) or any(f"{ACTOR}.megatron." in key for key in config)
    return "megatron" if is_megatron else "dp"


def values_of(recipe: Recipe) -> Values:
    """The values behind a recipe's keys, defaults filled in."""
    return collect(recipe, schema.verl(engine_of(recipe)), {})


def reading(recipe: Recipe) -> ParsedRecipe:
    """The setting, and what of it could not be read."""
    found = values_of(recipe)
    keys = keys_of(recipe, found)
    fields: dict[str, Any] = {name: found.whole(keys[name], 1) for name in COUNTS}
    fields |= {name: found.number(keys[name]) for name in NUMBERS}
    fields |= _topology(recipe, found) | _kl(found) | _loss(found) | _switches(found)
    fields |= optimizer_fields(found, f"{OPTIM}.betas", f"{ROLLOUT}.top_k")
    fields["delta"] = dual_clip(fields["delta"])
    fields |= model_fields(found.word(f"{MODEL}.path") if f"{MODEL}.path" in found.given else "")
    fields |= _sizes(fields, found)
    steps, ratio = found.number(f"{OPTIM}.lr_warmup_steps", -1), found.number(f"{OPTIM}.lr_warmup_steps_ratio")
    warmup = steps if steps > 0 else ratio
    rollouts = {
        "max_steps": found.get("trainer.total_training_steps", "int"),
        "warmup_steps": warmup,
        "save_steps": _frequency(found, "trainer.save_freq"),
        "eval_steps": _frequency(found, "trainer.test_freq"),
    }
    schedule = found.word(f"{OPTIM}.warmup_style") or found.word(keys["lr_scheduler_type"], "constant")
    fields |= {
        "epochs": found.get("trainer.total_epochs", "int"),
        "ends_with_epochs": True,
        "lr_scheduler_type": schedule_word(schedule, warmup),
        "minimum_learning_rate_ratio": found.get(f"{OPTIM}.min_lr_ratio", "float"),
        "evaluates": rollouts["eval_steps"] is not None,
        "eval_strategy": "no" if rollouts["eval_steps"] is None else "steps",
        "save_strategy": "no" if rollouts["save_steps"] is None else "steps",
    }
    return build(TRAITS, recipe, found, fields, keys, rollouts)


def keys_of(recipe: Recipe, found: Values) -> dict[str, str]:
    """The native key behind each field of one recipe."""
    keys = {**KEYS, **MEGATRON} if engine_of(recipe) == "megatron" else dict(KEYS)
    if found.whole(f"{ACTOR}.ulysses_sequence_parallel_size", 1) > 1:
        keys["sequence_parallel_size"] = f"{ACTOR}.ulysses_sequence_parallel_size"
    if f"{ACTOR}.ppo_micro_batch_size_per_gpu" not in found.given and f"{ACTOR}.ppo_micro_batch_size" in found.given:
        keys["per_device_train_batch_size"] = f"{ACTOR}.ppo_micro_batch_size"
    if found.number(f"{OPTIM}.lr_warmup_steps", -1) <= 0:
        keys["warmup_steps"] = f"{OPTIM}.lr_warmup_steps_ratio"
    if found.flag("algorithm.use_kl_in_reward") and not found.flag(f"{ACTOR}.use_kl_loss"):
        keys["kl_placement"] = keys["loads_reference"] = "algorithm.use_kl_in_reward"
    if "trainer.n_gpus_per_node" not in found.given and "trainer.nnodes" in found.given:
        keys["processes"] = "trainer.nnodes"
    return keys


def _topology(recipe: Recipe, found: Values) -> dict[str, Any]:
    """W, and what of it does not hold data of its own; ``vllm_tensor_parallel_size`` are the GPUs of one engine."""
    gpus = found.whole("trainer.nnodes", 1) * found.whole("trainer.n_gpus_per_node", 8)
    is_known = not found.bad & {"trainer.nnodes", "trainer.n_gpus_per_node"}
    ulysses = [found.whole(f"{ACTOR}.{place}ulysses_sequence_parallel_size", 1) for place in ("fsdp_config.", "")]
    engine = [found.whole(f"{ROLLOUT}.{name}", 1) for name in
              ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")]  # fmt: skip
    megatron = {
        f"{name}_parallel_size": found.whole(f"{ACTOR}.megatron.{word}", 1)
        for name, word in (
            ("tensor", "tensor_model_parallel_size"),
            ("pipeline", "pipeline_model_parallel_size"),
            ("context", "context_parallel_size"),
        )
    }
    is_megatron = engine_of(recipe) == "megatron"
    return {
        "processes": recipe.processes if recipe.processes is not None else gpus if is_known else None,
        "sequence_parallel_size": 1 if is_megatron else max(ulysses, key=lambda size: (size > 1, size)),
        "vllm_tensor_parallel_size": prod(engine),
        "engine": "megatron" if is_megatron else "fsdp",
        "use_vllm": True,
        "vllm_mode": "colocate",
        **(megatron if is_megatron else {}),
    }


def _sizes(fields: Mapping[str, Any], found: Values) -> dict[str, Any]:
    """Micro-batches: of so many completions, or, filled up to a number of tokens, of as many as surely fit in whole ones."""
    ranks = max((fields["processes"] or 1) // max(fields["sequence_parallel_size"], 1), 1)
    each = found.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu", "int")
    whole = found.get(f"{ACTOR}.ppo_micro_batch_size", "int")
    size = each if each is not None else max(whole // ranks, 1) if whole is not None else None
    length = fields["max_prompt_length"] + fields["max_completion_length"]
    if fields["dynamic_batching"]:
        step = fields["prompts_per_step"] * fields["num_generations"] // ranks
        most = max(found.whole(TOKENS, 16384) // max(length, 1), 1)
        size = next((n for n in range(min(most, step), 0, -1) if step % n == 0), 1)
    return {
        **({"prompts_per_rollout": _fully_asynchronous(found)} if fields["prompts_per_rollout"] == 0 else {}),
        "per_device_train_batch_size": 1 if size is None else size,
        "experience_batch_size": found.get(f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", "int"),
        "reference_batch_size": found.get(f"{REF}.log_prob_micro_batch_size_per_gpu", "int"),
        "prompts_per_generation": 1 if refills(found) else found.get("data.gen_batch_size", "int"),
    }


def _fully_asynchronous(found: Values) -> int:
    """The fully asynchronous trainer wants ``train_batch_size`` 0 and fetches of 1: it updates on so many steps' prompts.

    Source: verl experimental/fully_async_policy/fully_async_rollouter.py (required_samples).
    """
    if found.whole("data.gen_batch_size") != 1:
        return 0
    return found.whole(f"{ACTOR}.ppo_mini_batch_size", 256) * found.whole("async_training.require_batches", 1)


def refills(found: Values) -> bool:
    """Whether the trainer fetches prompts one by one, to replace groups that it drops, whatever ``gen_batch_size`` says."""
    is_synchronous = found.word("trainer.v1.trainer_mode", "sync") == "sync"
    wanted = ("algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups")
    return not is_synchronous or any(found.flag(key) for key in wanted)


def _switches(found: Values) -> dict[str, Any]:
    return {
        "dynamic_batching": found.flag(f"{ACTOR}.use_dynamic_bsz"),
        "offloads_parameters": found.flag(f"{ACTOR}.fsdp_config.param_offload"),
        "filters_groups": found.flag("algorithm.filter_groups.enable"),
        "removes_padding": found.flag(f"{MODEL}.use_remove_padding"),
        "lora": found.whole(f"{MODEL}.lora_rank") > 0 or found.whole(f"{MODEL}.lora.rank") > 0,
        "advantage_estimator": found.word("algorithm.adv_estimator"),
        "dataset_name": found.word("data.train_files") if "data.train_files" in found.given else None,
        "seed": found.get("data.seed", "int"),
    }


def _kl(found: Values) -> dict[str, Any]:
    """The two places of a KL term, each with its switch; a reference is loaded for either, whatever the coefficient."""
    in_loss, in_reward = found.flag(f"{ACTOR}.use_kl_loss"), found.flag("algorithm.use_kl_in_reward")
    place = {(True, True): "both", (True, False): "loss", (False, True): "reward"}.get((in_loss, in_reward), "none")
    fields: dict[str, Any] = {"kl_placement": place, "loads_reference": in_loss or in_reward}
    if in_loss:
        word = found.word(f"{ACTOR}.kl_loss_type")
        fields |= {"beta": found.number(f"{ACTOR}.kl_loss_coef"), "kl_estimator": ESTIMATORS.get(word, word)}
    if in_reward:
        word = found.word("algorithm.kl_penalty")
        fields |= {
            "kl_reward_coefficient": found.number("algorithm.kl_ctrl.kl_coef"),
            "kl_reward_estimator": ESTIMATORS.get(word, word),
            "kl_controller": found.word("algorithm.kl_ctrl.type"),
        }
    return fields


def _loss(found: Values) -> dict[str, Any]:
    """Losses in TRL's words: by what they average over, where the mode is the plain one."""
    mode, average = found.word(f"{ACTOR}.policy_loss.loss_mode", "vanilla"), found.word(f"{ACTOR}.loss_agg_mode")
    is_plain = mode in ("vanilla", "gspo")
    return {
        "loss_type": AVERAGES.get(average, average) if is_plain else mode,
        "loss_average": average,
        "importance_sampling_level": "sequence" if mode == "gspo" else "token",
        "scale_rewards": "group" if found.flag("algorithm.norm_adv_by_std_in_grpo", True) else "none",
    }


def _frequency(found: Values, key: str) -> int | None:
    """Every so many rollouts; -1 is never."""
    every = found.whole(key, -1)
    return every if every > 0 else None


def native(change: Mapping[str, Any], recipe: Recipe, setting: Setting) -> dict[str, Any] | None:
    """A change of fields as a change of verl's keys, None removing one; None where verl has no words for it."""
    values = values_of(recipe)
    found: dict[str, Any] = {}
    for name, value in change.items():
        said = _said(name, value, recipe, setting, values)
        if said is None:
            return None
        found |= said
    return {
        next((key for key in recipe.config if key.lstrip("+") == name), name): value for name, value in found.items()
    }


def _said(name: str, value: Any, recipe: Recipe, s: Setting, values: Values) -> dict[str, Any] | None:
    """One field in verl's words."""
    key = s.keys.get(name)
    if name == "processes":
        return gpu_change(value, recipe, values)
    if name == "kl_placement":
        return {
            f"{ACTOR}.use_kl_loss": value in ("loss", "both"),
            "algorithm.use_kl_in_reward": value in ("reward", "both"),
        }
    if key is None or name in ("parameters", "lora", "loss_type", "importance_sampling_level", "loads_reference"):
        return None
    if name == "max_steps" and value is not None:
        return {key: in_rollouts(s, value)}
    if name == "warmup_steps" and value >= 1:
        return {f"{OPTIM}.lr_warmup_steps": in_rollouts(s, value)}
    if name in ("kl_estimator", "kl_reward_estimator"):
        return {key: WORDS.get(value, value)}
    return {key: value == "group"} if name == "scale_rewards" else {key: value}
