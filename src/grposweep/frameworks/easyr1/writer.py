"""A setting as a recipe for EasyR1: every number that decides the training explicit, whatever the default.

Sources: EasyR1 0.3.3 verl/trainer/config.py, verl/workers/*/config.py, verl/trainer/core_algos.py.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from grposweep.frameworks.base import TranslatedRecipe
from grposweep.frameworks.dotted import NEVER_CLIPPED, WORDS
from grposweep.frameworks.easyr1.reader import TRAITS
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
from grposweep.setting import Setting

COMMAND = ("python3", "-m", "verl.trainer.main", "config=recipe.yaml")
ACTOR, ALGORITHM = "worker.actor", "algorithm"
LOSSES = {"dapo": ("default", "token"), "grpo": ("default", "seq"), "bnpo": ("default", "token"),
          "cispo": ("cispo", "token"), "sapo": ("sapo", "token")}  # fmt: skip
ESTIMATORS = ("kl", "abs", "mse", "low_var_kl", "full")
BATCHED = 8192  # tokens that vLLM takes at once by default


def write(setting: Setting) -> TranslatedRecipe:
    """A recipe for EasyR1 0.3.3, its launch command, and what it cannot say."""
    s, lost = in_prompts(setting)
    keys = {**_sizes(s), **_objective(s), **_schedule(s), **_model(s)}
    text = yaml.safe_dump(nested(keys), sort_keys=False, allow_unicode=True)
    return TranslatedRecipe(
        text, "recipe.yaml", COMMAND, losses=(*lost, *rollouts(s)[1], *_losses(s), *common_losses(s, "EasyR1"))
    )


def _sizes(s: Setting) -> dict[str, Any]:
    count, each = nodes(s.processes or 1)
    completions = (s.prompts_per_rollout or 1) * s.num_generations
    wanted = s.experience_batch_size or s.per_device_train_batch_size
    return {
        "data.rollout_batch_size": s.prompts_per_rollout,
        "data.mini_rollout_batch_size": s.prompts_per_generation,
        "worker.rollout.n": s.num_generations,
        f"{ACTOR}.global_batch_size": s.prompts_per_step,
        f"{ACTOR}.micro_batch_size_per_device_for_update": s.per_device_train_batch_size,
        f"{ACTOR}.micro_batch_size_per_device_for_experience": fitting(completions, wanted),
        f"{ACTOR}.dynamic_batching": s.dynamic_batching,
        f"{ACTOR}.ulysses_size": s.sequence_parallel_size,
        f"{ACTOR}.ppo_epochs": s.num_iterations,
        f"{ACTOR}.fsdp.enable_cpu_offload": False,
        "trainer.nnodes": count,
        "trainer.n_gpus_per_node": each,
    }


def _objective(s: Setting) -> dict[str, Any]:
    """KL in its one place, the loss and its clips."""
    in_loss = s.kl_placement in ("loss", "both")
    coefficient = s.beta if in_loss else s.kl_reward_coefficient
    name = (estimator(s) if in_loss else s.kl_reward_estimator) or "k1"
    word = WORDS.get(name.rstrip("+"), name) if name != "k3+" else "mse"
    loss, average = LOSSES.get(s.loss_type, ("default", "token"))
    if s.importance_sampling_level == "sequence":
        loss = "gspo"
    return {
        f"{ALGORITHM}.adv_estimator": s.advantage_estimator,
        f"{ALGORITHM}.disable_kl": s.kl_placement == "none" or coefficient == 0,
        f"{ALGORITHM}.use_kl_loss": in_loss,
        f"{ALGORITHM}.kl_penalty": word if word in ESTIMATORS else "low_var_kl",
        f"{ALGORITHM}.kl_coef": float(coefficient),
        f"{ALGORITHM}.kl_type": s.kl_controller,
        f"{ALGORITHM}.kl_horizon": s.kl_horizon or 10000.0,
        f"{ALGORITHM}.kl_target": s.kl_target or 0.1,
        f"{ALGORITHM}.online_filtering": s.filters_groups,
        f"{ACTOR}.loss_type": loss,
        f"{ACTOR}.loss_avg_mode": s.loss_average if s.loss_average in ("token", "seq") else average,
        f"{ACTOR}.clip_ratio_low": s.epsilon,
        f"{ACTOR}.clip_ratio_high": s.epsilon if s.epsilon_high is None else s.epsilon_high,
        f"{ACTOR}.clip_ratio_dual": NEVER_CLIPPED if s.delta is None else s.delta,
        f"{ACTOR}.max_grad_norm": s.max_grad_norm,
    }


def _schedule(s: Setting) -> dict[str, Any]:
    steps, share, _ = warmup(s)
    return {
        "trainer.max_steps": rollouts(s)[0],
        "trainer.total_epochs": max(int(s.epochs), 1) if s.epochs else None,
        "trainer.save_freq": every(s, s.save_steps if s.save_strategy != "no" else None),
        "trainer.val_freq": every(s, s.eval_steps if s.evaluates else None),
        f"{ACTOR}.optim.lr": s.learning_rate,
        f"{ACTOR}.optim.lr_scheduler_type": scheduler(s)[0],
        f"{ACTOR}.optim.lr_warmup_steps": steps,
        f"{ACTOR}.optim.lr_warmup_ratio": share,
        f"{ACTOR}.optim.min_lr_ratio": s.minimum_learning_rate_ratio,
        f"{ACTOR}.optim.weight_decay": s.weight_decay,
        f"{ACTOR}.optim.betas": [s.adam_beta1, s.adam_beta2] if s.adam_beta1 and s.adam_beta2 else None,
    }


def _model(s: Setting) -> dict[str, Any]:
    longest = (s.max_prompt_length or 2048) + s.max_completion_length
    engine = s.vllm_tensor_parallel_size if (s.processes or 1) % max(s.vllm_tensor_parallel_size, 1) == 0 else 1
    return {
        "data.train_files": s.dataset_name,
        "data.seed": s.seed,
        "data.max_prompt_length": s.max_prompt_length or 2048,
        "data.max_response_length": s.max_completion_length,
        f"{ACTOR}.model.model_path": s.model_name_or_path,
        f"{ACTOR}.model.lora.rank": 64 if s.lora else 0,
        "worker.rollout.temperature": s.temperature,
        "worker.rollout.top_p": s.top_p,
        "worker.rollout.top_k": s.top_k or -1,
        "worker.rollout.tensor_parallel_size": engine,
        "worker.rollout.gpu_memory_utilization": s.vllm_gpu_memory_utilization,
        "worker.rollout.max_num_batched_tokens": max(s.max_batched_tokens or BATCHED, longest),
    }


def _losses(s: Setting) -> Iterator[str]:
    """What EasyR1 cannot do, or does otherwise."""
    yield from warmup(s)[2]
    yield from scheduler(s)[1]
    if s.kl_placement == "both":
        yield f"KL in the reward ({s.kl_reward_coefficient:g}): EasyR1 has it in the loss or in the reward; the loss is kept"
    if s.kl_placement in ("loss", "both") and s.beta and estimator(s) in ("k1+", "k3+"):
        yield "the KL estimator is mse, which has the gradient of k3 weighed by the importance ratio, on-policy"
    if s.scale_rewards == "none":
        yield "scale_rewards=none: EasyR1 always divides by the deviation of the group"
    if s.loss_type not in LOSSES and s.importance_sampling_level != "sequence":
        yield f"loss_type={s.loss_type}: EasyR1 has no such loss; its token mean is written"
    if s.loss_type == "bnpo":
        yield "loss_type=bnpo: EasyR1 takes the token mean over all ranks"
    if s.loss_type == "grpo" and s.framework != TRAITS:
        yield "loss_type=grpo: EasyR1's mean over sequences is weighed by tokens again"
    if s.tensor_parallel_size * s.pipeline_parallel_size * s.context_parallel_size > 1:
        yield "tensor, pipeline and context parallel training: EasyR1 has FSDP and Ulysses only"
    if s.epochs and s.epochs != int(s.epochs) and rollouts(s)[0] is None:
        yield f"{s.epochs:g} epochs: EasyR1 counts whole epochs, and without --dataset-size steps are not known"
