"""GV, EasyR1 and verl: keys that exist, hold what they are given, and are read.

Sources: EasyR1 verl/trainer/main.py and config.py (OmegaConf over dataclasses), by release in frameworks/easyr1_keys.json;
hydra 1.3 config_loader_impl.py over verl's configuration, frameworks/verl_keys.json.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from grposweep.frameworks import choices, easyr1, schema, verl
from grposweep.frameworks.keys import Key, text
from grposweep.frameworks.prompts import TYPES
from grposweep.frameworks.values import convert
from grposweep.recipe import Recipe
from grposweep.rules.prompts import EASYR1, VERL
from grposweep.rules.registry import Broken, recipe_rule
from grposweep.rules.values import cut, show
from grposweep.setting import IN_PROMPTS

WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}
# What became of EasyR1's keys, where another one took their place.
SUCCESSORS = {
    **easyr1.RENAMED,
    "worker.actor.kl_loss_coef": "algorithm.kl_coef",
    "worker.actor.kl_loss_type": "algorithm.kl_penalty",
    "worker.actor.clip_ratio": "worker.actor.clip_ratio_high",
    "worker.reward.score_function": "worker.reward.reward_function",
    "worker.reward.compute_score": "worker.reward.reward_function",
}
HYDRA_STOPS = "Hydra stops at it, because verl's configuration has none of this name"
WHOLE = {key for name, key in verl.KEYS.items() if TYPES[name].startswith("int")} | {"trainer.nnodes"}
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


def takes(recipe: Recipe) -> Mapping[str, Key]:
    """The keys of a recipe's framework and version."""
    return schema.easyr1(recipe.version) if recipe.framework == "easyr1" else schema.verl(verl.engine_of(recipe))


@recipe_rule("GV301", "error", of=EASYR1)
def easyr1_s_keys_exist(recipe: Recipe) -> Iterator[Broken]:
    """A key that EasyR1 does not take: a typo, another framework's word, or one of another release.

    EasyR1 stops at start: "ConfigKeyError: Key 'kl_loss_coef' not in 'ActorConfig'". ``worker.actor.kl_loss_coef`` is one
    of release 0.2, where it is the coefficient of the KL loss; since 0.3.0 ``algorithm.kl_coef`` is all there is.
    """
    known = takes(recipe)
    for key in recipe.config:
        if schema.is_taken(key, known):
            continue
        new = SUCCESSORS.get(key)
        found = [new] if new is not None and new in known else schema.nearest(key, known)
        why = f"{_when(key, recipe)}{_instead(recipe, new)}; EasyR1 stops at it"
        yield _unknown(recipe, key, found, why, safe=key in easyr1.RENAMED)


def _when(key: str, recipe: Recipe) -> str:
    """The life of a key, beside the release judged by."""
    now, seen = text(recipe.version), schema.easyr1_span(key)
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


def _unknown(recipe: Recipe, key: str, found: list[str], why: str, safe: bool = False) -> Broken:
    value = recipe.config[key]
    other = found[0] if found else ""
    advice = f"Did you mean {' or '.join(found)}?" if found else "Remove it."
    if other and other in recipe.config:
        advice = f"{other} replaced it, and is set to {show(recipe.config[other])}. Remove the old key."
        changes: tuple[dict[str, Any], ...] = ({key: None}, {key: None, other: value})
    else:
        changes = ({key: None, other: value},) if other else ()
    harmless = frozenset(changes[0]) if changes and safe else frozenset()
    return Broken(f"{cut(key)}={show(value)}", f"unknown key: {why}", advice, (key,), changes, harmless)


@recipe_rule("GV302", "warning", of=EASYR1)
def easyr1_keeps_what_is_set(recipe: Recipe) -> Iterator[Broken]:
    """A key that EasyR1 overwrites after it has read it: accepted, and without any effect.

    ``worker.actor.kl_coef=0.1`` becomes the value of ``algorithm.kl_coef``, and ``global_batch_size_per_device`` is
    computed.
    """
    known = takes(recipe)
    for key, value in recipe.config.items():
        if key not in known or not known[key].type.startswith("auto"):
            continue
        other = choices.OVERWRITTEN.get(key, "")
        now = recipe.config.get(other, known[other].default) if other in known else None
        why = f"EasyR1 overwrites it with {other}={show(now)}" if other else "EasyR1 computes it, whatever is set"
        advice = f"Set {other} instead." if other else "Remove it."
        yield Broken(f"{key}={show(value)}", why, advice, (key,), ({key: None},), frozenset({key}))


@recipe_rule("GV303", "error", of=IN_PROMPTS)
def dotted_values_have_their_type(recipe: Recipe) -> Iterator[Broken]:
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
            yield Broken(f"{key}: {show(value)}", f"it should be {wanted}", f"Write {wanted}.", (written,), mended)


def _looser(key: str, kind: str) -> str:
    """Defaults of verl are whole where fractions may be: only what counts something is held to be whole."""
    return "float?" if kind == "int?" and key not in WHOLE else kind


@recipe_rule("GV304", "warning", of=EASYR1)
def easyr1_s_configuration_is_named(recipe: Recipe) -> Iterator[Broken]:
    """A command line without ``config=``: EasyR1 takes the defaults of its classes for all that is not set.

    They are not those of examples/config.yaml: one completion a prompt (which GRPO refuses), KL in the reward, another
    estimator, larger micro-batches.
    """
    if recipe.launch is not None and not recipe.base and recipe.launch.program:
        yield Broken(
            what="config= is not given",
            why="EasyR1 then takes the defaults of its classes, not those of examples/config.yaml",
            instead="Start the overrides with config=examples/config.yaml.",
        )


@recipe_rule("GV305", "error", of=IN_PROMPTS)
def words_are_known(recipe: Recipe) -> Iterator[Broken]:
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
        yield Broken(
            what=f"{key}={show(value)}",
            why=f"{'EasyR1' if recipe.framework == 'easyr1' else 'verl'} knows {', '.join(allowed[:6])}"
            + (" and others" if len(allowed) > 6 else ""),
            instead=f"Set {key} to one of them.",
            fields=(written,),
            suggestions=({written: (near or list(allowed))[0]},),
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
            yield _unknown(recipe, key, schema.nearest(plain, known), HYDRA_STOPS)
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
