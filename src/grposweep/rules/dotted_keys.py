"""GV, EasyR1 and verl: values that their keys can hold, and words that they know; and what both say of an unknown key.

GK, EasyR1 and verl, on the recipe: KL keys that nothing reads, because KL is elsewhere or off.

Sources: EasyR1 verl/trainer/ray_trainer.py, verl/workers/actor/dp_actor.py by release; verl 0.9.1 trainer/ppo/utils.py.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from grposweep.frameworks import choices
from grposweep.frameworks import dotted_keys as schema
from grposweep.frameworks.dotted import TYPES, Values, collect
from grposweep.frameworks.easyr1 import reader as easyr1
from grposweep.frameworks.keys import KeySpec
from grposweep.frameworks.parsing.values import convert
from grposweep.frameworks.verl import reader as verl
from grposweep.recipe import Recipe
from grposweep.rules.keys import cut, show
from grposweep.rules.registry import Violation, recipe_rule
from grposweep.setting import DOTTED

WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}
WHOLE = {key for name, key in verl.KEYS.items() if TYPES[name].startswith("int")} | {"trainer.nnodes"}


def takes(recipe: Recipe) -> Mapping[str, KeySpec]:
    """The keys of a recipe's framework and version."""
    return schema.easyr1(recipe.version) if recipe.framework == "easyr1" else schema.verl(verl.engine_of(recipe))


def unknown(recipe: Recipe, key: str, found: list[str], why: str, safe: bool = False) -> Violation:
    """What is said of a key that does not exist, with those it may have meant."""
    value = recipe.config[key]
    other = found[0] if found else ""
    advice = f"Did you mean {' or '.join(found)}?" if found else "Remove it."
    if other and other in recipe.config:
        advice = f"{other} replaced it, and is set to {show(recipe.config[other])}. Remove the old key."
        changes: tuple[dict[str, Any], ...] = ({key: None}, {key: None, other: value})
    else:
        changes = ({key: None, other: value},) if other else ()
    harmless = frozenset(changes[0]) if changes and safe else frozenset()
    return Violation(f"{cut(key)}={show(value)}", f"unknown key: {why}", advice, (key,), changes, harmless)


@recipe_rule("GV303", "error", of=DOTTED)
def dotted_values_have_their_type(recipe: Recipe) -> Iterator[Violation]:
    """A value that its key cannot hold: words for a number, a fraction for a count, nothing where something must be.

    EasyR1 stops at start ("Value 'x' of type 'str' could not be converted to Integer"). verl's configuration has no types,
    so it fails where the number is used.
    """
    known = takes(recipe)
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        if key not in known or written in recipe.unresolved or (isinstance(value, str) and "${" in value):
            continue
        kind = known[key].type.removeprefix("auto ")
        if recipe.framework == "verl":
            kind = _looser(key, kind)
        found = convert(value, kind)
        if found.trouble == "type" or (kind == "str" and isinstance(value, (list, dict))):
            mended = ({written: found.value},) if found.value is not None else ()
            wanted = WANTED.get(kind.rstrip("?"), "another value")
            yield Violation(f"{key}: {show(value)}", f"it should be {wanted}", f"Write {wanted}.", (written,), mended)


def _looser(key: str, kind: str) -> str:
    """Defaults of verl are whole where fractions may be: only what counts something is held to be whole."""
    return "float?" if kind == "int?" and key not in WHOLE else kind


@recipe_rule("GV305", "error", of=DOTTED)
def words_are_known(recipe: Recipe) -> Iterator[Violation]:
    """A word that its key does not know: an estimator, a loss, a schedule, an engine.

    Most are found at start or at the first use (NotImplementedError, ValueError); EasyR1 takes an unknown ``loss_type``
    for ``default`` without a word.
    """
    words = choices.EASYR1 if recipe.framework == "easyr1" else choices.VERL
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        allowed = words.get(key)
        if (
            allowed is None
            or value is None
            or written in recipe.unresolved
            or str(value) in allowed
            or "${" in str(value)
        ):
            continue
        switch = choices.SWITCHES.get(key)
        if switch is not None and recipe.framework == "verl" and not verl.values_of(recipe).flag(switch):
            continue
        near = get_close_matches(str(value).lower(), allowed, n=1, cutoff=0.6)
        yield Violation(
            what=f"{key}={show(value)}",
            why=f"{'EasyR1' if recipe.framework == 'easyr1' else 'verl'} knows {', '.join(allowed[:6])}"
            + (" and others" if len(allowed) > 6 else ""),
            instead=f"Set {key} to one of them.",
            fields=(written,),
            suggestions=({written: (near or list(allowed))[0]},),
        )


@recipe_rule("GK310", "warning", of=DOTTED)
def kl_keys_are_read(recipe: Recipe) -> Iterator[Violation]:
    """KL keys that are set where KL is not: a coefficient, an estimator or a controller that nothing reads.

    verl's ``kl_ctrl`` and ``kl_penalty`` belong to the reward, ``kl_loss_coef`` and ``kl_loss_type`` to the loss. So do
    EasyR1's ``algorithm.kl_coef`` and ``worker.actor.kl_loss_coef`` until 0.2; since 0.3.0 one coefficient serves both,
    and ``disable_kl`` ends all.
    """
    dead, why = _dead_keys(recipe)
    named = [key for key in dead if key in recipe.config]
    if named:
        words = " and ".join(f"{key}={show(recipe.config[key])}" for key in named)
        yield Violation(words, f"nothing reads {'it' if len(named) == 1 else 'them'}, because {why}",
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
