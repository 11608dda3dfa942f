"""GV and GK for verl, on the recipe: keys that Hydra takes, values that they can hold, and keys
that the release reads.

Sources: hydra 1.3 config_loader_impl.py over verl's configurations (keys.json); verl 0.9.1
workers/config/actor.py, trainer/ppo/core_algos.py, trainer/ppo/ray_trainer.py; verl 0.2
trainer/ppo/ray_trainer.py:917 (KL in the reward).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from grporecipe.fields.dotted import nearest
from grporecipe.fields.reading import values_of
from grporecipe.files import without
from grporecipe.frameworks.verl import keys as verl
from grporecipe.frameworks.verl.keys import ALSO_WORDS, SWITCHES, refusals, unread, words
from grporecipe.frameworks.verl.recipes import FIELDS, has_reward_switch, kl_places, refills
from grporecipe.frameworks.verl.rules import FETCH, VERL
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import KeyTable
from grporecipe.model.setting import Setting
from grporecipe.model.values import Names
from grporecipe.reading.yaml_text import IN_BRACES
from grporecipe.rules.helpers import cut, of_key, show, unset
from grporecipe.rules.keys import find_dead_keys, find_mistyped, find_unknown_words, unknown
from grporecipe.rules.registry import Severity, Violation, recipe_rule, variant

COUNTS = {
    field.name
    for field in fields(Setting)
    if str(getattr(field.type, "__name__", field.type)).startswith("int")
}
WHOLE = {row.key for row in FIELDS if row.name in COUNTS} | {"trainer.nnodes"}
HYDRA_STOPS = "Hydra refuses it, because verl's configuration has no such key"


@recipe_rule("GV401", "error", of=VERL, by_release=True)
def keys_of_verl_exist(recipe: Recipe) -> Iterator[Violation]:
    """A key that verl's configuration does not have, without the ``+`` that adds one.

    Hydra stops: "Could not override 'actor_rollout_ref.actor.foo'. To append to your config use
    +...". The same happens below an empty mapping: ``rollout.engine_kwargs.vllm.x`` needs the ``+``
    too. With ``+`` a typo is accepted, and never read.
    """
    if not verl.is_composed(recipe):
        return
    keys = verl.known_keys(recipe)
    for refused in refusals(recipe, keys):
        if refused.finds == "absent":
            yield from _absent(recipe, refused.written, keys)
        elif refused.finds == "shape":
            key = refused.written
            reason = "Hydra does not replace a mapping by a list, or a list by a mapping"
            advice = "Write it in the shape of its default."
            yield of_key(key, recipe.config[key], reason, advice)
    for key, value in recipe.config.items():
        plain = key.lstrip("+")
        if key == plain or plain in keys or plain.startswith("ray_kwargs"):
            continue
        if near := _misspelled(plain, keys):
            reason = f"the + adds a key that nothing reads, one letter from {near}"
            change = {key: None, near: value}
            yield of_key(
                key, value, reason, f"Write {near}, without the +.", change, severity="warning"
            )


def _absent(recipe: Recipe, key: str, keys: KeyTable) -> Iterator[Violation]:
    """Describe a key that needs a ``+`` or is a typo. A file may add keys for code of its own."""
    is_file = recipe.is_configuration
    plain = key.lstrip("~")
    value = recipe.config[key]
    above = next((name for name in _above(plain) if name in keys), "")
    if above and keys.defaults[above] in ({}, None) and key == plain:
        if is_file:
            return
        empty = "an empty mapping" if keys.defaults[above] == {} else "null"
        reason = f"{above} is {empty}, and Hydra adds a key to it only with a +"
        change = {key: None, f"+{key}": value}
        yield of_key(key, value, reason, f"Write +{key}.", change, without_effect=frozenset(change))
        return
    if is_file and not _misspelled(plain, keys):
        # a file may have keys that code reads by name, or that its own program reads
        return
    near = nearest(plain, keys, value)
    if is_file:
        violation = unknown(recipe, key, near, "verl reads no such key")
        yield replace(violation, severity="warning")
    else:
        yield unknown(recipe, key, near, HYDRA_STOPS)


def _above(key: str) -> Iterator[str]:
    """Yield a key and its sections, the innermost first."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _misspelled(key: str, keys: KeyTable) -> str:
    """Return the existing key that differs from this one by one letter, or an empty text."""
    # only an added key needs it
    from difflib import get_close_matches

    alike = [
        name for name in keys if abs(len(name) - len(key)) < 2 and name.count(".") == key.count(".")
    ]
    return next(iter(get_close_matches(key, alike, n=1, cutoff=0.93)), "")


