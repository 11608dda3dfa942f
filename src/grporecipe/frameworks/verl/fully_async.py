"""Translate between verl's fully async policy and TRL's AsyncGRPOTrainer."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import yaml

from grporecipe.fields.reading import values_of
from grporecipe.files import parse_yaml
from grporecipe.model.framework import TranslatedRecipe, Values
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting

ASYNC_KEYS = ("max_staleness", "weight_sync_steps", "max_inflight_tasks", "queue_maxsize", "token_budget")  # TRL's

FULLY_ASYNC = "verl.experimental.fully_async_policy.fully_async_main"


def translate_asynchrony(written: TranslatedRecipe, s: Setting, recipe: Recipe, target: str) -> TranslatedRecipe:
    """Return a translation with the asynchronous mode of the other framework: AsyncGRPOTrainer, or verl's fully async policy.

    An optimizer step takes C completions: TRL's B A W, verl's ``ppo_mini_batch_size`` n. With one mini-batch at a time verl sends
    weights every ``trigger_parameter_sync_step`` optimizer steps, as TRL every ``weight_sync_steps``. Between two syncs verl
    trains on Q prompts, and at most (1 + ``staleness_threshold``) Q wait or are generated. So what is queued now is trained on
    within ``staleness_threshold`` syncs, rounded up, and TRL drops what is more than ``max_staleness`` syncs old.
    Sources: trl 1.16 experimental/async_grpo/async_grpo_trainer.py; verl 0.9.1 experimental/fully_async_policy
    (fully_async_rollouter.py set_max_required_samples, reset_staleness; config/fully_async_ppo_trainer.yaml).
    """
    values = values_of(recipe)
    if target == "trl" and "async_training.trigger_parameter_sync_step" in recipe.config:
        return replace(written, losses=(*written.losses, _as_async_config(values, s.num_generations)))
    if not s.asynchronous:
        return written
    if target != "verl":
        own = [f"{name}={recipe.config[name]}" for name in ASYNC_KEYS if name in recipe.config]
        lost = f"asynchronous training ({', '.join(own) or 'max_staleness=4'}): this recipe generates before each step"
        return replace(written, losses=(*written.losses, lost))
    stale, every = recipe.config.get("max_staleness", 4), recipe.config.get("weight_sync_steps", 1)
    content = parse_yaml(written.recipe)
    workers = content["actor_rollout_ref"]
    rollout, prompts = workers["rollout"], workers["actor"]["ppo_mini_batch_size"]
    content["data"] |= {"train_batch_size": 0, "gen_batch_size": 1}
    workers["hybrid_engine"] = False
    workers["actor"]["use_rollout_log_probs"] = True
    workers["model"]["use_remove_padding"] = True
    rollout |= {"calculate_log_probs": True, "checkpoint_engine": {"backend": "nccl"}}
    shape = {"nnodes": 1, "n_gpus_per_node": s.server_gpus or 1, "n": rollout["n"]}
    most = {"total_rollout_steps": s.max_steps * prompts} if s.max_steps and s.max_steps > 0 else {}
    sections = {
        "async_training": {**OF_FULLY_ASYNC, "staleness_threshold": stale, "trigger_parameter_sync_step": every},
        "rollout": {**shape, **most},
    }
    hydra = {"searchpath": ["pkg://verl.trainer.config"]}
    text = yaml.safe_dump({"hydra": hydra, **content, **sections}, sort_keys=False)
    losses = (
        f"max_staleness={stale}: TRL drops older completions; verl stops generating at (1 + {stale}) x {every} x {prompts} = "
        f"{(1 + stale) * every * prompts} prompts, which gives the same bound except for generations that span several syncs",
        f"max_inflight_tasks and queue_maxsize: verl generates {OF_FULLY_ASYNC['concurrent_samples_per_replica']} prompts at "
        "once on each engine, and queues as many as it may generate",
        f"rollout.n_gpus_per_node: {shape['n_gpus_per_node']} is written. Set how many GPUs generate",
    )
    command = tuple(FULLY_ASYNC if word == "verl.trainer.main_ppo" else word for word in written.command)
    return replace(written, recipe=text, command=command, losses=(*written.losses, *losses))


def _as_async_config(values: Values, generations: int) -> str:
    """Return a line that says how AsyncGRPOConfig sets what verl's fully async policy does."""
    syncs, batches = (values.whole(f"async_training.{name}", default) for name, default in
                      (("trigger_parameter_sync_step", 4), ("require_batches", 1)))  # fmt: skip
    threshold, prompts = values.number(STALENESS, 0.1), values.whole("actor_rollout_ref.actor.ppo_mini_batch_size", 256)
    return (
        "asynchronous training: this is for TRL's synchronous trainer; no command starts AsyncGRPOTrainer. In a script set "
        f"AsyncGRPOConfig(max_staleness={ceil(threshold)}, weight_sync_steps={syncs} x {batches} = {syncs * batches}, "
        f"token_budget=0) with {prompts} x {generations} = {prompts * generations} completions per optimizer step. "
        f"staleness_threshold={threshold:g} bounds how much is stale, max_staleness only how old it is"
    )


STALENESS = "async_training.staleness_threshold"

OF_FULLY_ASYNC: Mapping[str, Any] = {  # the rest of what verl's own configuration of this trainer has
    "require_batches": 1, "partial_rollout": True, "use_trainer_do_validate": False,
    "use_dynamic_resource_scheduling": False, "dynamic_schedule_policy": "default",
    "dynamic_schedule_deactivate_ratio": 0.3, "dynamic_schedule_enable_rebalance": True,
    "concurrent_samples_per_replica": 16,
}  # fmt: skip
