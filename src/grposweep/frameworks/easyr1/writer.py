"""Write a setting as a recipe for EasyR1: every number that decides the training explicit, whatever the default.

Sources: EasyR1 0.3.3 verl/trainer/config.py, verl/workers/*/config.py, verl/trainer/core_algos.py.
"""

from collections.abc import Iterator
from typing import Any

from grposweep.frameworks.base import Framework, TranslatedRecipe
from grposweep.frameworks.dotted import (
    PROMPT_TOKENS,
    WORDS,
    betas_of,
    common_losses,
    estimator,
    fitting,
    nodes,
    rollouts,
    scheduler,
    warmup,
    write_common,
)
from grposweep.frameworks.easyr1.keys import ACTOR, ALGORITHM, ESTIMATORS, TRAITS
from grposweep.frameworks.fields import overlay, render_keys
from grposweep.frameworks.units import in_prompts
from grposweep.setting import Setting

COMMAND = ("python3", "-m", "verl.trainer.main", "config=recipe.yaml")
LOSSES = {"dapo": ("default", "token"), "grpo": ("default", "seq"), "bnpo": ("default", "token"),
          "cispo": ("cispo", "token"), "sapo": ("sapo", "token")}  # fmt: skip
BATCHED = 8192  # tokens that vLLM takes at once by default


def render(framework: Framework, setting: Setting) -> TranslatedRecipe:
    """Return a recipe for EasyR1 0.3.3, its launch command, and what it cannot say."""
    s, lost = in_prompts(setting)
    text = render_keys(framework, overlay(framework, s, {**write_common(s), **_fields(s)}, _keys(s)))
    losses = (*lost, *rollouts(s)[1], *_losses(s), *common_losses(s, "EasyR1"))
    return TranslatedRecipe(text, "recipe.yaml", COMMAND, losses=losses)


def _fields(s: Setting) -> dict[str, Any]:
    """Return what is more than a value of its own, by field."""
    completions = (s.prompts_per_rollout or 1) * s.num_generations
    longest = (s.max_prompt_length or PROMPT_TOKENS) + s.max_completion_length
    loss, average = LOSSES.get(s.loss_type, ("default", "token"))
    return {
        "experience_batch_size": fitting(completions, s.experience_batch_size or s.per_device_train_batch_size),
        "offloads_parameters": False,
        "kl_horizon": s.kl_horizon or 10000.0,
        "kl_target": s.kl_target or 0.1,
        "loss_type": "gspo" if s.importance_sampling_level == "sequence" else loss,
        "loss_average": s.loss_average if s.loss_average in ("token", "seq") else average,
        "warmup_steps": warmup(s)[0],
        "max_batched_tokens": max(s.max_batched_tokens or BATCHED, longest),
    }


def _keys(s: Setting) -> dict[str, Any]:
    """Return what no single field says, by key; KL has one place."""
    in_loss = s.kl_placement in ("loss", "both")
    coefficient = s.beta if in_loss else s.kl_reward_coefficient
    name = (estimator(s) if in_loss else s.kl_reward_estimator) or "k1"
    word = WORDS.get(name.rstrip("+"), name) if name != "k3+" else "mse"
    return {
        "trainer.nnodes": nodes(s.processes or 1)[0],
        f"{ALGORITHM}.disable_kl": s.kl_placement == "none" or coefficient == 0,
        f"{ALGORITHM}.use_kl_loss": in_loss,
        f"{ALGORITHM}.kl_penalty": word if word in ESTIMATORS else "low_var_kl",
        f"{ALGORITHM}.kl_coef": float(coefficient),
        f"{ACTOR}.optim.lr_warmup_ratio": warmup(s)[1],
        f"{ACTOR}.optim.betas": betas_of(s),
    }


def _losses(s: Setting) -> Iterator[str]:
    """Yield what EasyR1 cannot do, or does otherwise."""
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