@recipe_rule("GV402", "error", of=VERL, by_release=True)
def keys_of_verl_are_not_added_twice(recipe: Recipe) -> Iterator[Violation]:
    """``+key`` for a key that verl has: Hydra adds only keys that are missing or null.

    "Could not append to config. An item is already at 'trainer.val_before_train'." ``++key`` sets
    it either way.
    """
    if not verl.is_composed(recipe):
        return
    for refused in refusals(recipe, verl.known_keys(recipe)):
        if refused.finds == "there":
            key = refused.written
            plain = key.lstrip("+")
            value = recipe.config[key]
            reason = (
                "the + adds a key, and verl's configuration has this one already, so Hydra stops"
            )
            advice = f"Write {plain} without the +."
            change = {key: None, plain: value}
            yield of_key(key, value, reason, advice, change, without_effect=frozenset(change))


# Characters that Hydra's lexer refuses outside quotes. A comma, brackets and braces have their own
# meaning.
NO_WORD = r"[^!#&;<>=^`~]*([!#&;<>=^`~])"
PLACEHOLDER = r"<[^<>]{1,80}>"
STRUCTURED = r"""[\\'"()\[\]{},$]"""


@recipe_rule("GV407", "error", of=VERL)
def overrides_can_be_parsed(recipe: Recipe) -> Iterator[Violation]:
    """A value with a character that Hydra's grammar refuses without quotes, as in a placeholder
    ``<path>`` or in ``~/x``.

    Hydra stops: LexerNoViableAltException. bash expands ``~`` only at the start of a word or of a
    variable's value. Source: hydra 1.3 grammar/OverrideLexer.g4.
    """
    for key, value in recipe.launch.raw.items():
        if IN_BRACES.fullmatch(value):
            reason = "Hydra's grammar has only key: value in braces, so it stops"
            yield Violation(
                f"{key}={cut(value)}", reason, "Replace the placeholder by your value.", (key,)
            )
            continue
        if key in recipe.unresolved or re.search(STRUCTURED, value):
            continue
        if match := re.match(NO_WORD, value):
            advice = f"Write \"{key}='{cut(value)}'\"."
            if match[1] == "~":
                advice = "Write $HOME instead of ~."
            elif re.search(PLACEHOLDER, value):
                advice = "Replace the placeholder by your value."
            reason = f"Hydra's grammar has no {match[1]} outside quotes, so it stops"
            yield Violation(f"{key}={cut(value)}", reason, advice, (key,))


@recipe_rule("GV403", "warning", of=VERL)
def verl_reads_what_is_set(recipe: Recipe) -> Iterator[Violation]:
    """Keys that verl accepts and never reads.

    ``actor.grad_clip`` (since 0.8 the engine clips by ``actor.optim.clip_grad``);
    ``actor.clip_ratio`` (since 0.4 ``clip_ratio_low`` and ``clip_ratio_high`` have values of their
    own and win); ``gen_batch_size`` if prompts are fetched one by one.
    """
    if not verl.is_own_trainer(recipe):
        return
    dead = unread(verl.known_keys(recipe))
    values = values_of(recipe)
    for written, value in recipe.config.items():
        key = written.lstrip("+")
        if key in dead and value is not None:
            advice = f"Set {dead[key]}."
            if key.endswith(".clip_ratio"):
                # A file may be the whole configuration, without the two that win. If these are the
                # same, nothing is lost.
                used = {values.number(f"{key}_low"), values.number(f"{key}_high")}
                if (
                    {f"{key}_low", f"{key}_high"} <= recipe.config.keys()
                    or recipe.is_configuration
                    or used == {value}
                ):
                    continue
                advice = f"Set {key}_low and {key}_high."
            yield Violation(
                f"{key}={show(value)}", "verl accepts it and never reads it", advice, (written,)
            )
    size = recipe.config.get(FETCH)
    if size not in (None, 1) and verl.is_v1(recipe) and refills(values):
        reason = "verl overwrites it with 1, because it replaces groups one by one"
        yield of_key(FETCH, size, reason, "Leave it out.")


@recipe_rule("GV404", "error", of=VERL, by_release=True)
def an_engine_of_verl_is_named(recipe: Recipe) -> Iterator[Violation]:
    """``actor_rollout_ref.rollout.name`` has no default since 0.6: a whole recipe must set vllm,
    sglang or trtllm.

    verl stops at the first access ("Missing mandatory value"). A configuration in JSON may be
    partial, so it is not checked.
    """
    key = f"{verl.ROLLOUT}.name"
    is_whole = bool(recipe.launch) and not recipe.base and verl.is_composed(recipe)
    default = verl.known_keys(recipe).defaults.get(key, "???")
    if (
        is_whole
        and default in (None, "???")
        and key not in {written.lstrip("+") for written in recipe.config}
    ):
        reason = "it has no default, so verl stops"
        yield unset(key, reason, "vllm")


