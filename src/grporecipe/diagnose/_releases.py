"""What a release logs under a name that means something else, converted by the recipe."""

import math
import re
from fractions import Fraction

from grporecipe.diagnose._log import Log
from grporecipe.fields.recipes import read_recipe
from grporecipe.model import planning
from grporecipe.model.recipe import Recipe

# FSDP's actor, verl/workers/actor/dp_actor.py: the mean over micro-batches of a part for each
# micro-batch from 0.6.0 on, the sum over the updates of a rollout in 0.7
VERL_PARTS, VERL_SUMS, VERL_NATS = (0, 6), (0, 7), (0, 8)
# what the scale of verl's KL depends on
VERL_SIZES = {
    "engine",
    "dynamic_batching",
    "generation_batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "prompts_per_step",
}
# the sum without reward_weights: trl/trainer/grpo_trainer.py, PR 5353
TRL_UNWEIGHTED, TRL_WEIGHTED = (0, 27), (1, 0)
# the module of a function in reward_funcs, or the owner of a model: TRL logs the name after it
OWNER = r".*/|^[^/]*\."


def convert(log: Log, recipe: Recipe) -> None:
    """Convert verl's KL to nats, and TRL's reward to the weighted one, as the stated release logs
    them.
    """
    if recipe.version_source.kind not in ("asked", "project", "pinned", "vendored"):
        return
    if log.kl_is_scaled and recipe.framework == "verl":
        _convert_kl(log, recipe)
    weights = recipe.config.get("reward_weights")
    if weights is not None and TRL_UNWEIGHTED <= recipe.version < TRL_WEIGHTED:
        log.converted = (
            "the reward is not weighted: reward_weights and reward_funcs have no number for each "
            "function of the log"
        )
        _weigh(log, recipe)


def _convert_kl(log: Log, recipe: Recipe) -> None:
    factor = _kl_factor(recipe)
    if not factor:
        return
    for row in log.rows.values():
        if "kl" in row:
            row["kl"] *= factor
    log.kl_is_scaled = False
    log.converted = f"KL is actor/kl_loss x {factor}"


def _kl_factor(recipe: Recipe) -> Fraction | int:
    """Return the KL in nats of a logged 1; 0 if the sizes are unknown or do not divide."""
    if not VERL_PARTS <= recipe.version < VERL_NATS:
        return 1
    setting, unknown = read_recipe(recipe)
    if recipe.may_have_more or unknown & VERL_SIZES:
        return 0
    if setting.engine != "fsdp":
        return 1

    step = planning.stated_completions_per_step(setting)
    rollout = planning.completions_per_rollout(setting)
    if not step or not rollout or planning.completions_per_step(setting) != step:
        return 0
    updates = Fraction(setting.num_iterations * rollout, step)
    if updates < 1 or updates.denominator > 1:
        return 0
    if recipe.version >= VERL_SUMS:
        return 1 / updates
    # the number of micro-batches of dynamic batching depends on the completions
    if setting.dynamic_batching:
        return 0
    return setting.gradient_accumulation_steps


def _weigh(log: Log, recipe: Recipe) -> None:
    """Weigh the rewards of training and evaluations by the names of the functions. If a weight or a
    mean is missing, change nothing.
    """
    try:
        names = [re.sub(OWNER, "", name) for name in recipe.config["reward_funcs"]]
        weights = dict(zip(names, map(float, recipe.config["reward_weights"]), strict=True))
    except (KeyError, TypeError, ValueError, OverflowError):
        return

    weighted = []
    for row in log.rows.values():
        for reward in {"reward", "eval_reward"} & row.keys():
            means = {f"{reward}s/{name}/mean": weight for name, weight in weights.items()}
            logged = {name for name in row if name.startswith(f"{reward}s/")}
            if means.keys() != logged or len(means) < len(names):
                return
            value = sum(weight * row[mean] for mean, weight in means.items())
            if not math.isfinite(value):
                return
            weighted.append((row, reward, value))

    for row, reward, value in weighted:
        row[reward] = value
        row.pop("reward_std", None)
    log.converted = "the reward is weighted by reward_weights"
