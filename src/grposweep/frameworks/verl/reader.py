"""Read verl's recipes: Hydra overrides over its composed configuration.

Sources: verl 0.9.1 trainer/main_ppo.py, trainer/config/_generated_ppo_trainer.yaml (and _megatron_), utils/config.py,
workers/config/actor.py, workers/engine_workers.py, trainer/ppo/v1/trainer_base.py.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from grposweep.frameworks.base import Framework, NativeChange, ParsedRecipe, model_size
from grposweep.frameworks.dotted import ESTIMATORS, finish, gpu_change, processes_of, warmup_change
from grposweep.frameworks.fields import Values, collect, read_rows
from grposweep.frameworks.verl.keys import ACTOR, CONTROL, MODEL, OPTIM, ROLLOUT, engine_of, known
from grposweep.recipe import Recipe

# What verl averages the loss over, as the losses of TRL that do the same.
AVERAGES = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo",
            "seq-mean-token-sum": "luspo"}  # fmt: skip
SHARED = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")  # by Megatron
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"


def values_of(recipe: Recipe) -> Values:
    """Return the values behind a recipe's keys, defaults filled in."""
    return collect(recipe, known(engine_of(recipe)), {})


def parse(framework: Framework, recipe: Recipe) -> ParsedRecipe:
    """Return the setting, and what of it could not be read."""
    found = values_of(recipe)
    keys = keys_of(framework, recipe, found)
    fields = read_rows(framework, found, keys)
    path = fields["model_name_or_path"] if f"{MODEL}.path" in found.given else ""
    fields |= _topology(recipe, found, keys) | _kl(found) | _loss(found)
    steps, ratio = found.number(f"{OPTIM}.lr_warmup_steps", -1), found.number(f"{OPTIM}.lr_warmup_steps_ratio")
    fields |= {
        "model_name_or_path": path or None,
        "parameters": model_size(path),
        "dataset_name": fields["dataset_name"] if "data.train_files" in found.given else None,
        "lora": fields["lora"] or found.whole(f"{MODEL}.lora.rank") > 0,
        "warmup_steps": steps if steps > 0 else ratio,
        "ends_with_epochs": True,
        "lr_scheduler_type": found.word(f"{OPTIM}.warmup_style") or found.word(keys["lr_scheduler_type"], "constant"),
    }
    fields |= _sizes(fields, found)
    return finish(framework, recipe, found, keys, fields, f"{OPTIM}.betas")


def keys_of(framework: Framework, recipe: Recipe, found: Values) -> dict[str, str]:
    """Return the native key behind each field of one recipe."""
    keys = framework.keys_at(recipe.version)
    if engine_of(recipe) == "megatron":
        keys["lr_scheduler_type"] = f"{OPTIM}.lr_decay_style"
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


def _topology(recipe: Recipe, found: Values, keys: Mapping[str, str]) -> dict[str, Any]:
    """W, and what of it does not hold data of its own; ``vllm_tensor_parallel_size`` are the GPUs of one engine."""
    ulysses = [found.whole(f"{ACTOR}.{place}ulysses_sequence_parallel_size", 1) for place in ("fsdp_config.", "")]
    engine = [found.whole(f"{ROLLOUT}.{name}", 1) for name in
              ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")]  # fmt: skip
    is_megatron = engine_of(recipe) == "megatron"
    return {
        "processes": processes_of(recipe, found),
        "sequence_parallel_size": 1 if is_megatron else max(ulysses, key=lambda size: (size > 1, size)),
        "vllm_tensor_parallel_size": prod(engine),
        "engine": "megatron" if is_megatron else "fsdp",
        **({name: found.whole(keys[name], 1) for name in SHARED} if is_megatron else {}),
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
            "kl_reward_coefficient": found.number(f"{CONTROL}.kl_coef"),
            "kl_reward_estimator": ESTIMATORS.get(word, word),
            "kl_controller": found.word(f"{CONTROL}.type"),
        }
    return fields


def _loss(found: Values) -> dict[str, Any]:
    """Losses in TRL's words: by what they average over, where the mode is the plain one."""
    mode, average = found.word(f"{ACTOR}.policy_loss.loss_mode", "vanilla"), found.word(f"{ACTOR}.loss_agg_mode")
    is_plain = mode in ("vanilla", "gspo")
    return {
        "loss_type": AVERAGES.get(average, average) if is_plain else mode,
        "importance_sampling_level": "sequence" if mode == "gspo" else "token",
    }


def _placed(value: Any, *_: Any) -> dict[str, Any]:
    return {
        f"{ACTOR}.use_kl_loss": value in ("loss", "both"),
        "algorithm.use_kl_in_reward": value in ("reward", "both"),
    }


SPECIAL: dict[str, NativeChange] = {
    "processes": gpu_change(values_of),
    "kl_placement": _placed,
    "warmup_steps": warmup_change(f"{OPTIM}.lr_warmup_steps"),
}
