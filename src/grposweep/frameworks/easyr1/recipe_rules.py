"""GV and GK, EasyR1: keys that exist in this release, hold what they can, are read, and are not overwritten.

Sources: EasyR1 verl/trainer/main.py and config.py (OmegaConf over dataclasses), by release in keys.json.
"""

from collections.abc import Iterator

from grposweep.frameworks.base import text
from grposweep.frameworks.dotted import is_taken, nearest
from grposweep.frameworks.dotted_rules import find_dead_keys, find_mistyped, find_unknown_words, unknown
from grposweep.frameworks.easyr1 import keys as easyr1
from grposweep.frameworks.easyr1.reader import values_of
from grposweep.frameworks.easyr1.rules import EASYR1
from grposweep.recipe import Recipe
from grposweep.rules.helpers import show
from grposweep.rules.registry import Violation, recipe_rule, recipe_variant

# What became of EasyR1's keys, where another one took their place.
SUCCESSORS = {
    **easyr1.RENAMED,
    "worker.actor.kl_loss_coef": "algorithm.kl_coef",
    "worker.actor.kl_loss_type": "algorithm.kl_penalty",
    "worker.actor.clip_ratio": "worker.actor.clip_ratio_high",
    "worker.reward.score_function": "worker.reward.reward_function",
    "worker.reward.compute_score": "worker.reward.reward_function",
}
KL_WORDS = ("kl_coef", "kl_penalty", "kl_type", "kl_horizon", "kl_target")


@recipe_rule("GV301", "error", of=EASYR1)
def keys_of_easyr1_exist(recipe: Recipe) -> Iterator[Violation]:
    """A key that EasyR1 does not take: a typo, another framework's word, or one of another release.

    EasyR1 stops at start: "ConfigKeyError: Key 'kl_loss_coef' not in 'ActorConfig'". ``worker.actor.kl_loss_coef`` is one
    of release 0.2, where it is the coefficient of the KL loss; since 0.3.0 ``algorithm.kl_coef`` is all there is.
    """
    known = easyr1.known(recipe.version)
    for key in recipe.config:
        if is_taken(key, known):
            continue
        new = SUCCESSORS.get(key)
        found = [new] if new is not None and new in known else nearest(key, known)
        why = f"{_when(key, recipe)}{_instead(recipe, new)}; EasyR1 stops at it"
        yield unknown(recipe, key, found, why, safe=key in easyr1.RENAMED)


def _when(key: str, recipe: Recipe) -> str:
    """The life of a key, beside the release judged by."""
    now, seen = text(recipe.version), easyr1.span(key)
    if seen is None:
        return "no EasyR1 has such a key"
    first, last = seen
    if recipe.version < first:
        return f"it came with EasyR1 {text(first)}, and this is {now}"
    return f"EasyR1 {text(last)} removed it" if last else f"EasyR1 {now} does not take it"


def _instead(recipe: Recipe, new: str | None) -> str:
    """What took a key's place, and what that is set to."""
    if new is None:
        return ""
    return f", and {new}{'=' + show(recipe.config[new]) if new in recipe.config else ''} took its place"


@recipe_rule("GV302", "warning", of=EASYR1)
def easyr1_keeps_what_is_set(recipe: Recipe) -> Iterator[Violation]:
    """A key that EasyR1 overwrites after it has read it: accepted, and without any effect.

    ``worker.actor.kl_coef=0.1`` becomes the value of ``algorithm.kl_coef``, and ``global_batch_size_per_device`` is
    computed.
    """
    known = easyr1.known(recipe.version)
    for key, value in recipe.config.items():
        if key not in known or not known[key].type.startswith("auto"):
            continue
        other = easyr1.OVERWRITTEN.get(key, "")
        now = recipe.config.get(other, known[other].default) if other in known else None
        why = f"EasyR1 overwrites it with {other}={show(now)}" if other else "EasyR1 computes it, whatever is set"
        advice = f"Set {other} instead." if other else "Remove it."
        yield Violation(f"{key}={show(value)}", why, advice, (key,), ({key: None},), frozenset({key}))


@recipe_rule("GV304", "warning", of=EASYR1)
def a_configuration_of_easyr1_is_named(recipe: Recipe) -> Iterator[Violation]:
    """A command line without ``config=``: EasyR1 takes the defaults of its classes for all that is not set.

    They are not those of examples/config.yaml: one completion a prompt (which GRPO refuses), KL in the reward, another
    estimator, larger micro-batches.
    """
    if recipe.launch is not None and not recipe.base and recipe.launch.program:
        yield Violation(
            what="config= is not given",
            why="EasyR1 then takes the defaults of its classes, not those of examples/config.yaml",
            instead="Start the overrides with config=examples/config.yaml.",
        )


def _dead_keys(recipe: Recipe) -> Iterator[Violation]:
    """KL keys without effect, by where KL is instead."""
    found = values_of(recipe)
    of_algorithm = tuple(f"algorithm.{word}" for word in KL_WORDS)
    if recipe.version >= easyr1.ALGORITHM_KL:
        if found.flag("algorithm.disable_kl"):
            yield from find_dead_keys(
                recipe, ("algorithm.use_kl_loss", *of_algorithm), "algorithm.disable_kl=true ends all of KL"
            )
    elif found.flag("worker.actor.use_kl_loss", True):
        coefficient = f"worker.actor.kl_loss_coef={found.number('worker.actor.kl_loss_coef'):g}"
        yield from find_dead_keys(recipe, of_algorithm, f"KL is in the loss, with {coefficient}")
    else:
        dead = ("worker.actor.kl_loss_coef", "worker.actor.kl_loss_type")
        yield from find_dead_keys(recipe, dead, "worker.actor.use_kl_loss=false puts KL into the reward")


recipe_variant("GV303", EASYR1, lambda recipe: find_mistyped(recipe, easyr1.known(recipe.version)))
recipe_variant("GV305", EASYR1, lambda recipe: find_unknown_words(recipe, easyr1.CHOICES))
recipe_variant("GK310", EASYR1, _dead_keys)
