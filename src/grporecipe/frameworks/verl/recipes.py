"""Read and write verl's recipes: Hydra overrides on its composed configuration. Written ones state
every relevant number.

Sources: verl 0.9.1 trainer/main_ppo.py, trainer/config/_generated_ppo_trainer.yaml (and
_megatron_), utils/config.py, workers/config/actor.py, workers/engine_workers.py,
trainer/ppo/v1/trainer_base.py, trainer/ppo/core_algos.py; hydra's ``--config-dir`` adds a folder in
which Hydra finds the defaults of a configuration.
"""

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from grporecipe.fields import dotted
from grporecipe.fields.dotted import NEVER_CLIPPED, clip, estimator_word, frequency, top_k, unless
from grporecipe.fields.lora import lora_rows, one_name
from grporecipe.fields.reading import values_of
from grporecipe.fields.writing import warmup_change
from grporecipe.files import Config, read_own_yaml, without
from grporecipe.frameworks.verl.keys import (
    ACTOR,
    AGENTS,
    CONTROL,
    GROUP,
    HOLDS_A_STEP,
    MEGATRON,
    MODEL,
    OPTIM,
    REWARD_SWITCH,
    ROLLOUT,
    engine_of,
    is_own_trainer,
    known_keys,
)
from grporecipe.model.framework import Field, NativeChange, Values, table_of
from grporecipe.model.recipe import Recipe
from grporecipe.model.values import Fields, model_size
from grporecipe.project.repository import LARGEST_SOURCE, find_program, head_of


def _scaling(is_scaled: bool) -> str:
    return "group" if is_scaled else "none"


# the rows that need code; the others and the order are in fields.yaml
OWN = (
    Field(
        "scale_rewards",
        "algorithm.norm_adv_by_std_in_grpo",
        "bool",
        True,
        read=_scaling,
        write=lambda scaling: scaling != "none",
    ),
    Field("kl_estimator", f"{ACTOR}.kl_loss_type", write=estimator_word),
    Field("kl_reward_estimator", "algorithm.kl_penalty", write=estimator_word),
    Field(
        "epsilon",
        f"{ACTOR}.clip_ratio_low",
        "float",
        0.0,
        before={(0, 4, 0): f"{ACTOR}.clip_ratio"},
    ),
    Field(
        "epsilon_high",
        f"{ACTOR}.clip_ratio_high",
        "float",
        0.0,
        before={(0, 4, 0): f"{ACTOR}.clip_ratio"},
    ),
    # before 0.4 there is no dual clip
    clip(f"{ACTOR}.clip_ratio_c", NEVER_CLIPPED),
    unless("entropy_coef", f"{ACTOR}.entropy_coeff", 0.0),
    unless("sapo_temperature_pos", f"{ACTOR}.tau_pos", 1.0),
    unless("sapo_temperature_neg", f"{ACTOR}.tau_neg", 1.05),
    Field(
        "max_grad_norm",
        f"{OPTIM}.clip_grad",
        "float",
        0.0,
        before={(0, 8, 0): f"{ACTOR}.grad_clip"},
    ),
    frequency("save_steps", "trainer.save_freq"),
    frequency("eval_steps", "trainer.test_freq"),
    Field(
        "lr_scheduler_type",
        f"{OPTIM}.lr_scheduler_type",
        before={(0, 6, 0): f"{OPTIM}.warmup_style"},
    ),
    Field("dataset_name", "data.train_files", "any", read=one_name, judged=False),
    Field("eval_dataset_name", "data.val_files", "any", read=one_name, judged=False),
    *lora_rows(f"{MODEL}.lora_rank", f"{MODEL}.lora_alpha", f"{MODEL}.target_modules", 16),
    top_k(f"{ROLLOUT}.top_k"),
)
FIELDS = table_of(read_own_yaml(__file__, "fields.yaml")["fields"], OWN)
# verl's ways to average the loss, with the loss of TRL that does the same.
AVERAGES = {
    "token-mean": "dapo",
    "seq-mean-token-mean": "grpo",
    "seq-mean-token-sum-norm": "dr_grpo",
    "seq-mean-token-sum": "luspo",
}
SHARED = {
    "tensor_parallel_size": "tensor_model_parallel_size",
    "pipeline_parallel_size": "pipeline_model_parallel_size",
    "context_parallel_size": "context_parallel_size",
}
DISTILLATION = "distillation.distillation_loss"
TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
# before, a size is refused only where it is used
CHECKED_AT_START = (0, 2, 0)
PROGRAM_VALIDATES = (0, 6, 0)


