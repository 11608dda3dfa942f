"""Write a setting as a recipe for verl: a configuration over its own, every number that decides the training explicit.

Sources: verl 0.9.1 trainer/config/ppo_trainer.yaml, trainer/ppo/core_algos.py; hydra's ``--config-dir`` adds a folder to
those in which the defaults of a configuration are looked for.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any

from grposweep.frameworks.base import Framework, TranslatedRecipe
from grposweep.frameworks.dotted import (
    PROMPT_TOKENS,
    betas_of,
    common_losses,
    estimator,
    estimator_word,
    fitting,
    nodes,
    rollouts,
    scheduler,
    warmup,
    write_common,
)
from grposweep.frameworks.fields import overlay, render_keys
from grposweep.frameworks.units import in_prompts
from grposweep.frameworks.verl.keys import ACTOR, OPTIM, ROLLOUT, TRAITS
from grposweep.setting import Setting

COMMAND = ("python3", "-m", "verl.trainer.main_ppo", "--config-dir", ".", "--config-name", "recipe")
AVERAGES = {"dapo": "token-mean", "bnpo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm",
            "luspo": "seq-mean-token-sum"}  # fmt: skip
MODES = ("cispo", "sapo", "gspo", "dppo_tv", "dppo_kl", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "bypass_mode")


def render(framework: Framework, setting: Setting) -> TranslatedRecipe:
    """Return a recipe for verl 0.9.1, its launch command, and what it cannot say."""
    s, lost = in_prompts(setting)
    base = "ppo_megatron_trainer" if s.engine == "megatron" else "ppo_trainer"
    fields = {**write_common(s), **_sizes(s), **_parallel(s), **_objective(s), **_schedule(s)}
    text = render_keys(framework, {"defaults": [base, "_self_"], **overlay(framework, s, fields, _keys(s))})
    losses = (*lost, *rollouts(s)[1], *_losses(s), *common_losses(s, "verl"))
    return TranslatedRecipe(text, "recipe.yaml", COMMAND, losses=losses)


def _sizes(s: Setting) -> dict[str, Any]:
    step = s.prompts_per_step or 1
    whole = ceil((s.prompts_per_rollout or step) / step) * step  # as verl pads it
    per_rank = whole * s.num_generations // max(s.data_processes or 1, 1)
    wanted = s.experience_batch_size or s.per_device_train_batch_size
    return {
        "prompts_per_generation": s.prompts_per_generation,
        "per_device_train_batch_size": s.per_device_train_batch_size,
        "experience_batch_size": fitting(per_rank, wanted),
        "reference_batch_size": fitting(per_rank, s.reference_batch_size or wanted),
        # These are left to verl.
        "offloads_parameters": None,
        "removes_padding": None,
        "max_batched_tokens": None,
    }


def _parallel(s: Setting) -> dict[str, Any]:
    names = ("tensor", "pipeline", "context") if s.engine == "megatron" else ("sequence",)
    return {f"{name}_parallel_size": getattr(s, f"{name}_parallel_size") for name in names}


def _objective(s: Setting) -> dict[str, Any]:
    """Return KL in either place with its own coefficient, and the loss."""
    in_loss = s.kl_placement in ("loss", "both") and (s.beta != 0 or s.framework == TRAITS)
    in_reward = s.kl_placement in ("reward", "both")
    name = estimator(s) or "k3"
    mode = "gspo" if s.importance_sampling_level == "sequence" else s.loss_type if s.loss_type in MODES else "vanilla"
    average = s.loss_average if s.framework == TRAITS else AVERAGES.get(s.loss_type, "token-mean")
    found: dict[str, Any] = {
        "kl_placement": in_loss, "loss_type": mode, "loss_average": average or "token-mean",
        "kl_horizon": s.kl_horizon if in_reward else None, "kl_target": s.kl_target if in_reward else None,
    }  # fmt: skip
    if in_loss:
        found |= {"beta": float(s.beta), "kl_estimator": "low_var_kl+" if name == "k3+" else estimator_word(name)}
    if in_reward:
        found |= {
            "kl_reward_coefficient": float(s.kl_reward_coefficient),
            "kl_controller": s.kl_controller,
            "kl_reward_estimator": estimator_word(s.kl_reward_estimator or "k1"),
        }
    return found


def _schedule(s: Setting) -> dict[str, Any]:
    """Return the length; verl stops with its epochs, so there are as many as the rollouts could ever need."""
    count = rollouts(s)[0]
    found: dict[str, Any] = {"epochs": count} if count is not None and s.framework != TRAITS else {}
    if s.engine == "megatron":
        found |= {"lr_scheduler_type": None, "minimum_learning_rate_ratio": None}
    steps = warmup(s)[0]
    return {**found, "warmup_steps": -1 if steps is None else steps}


def _keys(s: Setting) -> dict[str, Any]:
    """Return what no single field says, by key."""
    longest = (s.max_prompt_length or PROMPT_TOKENS) + s.max_completion_length
    return {
        # With dynamic micro-batches, the tokens of as many completions as a fixed one would hold.
        f"{ACTOR}.ppo_max_token_len_per_gpu": s.per_device_train_batch_size * longest if s.dynamic_batching else None,
        "trainer.nnodes": nodes(s.processes or 1)[0],
        "algorithm.use_kl_in_reward": s.kl_placement in ("reward", "both"),
        f"{OPTIM}.lr_decay_style": scheduler(s)[0] if s.engine == "megatron" else None,
        f"{OPTIM}.lr_warmup_steps_ratio": warmup(s)[1],
        f"{OPTIM}.betas": betas_of(s),
        "data.filter_overlong_prompts": True,
        f"{ROLLOUT}.name": "vllm",
    }


def _losses(s: Setting) -> Iterator[str]:
    """Yield what verl cannot do, or does otherwise."""
    yield from warmup(s)[2]
    yield from scheduler(s)[1]
    if s.kl_placement in ("loss", "both") and s.beta and s.kl_estimator is None and s.use_bias_correction_kl:
        yield "the KL estimator is low_var_kl+, whose gradient is that of k3 weighed by the importance ratio, on-policy only"
    if s.loss_type == "bnpo":
        yield "loss_type=bnpo: verl takes the token mean over all ranks"
    if s.framework != TRAITS and s.loss_type not in (*AVERAGES, *MODES):
        yield f"loss_type={s.loss_type}: verl has no such loss; its token mean is written"
    if s.epochs and s.epochs != int(s.epochs) and rollouts(s)[0] is None:
        yield f"{s.epochs:g} epochs: verl counts whole epochs, and without --dataset-size steps are not known"
    if s.dataset_name:
        yield f"data.train_files={s.dataset_name}: verl reads parquet files with its own columns"
