"""GV, verl: keys that its configuration has, are added only where they are not there, and are read.

Sources: hydra 1.3 config_loader_impl.py over verl's configuration (frameworks/verl_keys.json); verl 0.9.1
workers/engine_workers.py, trainer/ppo/core_algos.py, trainer/ppo/v1/trainer_base.py.
"""

from collections.abc import Iterator
from difflib import get_close_matches

from grposweep.frameworks import choices, schema, verl
from grposweep.recipe import Recipe
from grposweep.rules.dotted_keys import takes, unknown
from grposweep.rules.prompts import VERL
from grposweep.rules.registry import Broken, recipe_rule
from grposweep.rules.values import show

HYDRA_STOPS = "Hydra stops at it, because verl's configuration has none of this name"
OWN_PROGRAMS = ("verl.trainer.main_ppo", "verl/trainer/main_ppo.py")
GROUPS = (
    "defaults",
    "actor",
    "ref",
    "rollout",
    "model",
    "critic",
    "data",
    "reward",
    "model_engine",
    "hydra",
    "transfer_queue",
)


@recipe_rule("GV401", "error", of=VERL)
def verl_s_keys_exist(recipe: Recipe) -> Iterator[Broken]:
    """A key that verl's configuration does not have, without the ``+`` that adds one.

    Hydra stops: "Could not override 'actor_rollout_ref.actor.foo'. To append to your config use +...". With ``+`` a typo
    is accepted, and never read.
    """
    if recipe.launch is not None and not recipe.launch.program.endswith(OWN_PROGRAMS):
        return  # another trainer, whose configuration has more keys
    if _is_not_at_hand(recipe):
        return
    known = takes(recipe)
    for key, value in recipe.config.items():
        plain = key.lstrip("+~")
        if plain.split("@")[0].split("/")[0] in GROUPS and "." not in plain.split("@")[0]:
            continue  # an option of a group: hydra's own business
        if schema.is_taken(plain, known) or (key not in recipe.lines and recipe.base):
            continue  # what another configuration file adds, it may add
        if not key.startswith("+"):
            yield unknown(recipe, key, schema.nearest(plain, known), HYDRA_STOPS)
        elif (near := get_close_matches(plain, list(known), n=1, cutoff=0.93)) and not plain.startswith("ray_kwargs"):
            yield Broken(
                what=f"{key}={show(value)}",
                why=f"the + adds a key that nothing reads, one letter from {near[0]}",
                instead=f"Write {near[0]}, without the +.",
                fields=(key,),
                suggestions=({key: None, near[0]: value},),
            )


@recipe_rule("GV402", "error", of=VERL)
def verl_s_keys_are_not_added_twice(recipe: Recipe) -> Iterator[Broken]:
    """``+key`` for a key that verl has: Hydra adds only what is not there.

    "Could not append to config. An item is already at 'trainer.val_before_train'." ``++key`` sets it either way.
    """
    known = takes(recipe)
    for key, value in recipe.config.items():
        plain = key.lstrip("+")
        if key.startswith("+") and not key.startswith("++") and plain in known:
            yield Broken(
                what=f"{key}={show(value)}",
                why="the + adds a key, and verl's configuration has this one already, so Hydra stops",
                instead=f"Write {plain} without the +.",
                fields=(key,),
                suggestions=({key: None, plain: value},),
                without_effect=frozenset({key, plain}),
            )


@recipe_rule("GV403", "warning", of=VERL)
def verl_reads_what_is_set(recipe: Recipe) -> Iterator[Broken]:
    """Keys that verl takes and nothing in it reads.

    ``actor.grad_clip`` (the engine clips by ``actor.optim.clip_grad``); ``actor.clip_ratio`` (``clip_ratio_low`` and
    ``clip_ratio_high`` have values of their own and win); ``gen_batch_size`` where prompts are fetched one by one.
    """
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        if key in choices.UNREAD and value is not None:
            other = choices.UNREAD[key]
            advice = f"Set {other}." if other else "Leave it out."
            if key.endswith(".clip_ratio"):
                if {f"{key}_low", f"{key}_high"} <= recipe.config.keys():
                    continue
                advice = f"Set {key}_low and {key}_high."
            yield Broken(f"{key}={show(value)}", "verl takes it, and nothing reads it", advice, (written,))
    size = recipe.config.get("data.gen_batch_size")
    if size not in (None, 1) and verl.refills(verl.values_of(recipe)):
        yield Broken(
            f"data.gen_batch_size={show(size)}", "verl overwrites it with 1, because it replaces groups one by one",
            "Leave it out.", ("data.gen_batch_size",),
        )  # fmt: skip


@recipe_rule("GV404", "error", of=VERL)
def verl_s_engine_is_named(recipe: Recipe) -> Iterator[Broken]:
    """``actor_rollout_ref.rollout.name`` has no default: a whole recipe must say vllm, sglang or trtllm.

    verl stops at the first access ("Missing mandatory value"). A configuration in JSON may be a part, and is not asked.
    """
    key = f"{verl.ROLLOUT}.name"
    is_whole = recipe.launch is not None and not recipe.base
    if is_whole and key not in {written.lstrip("+") for written in recipe.config}:
        yield Broken(
            what=f"{key} is not set", why="it has no default, so verl stops", instead=f"Set {key}=vllm.", fields=(key,),
            suggestions=({key: "vllm"},),
        )  # fmt: skip


@recipe_rule("GV405", "warning", of=VERL)
def verl_s_configuration_is_at_hand(recipe: Recipe) -> Iterator[Broken]:
    """A configuration of one's own (``--config-name``) that was not found, or that only a running shell could name.

    What it sets was not judged.
    """
    if _is_not_at_hand(recipe):
        yield Broken(
            what=f"--config-name {recipe.base}",
            why="no such file from here or from the script's folders, so what it sets was not judged",
            instead="Lint from where it can be found.",
        )


def _is_not_at_hand(recipe: Recipe) -> bool:
    """Whether a recipe builds on a configuration that is neither verl's nor was found."""
    own = recipe.base and not recipe.base.endswith(("ppo_trainer.yaml", "ppo_megatron_trainer.yaml"))
    return bool(own) and recipe.launch is not None and not recipe.config.keys() - recipe.lines.keys()
