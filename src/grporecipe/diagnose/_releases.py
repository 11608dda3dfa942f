"""What a release logs under a name that means something else, converted by the recipe."""

from fractions import Fraction

from grporecipe.diagnose._log import Log
from grporecipe.fields.recipes import read_recipe
from grporecipe.model.metrics import is_reward_function
from grporecipe.model.planning import steps_per_rollout
from grporecipe.model.recipe import Recipe

# FSDP's actor, verl/workers/actor/dp_actor.py: the mean over micro-batches of a part for each
# micro-batch from 0.6.0 on, the sum over the updates of a rollout in 0.7
VERL_PARTS, VERL_SUMS, VERL_NATS = (0, 6), (0, 7), (0, 8)
# the sum without reward_weights: trl/trainer/grpo_trainer.py, PR 5353
TRL_UNWEIGHTED, TRL_WEIGHTED = (0, 27), (1, 0)


def convert(log: Log, recipe: Recipe) -> None:
    """Convert verl's KL to nats, and TRL's reward to the weighted one, as the stated release logs
    them.
    """
    if recipe.version_source.kind not in ("asked", "project", "pinned", "vendored"):
        return
    if log.kl_is_scaled and recipe.framework == "verl":
        _convert_kl(log, recipe)
    weights = recipe.config.get("reward_weights")
    if isinstance(weights, list) and TRL_UNWEIGHTED <= recipe.version < TRL_WEIGHTED:
        _weigh(log, weights)


def _convert_kl(log: Log, recipe: Recipe) -> None:
    setting = read_recipe(recipe).setting
    factor = Fraction(1)
    if setting.engine == "fsdp" and VERL_PARTS <= recipe.version < VERL_NATS:
        if recipe.version >= VERL_SUMS:
            factor = 1 / steps_per_rollout(setting)
        elif setting.dynamic_batching:
            # the number of micro-batches depends on the completions
            return
        else:
            factor = Fraction(setting.gradient_accumulation_steps)
    for row in log.rows.values():
        if "kl" in row:
            row["kl"] *= float(factor)
    log.kl_is_scaled = False
    log.converted = f"KL is actor/kl_loss x {factor}"


def _weigh(log: Log, weights: list[float]) -> None:
    for row in log.rows.values():
        parts = [value for name, value in row.items() if is_reward_function(name)]
        if len(parts) == len(weights):
            row["reward"] = sum(weight * part for weight, part in zip(weights, parts, strict=True))
            row.pop("reward_std", None)
            log.converted = "the reward is weighted by reward_weights"