def keys_of(values: Values) -> dict[str, str]:
    """Return the native keys that depend on the recipe's other keys."""
    keys = dotted.key_of_gpus(values)
    if engine_of(values.recipe) == "megatron":
        keys["lr_scheduler_type"] = f"{OPTIM}.lr_decay_style"
    if values.whole(f"{ACTOR}.ulysses_sequence_parallel_size", 1) > 1:
        keys["sequence_parallel_size"] = f"{ACTOR}.ulysses_sequence_parallel_size"
    if (
        f"{ACTOR}.ppo_micro_batch_size_per_gpu" not in values.given
        and f"{ACTOR}.ppo_micro_batch_size" in values.given
    ):
        keys["per_device_train_batch_size"] = f"{ACTOR}.ppo_micro_batch_size"
    if values.number(f"{OPTIM}.lr_warmup_steps", -1) <= 0:
        keys["warmup_steps"] = f"{OPTIM}.lr_warmup_steps_ratio"
    if kl_places(values) == (False, True) and has_reward_switch(values):
        keys["kl_placement"] = keys["loads_reference"] = REWARD_SWITCH
    return keys


def derive_topology(values: Values, _: Config) -> Fields:
    """Return the parallel sizes. ``vllm_tensor_parallel_size`` is the number of GPUs of one
    engine.
    """
    kinds = ("tensor_model", "data", "pipeline_model")
    engine = prod(values.whole(f"{ROLLOUT}.{kind}_parallel_size", 1) for kind in kinds)
    if engine_of(values.recipe) == "megatron":
        sizes = {name: values.whole(f"{MEGATRON}.{key}", 1) for name, key in SHARED.items()}
        own: Fields = {"engine": "megatron", "sequence_parallel_size": 1, **sizes}
    else:
        size = values.whole(f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size", 1)
        older = values.whole(f"{ACTOR}.ulysses_sequence_parallel_size", 1)
        own = {"engine": "fsdp", "sequence_parallel_size": max(size, older)}
    return {**own, "vllm_tensor_parallel_size": engine}


def derive_sizes(values: Values, fields: Config) -> Fields:
    """Return the micro-batch in completions. If it is filled by tokens, return the number of
    completions that always fit.
    """
    ranks = max((fields["processes"] or 1) // max(fields["sequence_parallel_size"], 1), 1)
    whole = values.get(f"{ACTOR}.ppo_micro_batch_size", "int")
    usual = 1 if whole is None else max(whole // ranks, 1)
    size = values.get(f"{ACTOR}.ppo_micro_batch_size_per_gpu", "int", usual)
    length = fields["max_prompt_length"] + fields["max_completion_length"]
    if fields["dynamic_batching"]:
        step = fields["prompts_per_step"] * fields["num_generations"] // ranks
        most = max(values.whole(TOKENS, 16384) // max(length, 1), 1)
        size = next((n for n in range(min(most, step), 0, -1) if step % n == 0), 1)
    sizes: Fields = {
        "per_device_train_batch_size": size,
        "prompts_per_generation": values.get("data.gen_batch_size", "int"),
    }
    if refills(values):
        sizes["prompts_per_generation"] = 1
    if fields["prompts_per_rollout"] == 0:
        sizes["prompts_per_rollout"] = _fully_asynchronous(values)
    if values.flag("trainer.val_only") and values.recipe.version < CHECKED_AT_START:
        sizes["prompts_per_rollout"] = None
    return sizes


def _own_program(recipe: Recipe) -> str:
    """Return the program of the repository that starts a trainer of its own without verl's
    validation; empty if another one is launched.

    Before 0.6 the trainer itself validates, also one that is derived from verl's; a copy next to
    the program may not.
    """
    if is_own_trainer(recipe) or not recipe.launch or not recipe.file:
        return ""
    program = recipe.launch.program
    path = find_program(program, Path(recipe.file))
    if path is None:
        return ""
    if recipe.version < PROGRAM_VALIDATES:
        text = head_of(path.with_name("ray_trainer.py"), LARGEST_SOURCE)
        is_own = text and not re.search(HOLDS_A_STEP, text)
    else:
        text = head_of(path)
        validates = any(word in text for word in ("validate_config", "main_ppo import", "run_ppo("))
        is_own = "RayPPOTrainer" in text and not validates
    return program if is_own else ""


def _fully_asynchronous(values: Values) -> int:
    """Return the prompts of a rollout of the fully asynchronous trainer.

    It requires ``train_batch_size`` 0 and ``gen_batch_size`` 1, and updates on the prompts of a
    number of steps.

    Source: verl experimental/fully_async_policy/fully_async_rollouter.py (required_samples).
    """
    if values.whole("data.gen_batch_size") != 1:
        return 0
    return values.whole(f"{ACTOR}.ppo_mini_batch_size", 256) * values.whole(
        "async_training.require_batches", 1
    )


def refills(values: Values) -> bool:
    """Return whether prompts are fetched one by one to replace dropped groups, so that
    ``gen_batch_size`` has no effect.
    """
    is_synchronous = values.word("trainer.v1.trainer_mode", "sync") == "sync"
    wanted = ("algorithm.filter_groups.enable", "trainer.v1.sampler.sync_refill_failed_groups")
    return not is_synchronous or any(map(values.flag, wanted))


def derive_groups(values: Values, fields: Config) -> Fields:
    """Return the group size, and the advantage estimator if a group of one is intended.

    Search-R1 and its forks repeat a prompt before ``rollout.n``, and count ``ppo_mini_batch_size``
    after that. PRIME samples ``data.n_samples`` completions. Distillation without task rewards has
    no advantages; another trainer may form groups of its own.
    """
    agents = values.whole(AGENTS[0], 1)
    step = fields["prompts_per_step"]
    group = fields["num_generations"]
    if agents > 1 and step % agents == 0:
        return {"num_generations": group * agents, "prompts_per_step": step // agents}
    if group != 1:
        return {}
    scores = values.flag(f"{DISTILLATION}.use_task_rewards", True)
    has_samples = any(values.whole(key, 1) > 1 for key in (*AGENTS, "data.n_samples"))
    if values.flag("distillation.enabled") and not scores:
        return {"advantage_estimator": "distillation"}
    if has_samples or not is_own_trainer(values.recipe):
        return {"advantage_estimator": "the trainer's own"}
    return {}


def sized_elsewhere(recipe: Recipe) -> Mapping[str, str]:
    """Return the keys whose meaning or check the trainer's own source changes, with the place.

    A step of Search-R1 is whole groups if ``n_agent`` divides it. One of verl-agent is of turns,
    whose number only the run knows.
    """
    values = values_of(recipe)
    counts = [values.whole(key, 1) for key in AGENTS]
    places = recipe.assumed
    if program := _own_program(recipe):
        own = "starts a trainer of its own, without verl's checks"
        places = {"data.train_batch_size": f"{program} {own}", **places}
    if max(counts) <= 1:
        return places
    rest = values.whole(f"{ACTOR}.ppo_mini_batch_size", 256) % counts[0]
    if rest == 0 and counts[1] <= 1:
        return without(places, (GROUP,))
    return {GROUP: f"{AGENTS[counts[1] > 1]} sizes groups", **places}


def has_reward_switch(values: Values) -> bool:
    """Return whether KL in the reward has its own switch (since 0.4). Before, it is on if KL is not
    in the loss.
    """
    return REWARD_SWITCH in values.given or REWARD_SWITCH in known_keys(values.recipe)


def kl_places(values: Values) -> tuple[bool, bool]:
    """Return whether KL is in the loss, and whether it is in the reward."""
    in_loss = values.flag(f"{ACTOR}.use_kl_loss")
    if has_reward_switch(values):
        return in_loss, values.flag(REWARD_SWITCH)
    return in_loss, not in_loss


def derive_kl(values: Values, _: Config) -> Fields:
    """Return the fields of KL, which has a switch for each place. Either one loads a reference,
    even with coefficient 0.
    """
    in_loss, in_reward = kl_places(values)
    places = {(True, True): "both", (True, False): "loss", (False, True): "reward"}
    place = places.get((in_loss, in_reward), "none")
    loads = place != "none" and is_own_trainer(values.recipe)
    fields: Fields = {"kl_placement": place, "loads_reference": loads}
    if in_loss:
        word = values.word(f"{ACTOR}.kl_loss_type")
        fields |= {
            "beta": values.number(f"{ACTOR}.kl_loss_coef"),
            "kl_estimator": dotted.ESTIMATORS.get(word, word),
        }
    if in_reward:
        word = values.word("algorithm.kl_penalty")
        fields |= {
            "kl_reward_coefficient": values.number(f"{CONTROL}.kl_coef"),
            "kl_reward_estimator": dotted.ESTIMATORS.get(word, word),
            "kl_controller": values.word(f"{CONTROL}.type"),
        }
    return fields


def derive_loss(values: Values, _: Config) -> Fields:
    """Return the loss in TRL's terms. For verl's plain loss mode, the way of averaging decides."""
    mode = values.word(f"{ACTOR}.policy_loss.loss_mode", "vanilla")
    average = values.word(f"{ACTOR}.loss_agg_mode", "token-mean")
    fields = {"loss_type": mode, "importance_sampling_level": "token"}
    if mode in ("vanilla", "gspo"):
        fields["loss_type"] = AVERAGES.get(average, average)
    if mode == "gspo":
        fields["importance_sampling_level"] = "sequence"
    return fields


def derive_length(values: Values, fields: Config) -> Fields:
    """Return model, data and schedule, if the recipe names them."""
    path = ""
    if f"{MODEL}.path" in values.given:
        path = fields["model_name_or_path"]
    warmup = values.number(f"{OPTIM}.lr_warmup_steps", -1)
    if warmup <= 0:
        warmup = values.number(f"{OPTIM}.lr_warmup_steps_ratio")
    schedule = f"{OPTIM}.lr_scheduler_type"
    if engine_of(values.recipe) == "megatron":
        schedule = f"{OPTIM}.lr_decay_style"
    older = values.word(f"{OPTIM}.warmup_style")
    length: Fields = {
        "model_name_or_path": path or None,
        "parameters": model_size(path),
        "warmup_steps": warmup,
        "ends_with_epochs": True,
        "lr_scheduler_type": older or values.word(schedule, "constant"),
    }
    if "data.train_files" not in values.given:
        length["dataset_name"] = None
    if "data.val_files" not in values.given:
        length["eval_dataset_name"] = None
    # of Megatron's section
    rank = values.whole(f"{MODEL}.lora.rank")
    if rank > 0:
        alpha = values.number(f"{MODEL}.lora.alpha", 32.0)
        length |= {"lora": True, "lora_rank": rank, "lora_alpha": alpha}
    return length


DERIVED = (
    dotted.derive_processes,
    derive_topology,
    derive_groups,
    derive_kl,
    derive_loss,
    derive_length,
    derive_sizes,
    dotted.derive_shared(f"{OPTIM}.betas"),
)


def _placed(value: Any, recipe: Recipe, *_: Any) -> Fields | None:
    if not has_reward_switch(values_of(recipe)):
        if value in ("loss", "reward"):
            return {f"{ACTOR}.use_kl_loss": value == "loss"}
        return None
    return {
        f"{ACTOR}.use_kl_loss": value in ("loss", "both"),
        REWARD_SWITCH: value in ("reward", "both"),
    }


SPECIAL: dict[str, NativeChange] = {
    "processes": dotted.change_gpus,
    "kl_placement": _placed,
    "warmup_steps": warmup_change(f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps_ratio"),
}
