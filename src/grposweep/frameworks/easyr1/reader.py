"""Read EasyR1's recipes: dotted keys over its dataclasses.

Sources: EasyR1 verl/trainer/main.py (OmegaConf: classes, then ``config=``, then the dot-list), verl/trainer/config.py,
verl/workers/*/config.py.
"""

from collections.abc import Mapping
from typing import Any

from grposweep.frameworks.base import Framework, NativeChange, ParsedRecipe, model_size
from grposweep.frameworks.dotted import ESTIMATORS, finish, gpu_change, processes_of, warmup_change
from grposweep.frameworks.easyr1.keys import ACTOR, ALGORITHM_KL, RENAMED, known
from grposweep.frameworks.fields import Values, collect, read_rows
from grposweep.recipe import Recipe
from grposweep.setting import Setting, Version

# What EasyR1's losses are in TRL's words; its token mean is taken over all ranks.
LOSSES = {"default": "dapo", "gspo": "dapo", "gspo_token": "dapo"}


def values_of(recipe: Recipe) -> Values:
    """Return the values behind a recipe's keys, defaults filled in."""
    return collect(recipe, known(recipe.version), RENAMED)


def parse(framework: Framework, recipe: Recipe) -> ParsedRecipe:
    """Return the setting, and what of it could not be read."""
    found = values_of(recipe)
    keys = keys_of(framework, found, recipe.version)
    fields = read_rows(framework, found, keys)
    fields |= _kl(found, recipe.version) | _loss(found, recipe.version)
    fields |= {
        "processes": processes_of(recipe, found),
        "warmup_steps": _warmup(found),
        "parameters": model_size(fields["model_name_or_path"] or ""),
    }
    if fields["max_steps"] is not None and "trainer.total_epochs" not in found.given:
        fields["epochs"] = None
    return finish(framework, recipe, found, keys, fields, f"{ACTOR}.optim.betas")


def keys_of(framework: Framework, found: Values, version: Version) -> dict[str, str]:
    """Return the native key behind each field of one recipe."""
    keys = framework.keys_at(version)
    if not found.get(f"{ACTOR}.optim.lr_warmup_steps", "int"):
        keys["warmup_steps"] = f"{ACTOR}.optim.lr_warmup_ratio"
    if "trainer.n_gpus_per_node" not in found.given and "trainer.nnodes" in found.given:
        keys["processes"] = "trainer.nnodes"
    return keys


def _kl(found: Values, version: Version) -> dict[str, Any]:
    """Where the KL term is: in the loss or in the reward, never in both; ``disable_kl`` ends all of it."""
    reward = {
        "kl_reward_coefficient": found.number("algorithm.kl_coef"),
        "kl_reward_estimator": _estimator(found.word("algorithm.kl_penalty")),
    }
    if version < ALGORITHM_KL:
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


def _loss(found: Values, version: Version) -> dict[str, Any]:
    """Losses in TRL's words; a ratio of the sequence is a level there."""
    word, average = found.word(f"{ACTOR}.loss_type", "default"), found.word(f"{ACTOR}.loss_avg_mode", "token")
    return {
        "loss_type": "grpo" if word in LOSSES and average == "seq" else LOSSES.get(word, word),
        "importance_sampling_level": "sequence" if word.startswith("gspo") else "token",
        "scale_rewards": "group",
        **({"delta": None} if version < ALGORITHM_KL else {}),
    }


def _warmup(found: Values) -> float:
    """Rollouts of warmup, which win, or the share of all rollouts."""
    steps = found.get(f"{ACTOR}.optim.lr_warmup_steps", "int")
    return float(steps) if steps is not None else found.number(f"{ACTOR}.optim.lr_warmup_ratio")


def _placed(value: Any, _: Recipe, s: Setting, __: Mapping[str, Any]) -> dict[str, Any] | None:
    if value == "none" and s.version >= ALGORITHM_KL:
        return {"algorithm.disable_kl": True}
    return {s.key("kl_placement"): value == "loss"} if value in ("loss", "reward") else None


SPECIAL: dict[str, NativeChange] = {
    "processes": gpu_change(values_of),
    "kl_placement": _placed,
    "warmup_steps": warmup_change(f"{ACTOR}.optim.lr_warmup_steps"),
}