@recipe_rule("GV405", "note", of=VERL)
def a_configuration_of_verl_is_found(recipe: Recipe) -> Iterator[Violation]:
    """A configuration of your own (``--config-name``) that was not found, or whose name only a
    running shell knows.

    Its keys were not judged.
    """
    if verl.is_missing_base(recipe):
        reason = "no such file from here or from the script's folders, so its keys were not judged"
        yield Violation(
            f"--config-name {recipe.base}", reason, "Lint in the folder from which it can be found."
        )


def _mistyped(recipe: Recipe) -> Iterator[Violation]:
    """Find values of another type. verl's configuration has no types, so true and false also pass
    as 1 and 0.
    """
    # keys of a fork have types that only its code knows
    own = verl.known(recipe.version, verl.engine_of(recipe))
    keys = {key: _looser(key, spec) for key, spec in verl.known_keys(recipe).items() if key in own}
    for violation in find_mistyped(recipe, keys):
        if not isinstance(recipe.config[violation.fields[0]], bool):
            yield violation


def _looser(key: str, spec: KeySpec) -> KeySpec:
    """Return the type that a key must have. Some whole defaults of verl may be fractions, so only
    counts must be whole.
    """
    if key in ALSO_WORDS:
        return spec._replace(type="any")
    if spec.type == "int?" and key not in WHOLE:
        return spec._replace(type="float?")
    return spec


def _words(recipe: Recipe) -> Mapping[str, Names]:
    """Return the choices of the keys that are used. Some are used only if a switch is on."""
    values = values_of(recipe)
    off = {key for key, switch in SWITCHES.items() if not values.flag(switch)}
    if not kl_places(values)[1]:
        off.add("algorithm.kl_ctrl.type")
    return without(words(recipe), off)


def _unknown_words(recipe: Recipe) -> Iterator[Violation]:
    """Find choices that verl does not know. A trainer that reads a file may register its own
    choices.
    """
    severity: Severity | None = "warning" if recipe.is_configuration else None
    for violation in find_unknown_words(recipe, _words(recipe)):
        yield replace(violation, severity=severity)


LOSS_KL = (f"{verl.ACTOR}.kl_loss_coef", f"{verl.ACTOR}.kl_loss_type")
REWARD_KL = (
    "algorithm.kl_ctrl.kl_coef",
    "algorithm.kl_ctrl.type",
    "algorithm.kl_ctrl.horizon",
    "algorithm.kl_ctrl.target_kl",
    "algorithm.kl_penalty",
)
# By KL in the loss and KL in the reward: the keys without effect, the reason, and the coefficient
# that is used.
DEAD: dict[tuple[bool, bool], tuple[Names, str, str]] = {
    (True, False): (REWARD_KL, "KL is in the loss, with ", LOSS_KL[0]),
    (False, True): (
        LOSS_KL,
        f"{verl.ACTOR}.use_kl_loss is false; KL is in the reward, with ",
        REWARD_KL[0],
    ),
    (False, False): (
        (*LOSS_KL, *REWARD_KL),
        f"{verl.ACTOR}.use_kl_loss and algorithm.use_kl_in_reward are both false: there is no KL",
        "",
    ),
}


def _dead_keys(recipe: Recipe) -> Iterator[Violation]:
    """Find KL keys without effect, by the place of KL. Another trainer may put KL anywhere, so it
    is not checked.
    """
    values = values_of(recipe)
    place = kl_places(values)
    if place in DEAD and verl.is_own_trainer(recipe):
        dead, reason, coefficient = DEAD[place]
        if place == (True, False) and has_reward_switch(values):
            reason = f"algorithm.use_kl_in_reward is false; {reason}"
        if coefficient:
            reason = f"{reason}{coefficient}={values.number(coefficient):g}"
        # Scripts copy a coefficient of 0 with the switch that is off: both say that KL is not
        # there.
        named = tuple(key for key in dead if not key.endswith("coef") or values.number(key))
        if not coefficient and not any(
            key.endswith("coef") and key in recipe.config for key in named
        ):
            # all that the recipe says of KL is that it is off
            return
        yield from find_dead_keys(recipe, named, reason)


variant("GV303", VERL, _mistyped)
variant("GV305", VERL, _unknown_words)
variant("GK310", VERL, _dead_keys)
