"""GK, EasyR1 and verl, on the recipe: KL keys that nothing reads, because KL is elsewhere or off.

Sources: EasyR1 verl/trainer/ray_trainer.py, verl/workers/actor/dp_actor.py by release; verl 0.9.1 trainer/ppo/utils.py.
"""

from collections.abc import Iterator

from grposweep.frameworks import easyr1, schema, verl
from grposweep.frameworks.prompts import Values, collect
from grposweep.recipe import Recipe
from grposweep.rules.registry import Broken, recipe_rule
from grposweep.rules.values import show
from grposweep.setting import IN_PROMPTS


@recipe_rule("GK310", "warning", of=IN_PROMPTS)
def kl_keys_are_read(recipe: Recipe) -> Iterator[Broken]:
    """KL keys that are set where KL is not: a coefficient, an estimator or a controller that nothing reads.

    verl's ``kl_ctrl`` and ``kl_penalty`` belong to the reward, ``kl_loss_coef`` and ``kl_loss_type`` to the loss. So do
    EasyR1's ``algorithm.kl_coef`` and ``worker.actor.kl_loss_coef`` until 0.2; since 0.3.0 one coefficient serves both,
    and ``disable_kl`` ends all.
    """
    dead, why = _dead_keys(recipe)
    named = [key for key in dead if key in recipe.config]
    if named:
        words = " and ".join(f"{key}={show(recipe.config[key])}" for key in named)
        yield Broken(words, f"nothing reads {'it' if len(named) == 1 else 'them'}, because {why}",
                     "Remove what has no effect, or switch on what was meant.", tuple(named))  # fmt: skip


def _dead_keys(recipe: Recipe) -> tuple[tuple[str, ...], str]:
    """The KL keys without effect, and where KL is instead."""
    if recipe.framework == "verl":
        return _dead_in_verl(verl.values_of(recipe))
    found = collect(recipe, schema.easyr1(recipe.version), easyr1.RENAMED)
    if recipe.version >= schema.ALGORITHM_KL:
        if not found.flag("algorithm.disable_kl"):
            return (), ""
        words = ("use_kl_loss", "kl_coef", "kl_penalty", "kl_type", "kl_horizon", "kl_target")
        return tuple(f"algorithm.{word}" for word in words), "algorithm.disable_kl=true ends all of KL"
    if found.flag("worker.actor.use_kl_loss", True):
        active = f"KL is in the loss, with worker.actor.kl_loss_coef={found.number('worker.actor.kl_loss_coef'):g}"
        return tuple(
            f"algorithm.{word}" for word in ("kl_coef", "kl_penalty", "kl_type", "kl_horizon", "kl_target")
        ), active
    return (
        "worker.actor.kl_loss_coef",
        "worker.actor.kl_loss_type",
    ), "worker.actor.use_kl_loss=false puts KL into the reward"


def _dead_in_verl(found: Values) -> tuple[tuple[str, ...], str]:
    in_loss, in_reward = found.flag(f"{verl.ACTOR}.use_kl_loss"), found.flag("algorithm.use_kl_in_reward")
    loss = (f"{verl.ACTOR}.kl_loss_coef", f"{verl.ACTOR}.kl_loss_type")
    reward = ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type", "algorithm.kl_ctrl.horizon",
              "algorithm.kl_ctrl.target_kl", "algorithm.kl_penalty")  # fmt: skip
    if in_loss and in_reward:
        return (), ""
    if in_loss:
        return (
            reward,
            f"algorithm.use_kl_in_reward is false; KL is in the loss, with {loss[0]}={found.number(loss[0]):g}",
        )
    if in_reward:
        return (
            loss,
            f"{verl.ACTOR}.use_kl_loss is false; KL is in the reward, with {reward[0]}={found.number(reward[0]):g}",
        )
    return (*loss, *reward), f"{verl.ACTOR}.use_kl_loss and algorithm.use_kl_in_reward are both false: there is no KL"
