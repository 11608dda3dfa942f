"""EasyR1's recipes: dotted keys over its dataclasses, read, and written with every number that decides the training explicit.

Sources: EasyR1 0.3.3 verl/trainer/main.py (OmegaConf: classes, then ``config=``, then the dot-list), verl/trainer/config.py,
verl/workers/*/config.py, verl/trainer/core_algos.py.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from grposweep.frameworks.base import Framework, NativeChange, TranslatedRecipe, model_size
from grposweep.frameworks.dotted import (
    ESTIMATORS,
    PROMPT_TOKENS,
    WORDS,
    betas_of,
    change_gpus,
    common_losses,
    derive_processes,
    derive_shared,
    estimator,
    fitting,
    key_of_gpus,
    nodes,
    rollouts,
    scheduler,
    warmup,
    warmup_change,
    write_common,
)
from grposweep.frameworks.easyr1.keys import ACTOR, ALGORITHM, ALGORITHM_KL, TRAITS
from grposweep.frameworks.easyr1.keys import ESTIMATORS as KNOWN_ESTIMATORS
from grposweep.frameworks.reading import Values
from grposweep.frameworks.writing import in_prompts, overlay, render_keys, unwritten
from grposweep.recipe import Recipe
from grposweep.setting import Setting

# What EasyR1's losses are in TRL's words; its token mean is taken over all ranks.
LOSSES = {"default": "dapo", "gspo": "dapo", "gspo_token": "dapo"}
COMMAND = ("python3", "-m", "verl.trainer.main", "config=recipe.yaml")
WRITTEN = {"dapo": ("default", "token"), "grpo": ("default", "seq"), "bnpo": ("default", "token"),
           "cispo": ("cispo", "token"), "sapo": ("sapo", "token")}  # fmt: skip
BATCHED = 8192  # tokens that vLLM takes at once by default


def keys_of(found: Values) -> dict[str, str]:
    """Return the native keys that depend on what one recipe sets."""
    keys = key_of_gpus(found)
    if not found.get(f"{ACTOR}.optim.lr_warmup_steps", "int"):
        keys["warmup_steps"] = f"{ACTOR}.optim.lr_warmup_ratio"
    return keys


def derive_kl(found: Values, _: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the KL term is: in the loss or in the reward, never in both; ``disable_kl`` ends all of it."""
    reward = {
        "kl_reward_coefficient": found.number("algorithm.kl_coef"),
        "kl_reward_estimator": _estimator(found.word("algorithm.kl_penalty")),
    }
    if found.recipe.version < ALGORITHM_KL:
        in_loss = found.flag(f"{ACTOR}.use_kl_loss", True)
        loss = {
            "beta": found.number(f"{ACTOR}.kl_loss_coef"),
            "kl_estimator": _estimator(found.word(f"{ACTOR}.kl_loss_type")),
        }
    else:
        if found.flag("algorithm.disable_kl"):
            return {"kl_placement": "none", "loads_reference": False}
        in_loss = found.flag("algorithm.use_kl_loss")
        loss = {"beta": reward["kl_reward_coefficient"], "kl_estimator": reward["kl_reward_estimator"]}
    place = "loss" if in_loss else "reward"
    return {"kl_placement": place, "loads_reference": True, **(loss if in_loss else reward)}


def _estimator(word: str) -> str:
    return ESTIMATORS.get(word, word)


def derive_loss(found: Values, _: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loss in TRL's words; a ratio of the sequence is a level there."""
    word, average = found.word(f"{ACTOR}.loss_type", "default"), found.word(f"{ACTOR}.loss_avg_mode", "token")
    return {
        "loss_type": "grpo" if word in LOSSES and average == "seq" else LOSSES.get(word, word),
        "importance_sampling_level": "sequence" if word.startswith("gspo") else "token",
        "scale_rewards": "group",
        **({"delta": None} if found.recipe.version < ALGORITHM_KL else {}),
    }


def derive_length(found: Values, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the warmup (rollouts, which win, or the share of all) and the epochs, which do not count where steps are set."""
    steps = found.get(f"{ACTOR}.optim.lr_warmup_steps", "int")
    is_overridden = fields["max_steps"] is not None and "trainer.total_epochs" not in found.given
    return {
        "warmup_steps": float(steps) if steps is not None else found.number(f"{ACTOR}.optim.lr_warmup_ratio"),
        "epochs": None if is_overridden else fields["epochs"],
        "parameters": model_size(fields["model_name_or_path"] or ""),
    }


DERIVED = (derive_processes, derive_kl, derive_loss, derive_length, derive_shared(f"{ACTOR}.optim.betas"))


def _placed(value: Any, _: Recipe, s: Setting, __: Mapping[str, Any]) -> dict[str, Any] | None:
    if value == "none" and s.version >= ALGORITHM_KL:
        return {"algorithm.disable_kl": True}
    return {s.key("kl_placement"): value == "loss"} if value in ("loss", "reward") else None


SPECIAL: dict[str, NativeChange] = {
    "processes": change_gpus,
    "kl_placement": _placed,
    "warmup_steps": warmup_change(f"{ACTOR}.optim.lr_warmup_steps"),
}


def render(framework: Framework, setting: Setting) -> TranslatedRecipe:
    """Return a recipe for EasyR1 0.3.3, its launch command, and what it cannot say."""
    s, lost = in_prompts(setting)
    text = render_keys(framework, overlay(framework, s, {**write_common(s), **_fields(s)}, _keys(s)))
    losses = (
        *lost,
        *rollouts(s)[1],
        *_losses(s),
        *unwritten("EasyR1", s, framework.fields),
        *common_losses(s, "EasyR1"),
    )
    return TranslatedRecipe(text, "recipe.yaml", COMMAND, losses=losses)


def _fields(s: Setting) -> dict[str, Any]:
    """Return what is more than a value of its own, by field."""
    completions = (s.prompts_per_rollout or 1) * s.num_generations
    longest = (s.max_prompt_length or PROMPT_TOKENS) + s.max_completion_length
    loss, average = WRITTEN.get(s.loss_type, ("default", "token"))
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
        f"{ALGORITHM}.kl_penalty": word if word in KNOWN_ESTIMATORS else "low_var_kl",
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
    if s.loss_type not in WRITTEN and s.importance_sampling_level != "sequence":
        yield f"loss_type={s.loss_type}: EasyR1 has no such loss; its token mean is written"
    if s.loss_type == "bnpo":
        yield "loss_type=bnpo: EasyR1 takes the token mean over all ranks"
    if s.loss_type == "grpo" and s.framework != TRAITS:
        yield "loss_type=grpo: EasyR1's mean over sequences is weighed by tokens again"
    if s.tensor_parallel_size * s.pipeline_parallel_size * s.context_parallel_size > 1:
        yield "tensor, pipeline and context parallel training: EasyR1 has FSDP and Ulysses only"
    if s.epochs and s.epochs != int(s.epochs) and rollouts(s)[0] is None:
        yield f"{s.epochs:g} epochs: EasyR1 counts whole epochs, and without --dataset-size steps are not known"
