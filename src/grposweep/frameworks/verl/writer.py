"""A setting as a recipe for verl: a configuration over its own, every number that decides the training explicit.

Sources: verl 0.9.1 trainer/config/ppo_trainer.yaml, trainer/ppo/core_algos.py; hydra's ``--config-dir`` adds a folder to
those in which the defaults of a configuration are looked for.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any

import yaml

from grposweep.frameworks.base import TranslatedRecipe
from grposweep.frameworks.dotted import NEVER_CLIPPED, WORDS
from grposweep.frameworks.units import (
    common_losses,
    estimator,
    every,
    fitting,
    in_prompts,
    nested,
    nodes,
    rollouts,
    scheduler,
    warmup,
)
from grposweep.frameworks.verl.reader import ACTOR, MODEL, OPTIM, REF, ROLLOUT, TRAITS
from grposweep.setting import Setting

COMMAND = ("python3", "-m", "verl.trainer.main_ppo", "--config-dir", ".", "--config-name", "recipe")
AVERAGES = {"dapo": "token-mean", "bnpo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "seq-mean-token-sum-norm",
            "luspo": "seq-mean-token-sum"}  # fmt: skip
MODES = ("cispo", "sapo", "gspo", "dppo_tv", "dppo_kl", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "bypass_mode")


def write(setting: Setting) -> TranslatedRecipe:
    """A recipe for verl 0.9.1, its launch command, and what it cannot say."""
    s, lost = in_prompts(setting)
    base = "ppo_megatron_trainer" if s.engine == "megatron" else "ppo_trainer"
    keys = {**_sizes(s), **_objective(s), **_schedule(s), **_model(s)}
    content = {"defaults": [base, "_self_"], **nested(keys)}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return TranslatedRecipe(
        text, "recipe.yaml", COMMAND, losses=(*lost, *rollouts(s)[1], *_losses(s), *common_losses(s, "verl"))
    )


def _sizes(s: Setting) -> dict[str, Any]:
    count, each = nodes(s.processes or 1)
    step = s.prompts_per_step or 1
    whole = ceil((s.prompts_per_rollout or step) / step) * step  # as verl pads it
    per_rank = whole * s.num_generations // max(s.data_processes or 1, 1)
    wanted = s.experience_batch_size or s.per_device_train_batch_size
    experience, reference = fitting(per_rank, wanted), fitting(per_rank, s.reference_batch_size or wanted)
    return {
        "data.train_batch_size": s.prompts_per_rollout,
        "data.gen_batch_size": s.prompts_per_generation,
        f"{ROLLOUT}.n": s.num_generations,
        f"{ACTOR}.ppo_mini_batch_size": s.prompts_per_step,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": s.per_device_train_batch_size,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": experience,
        f"{REF}.log_prob_micro_batch_size_per_gpu": reference,
        f"{ACTOR}.use_dynamic_bsz": s.dynamic_batching,
        **_tokens(s),
        f"{ACTOR}.ppo_epochs": s.num_iterations,
        **_parallel(s),
        "trainer.nnodes": count,
        "trainer.n_gpus_per_node": each,
    }


def _tokens(s: Setting) -> dict[str, Any]:
    """With dynamic micro-batches, the tokens of as many completions as a fixed one would hold."""
    if not s.dynamic_batching:
        return {}
    longest = (s.max_prompt_length or 2048) + s.max_completion_length
    return {f"{ACTOR}.ppo_max_token_len_per_gpu": s.per_device_train_batch_size * longest}


def _parallel(s: Setting) -> dict[str, Any]:
    if s.engine == "megatron":
        return {
            f"{ACTOR}.megatron.tensor_model_parallel_size": s.tensor_parallel_size,
            f"{ACTOR}.megatron.pipeline_model_parallel_size": s.pipeline_parallel_size,
            f"{ACTOR}.megatron.context_parallel_size": s.context_parallel_size,
        }
    return {f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": s.sequence_parallel_size}


def _objective(s: Setting) -> dict[str, Any]:
    """KL in either place with its own coefficient, the loss and its clips."""
    in_loss = s.kl_placement in ("loss", "both") and (s.beta != 0 or s.framework == TRAITS)
    name = estimator(s) or "k3"
    average = s.loss_average if s.framework == TRAITS else AVERAGES.get(s.loss_type, "token-mean")
    mode = "gspo" if s.importance_sampling_level == "sequence" else s.loss_type if s.loss_type in MODES else "vanilla"
    found: dict[str, Any] = {
        "algorithm.adv_estimator": s.advantage_estimator,
        "algorithm.norm_adv_by_std_in_grpo": s.scale_rewards != "none",
        "algorithm.use_kl_in_reward": s.kl_placement in ("reward", "both"),
        "algorithm.filter_groups.enable": s.filters_groups,
        f"{ACTOR}.use_kl_loss": in_loss,
    }
    if in_loss:
        word = "low_var_kl+" if name == "k3+" else WORDS.get(name, name)
        found |= {f"{ACTOR}.kl_loss_coef": float(s.beta), f"{ACTOR}.kl_loss_type": word}
    if found["algorithm.use_kl_in_reward"]:
        reward = s.kl_reward_estimator or "k1"
        found |= {
            "algorithm.kl_ctrl.kl_coef": float(s.kl_reward_coefficient),
            "algorithm.kl_ctrl.type": s.kl_controller,
            "algorithm.kl_ctrl.horizon": s.kl_horizon,
            "algorithm.kl_ctrl.target_kl": s.kl_target,
            "algorithm.kl_penalty": WORDS.get(reward, reward),
        }
    return {
        **found,
        f"{ACTOR}.policy_loss.loss_mode": mode,
        f"{ACTOR}.loss_agg_mode": average or "token-mean",
        f"{ACTOR}.clip_ratio_low": s.epsilon,
        f"{ACTOR}.clip_ratio_high": s.epsilon if s.epsilon_high is None else s.epsilon_high,
        f"{ACTOR}.clip_ratio_c": NEVER_CLIPPED if s.delta is None else s.delta,
        f"{OPTIM}.clip_grad": s.max_grad_norm,
    }


def _schedule(s: Setting) -> dict[str, Any]:
    """verl stops with its epochs, so there are as many as the rollouts could ever need."""
    steps, share, _ = warmup(s)
    count = rollouts(s)[0]
    epochs = max(int(s.epochs), 1) if s.epochs else None
    if count is not None and s.framework != TRAITS:
        epochs = count
    word = "lr_decay_style" if s.engine == "megatron" else "lr_scheduler_type"
    ratio = {} if s.engine == "megatron" else {f"{OPTIM}.min_lr_ratio": s.minimum_learning_rate_ratio}
    return {
        "trainer.total_training_steps": count,
        "trainer.total_epochs": epochs,
        "trainer.save_freq": every(s, s.save_steps if s.save_strategy != "no" else None),
        "trainer.test_freq": every(s, s.eval_steps if s.evaluates else None),
        f"{OPTIM}.lr": s.learning_rate,
        f"{OPTIM}.{word}": scheduler(s)[0],
        f"{OPTIM}.lr_warmup_steps": -1 if steps is None else steps,
        f"{OPTIM}.lr_warmup_steps_ratio": share,
        **ratio,
        f"{OPTIM}.weight_decay": s.weight_decay,
        f"{OPTIM}.betas": [s.adam_beta1, s.adam_beta2] if s.adam_beta1 and s.adam_beta2 else None,
    }


def _model(s: Setting) -> dict[str, Any]:
    engine = s.vllm_tensor_parallel_size if (s.processes or 1) % max(s.vllm_tensor_parallel_size, 1) == 0 else 1
    return {
        "data.train_files": s.dataset_name,
        "data.seed": s.seed,
        "data.max_prompt_length": s.max_prompt_length or 2048,
        "data.max_response_length": s.max_completion_length,
        "data.filter_overlong_prompts": True,
        f"{MODEL}.path": s.model_name_or_path,
        f"{MODEL}.lora_rank": 64 if s.lora else 0,
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.temperature": s.temperature,
        f"{ROLLOUT}.top_p": s.top_p,
        f"{ROLLOUT}.top_k": s.top_k or -1,
        f"{ROLLOUT}.tensor_model_parallel_size": engine,
        f"{ROLLOUT}.gpu_memory_utilization": s.vllm_gpu_memory_utilization,
    }


def _losses(s: Setting) -> Iterator[str]:
    """What verl cannot do, or does otherwise."""
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
