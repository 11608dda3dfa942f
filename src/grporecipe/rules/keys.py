"""GV, GM203 and GK for recipes of every framework: duplicate keys, values known only to a shell,
truncated commands, memory.

For dotted keys also types and choices of values, and KL keys without effect. A framework's own
version of such a rule is a variant of it. Sources: PyYAML (the last of two keys is used), bash;
docs/explanation/memory.md.

GV110 and GV111 report that a recipe's version is unknown, or that its keys belong to another
version. Findings on keys are uncertain if the version is unknown, so they become one finding
without a safe fix. Findings that are true for every release (`Violation.certain`) stay errors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from grporecipe.fields.recipes import read_recipe
from grporecipe.memory.catalog import find_model
from grporecipe.model.framework import FRAMEWORKS, known_keys
from grporecipe.model.recipe import KeySpecs, Recipe
from grporecipe.model.releases import text
from grporecipe.model.setting import DOTTED, EVERY, Version
from grporecipe.model.values import Names, convert, listed
from grporecipe.project.repository import lacks_file, registers
from grporecipe.rules.helpers import NO_COUNT, cut, did_you_mean, it_or_them, set_to, show
from grporecipe.rules.registry import (
    Change,
    RecipeRule,
    Rule,
    Severity,
    Violation,
    choose_for_recipes,
    recipe_rule,
)
from grporecipe.terminal import first_of

# the options of a script's own call
CALLED_WITH = ("$@", "$*", "${@}", "${@:1}", "${@:2}")


@recipe_rule("GV105", "warning", of=EVERY)
def keys_are_set_once(recipe: Recipe) -> Iterator[Violation]:
    """A key that a file sets twice, to different values: the last one is used silently."""
    for twice in recipe.duplicates:
        value = (
            show(twice.first_value)
            if isinstance(twice.first_value, (str, int, float, bool))
            else "another value"
        )
        last = recipe.config.get(twice.key)
        what = (
            f"{twice.key} is {value} on line {twice.first_line} and {show(last)} on line "
            f"{twice.line}"
        )
        yield Violation(
            what,
            "the last one is used, and the others are silently ignored",
            f"Keep line {twice.line}.",
            (twice.key,),
            ({twice.key: last},),
            frozenset({twice.key}),
        )


@recipe_rule("GV106", "note", of=EVERY)
def shell_values_are_known(recipe: Recipe) -> Iterator[Violation]:
    """Values that only a running program knows: rules that depend on them are not judged, and plan
    numbers are null.

    The same note names errors that were not judged because the framework's own source in the
    repository differs from a release: another key sizes groups, or a check is not there.

    One finding names all of them. Words that may add options, such as ``$ARGS``, have one each.
    ``$@`` has none: many scripts end with it, and it is empty unless the script is called with
    options.
    """
    unknown = []
    for key, value in recipe.unresolved.items():
        if any(key in ends[0] for ends in recipe.points):
            continue
        if key == "config":
            reason = "the recipe that the script names was not found, so its keys were not checked"
            yield Violation(f"{key}: {show(value)}", reason, "Lint that recipe itself.", (key,))
        elif key == value and not _matters(recipe, key):
            if key not in CALLED_WITH:
                reason = (
                    "the script alone does not determine the options that it adds, so the "
                    "rest was checked without them"
                )
                yield Violation(
                    key, reason, "Write them into the command to have them checked.", (key,)
                )
        elif value not in recipe.unresolved and (key == "num_processes" or _matters(recipe, key)):
            unknown.append(key)
    if unknown:
        shown = first_of([f"{key}: {show(recipe.unresolved[key])}" for key in unknown], 4)
        it = it_or_them(unknown)
        reason = (
            f"the file alone does not determine {it}, so nothing that depends on {it} was checked"
        )
        flag = ", or lint with --processes" if "num_processes" in unknown else ""
        advice = f"Assign {it} in the file{flag}."
        if FRAMEWORKS[recipe.framework].traits.follows_trl:
            advice += " Or ask its trainer: grposweep check -- COMMAND."
        yield Violation(shown, reason, advice, tuple(unknown))


MODELS = frozenset(
    [
        "model_name_or_path",
        "model",
        "pretrain",
        "actor_rollout_ref.model.path",
        "worker.actor.model.model_path",
    ]
)


def _matters(recipe: Recipe, key: str) -> bool:
    """Return whether a rule or the plan depends on a key. The model matters for the memory of a
    named GPU only.
    """
    if key.lstrip("+") in MODELS and recipe.gpu_gib is None:
        return False
    return FRAMEWORKS[recipe.framework].is_judged(key.lstrip("+"), recipe.version)


@recipe_rule("GV107", "error", of=EVERY)
def the_launch_is_whole(recipe: Recipe) -> Iterator[Violation]:
    r"""A launch command that loses options: it ends after a comment, a blank line, or a blank
    behind the backslash, or a placeholder such as ``<path>`` redirects.

    bash joins lines at a backslash that is the last character; a comment runs to the end of its
    line, even after a backslash. The options that follow run as a separate command, and the trainer
    uses its defaults for them.
    """
    if recipe.launch.cut_line is not None:
        reason = (
            "the command ended before them (a comment, or a blank after the backslash), or < and "
            "> of a placeholder redirect, so they are never passed"
        )
        instead = (
            "Move the comment above the command, end each line but the last with a backslash, and "
            "replace the placeholder."
        )
        yield Violation(f"the options from line {recipe.launch.cut_line} on", reason, instead)


@recipe_rule("GM203", "warning", of=EVERY)
def the_memory_for_a_named_gpu_is_estimated(recipe: Recipe) -> Iterator[Violation]:
    """If a GPU is named (``--gpu``), no finding would mean "it fits", so recipes that cannot be
    estimated are reported.

    Estimates exist for recipes of TRL, Open-R1, Unsloth, ms-swift, EasyR1 and verl with FSDP. Their
    model must be known by name (docs/explanation/memory.md), or be a local folder with a
    config.json.
    """
    if recipe.gpu_gib is None:
        return
    what = f"a GPU of {recipe.gpu_gib:g} GiB"
    setting = read_recipe(recipe).setting
    name = setting.model_name_or_path
    key = setting.key("model_name_or_path")
    if setting.architecture is not None:
        return
    if FRAMEWORKS[recipe.framework].memory is None or (name and find_model(name)):
        reason = f"the memory of this recipe of {setting.trainer} is not estimated"
        instead = "Leave --gpu out."
        yield Violation(what, reason, instead)
    else:
        reason = f"the shape of {key}={name} is not known" if name else "no model is named"
        instead = (
            "Name a model that is known (docs/explanation/memory.md) or a folder with a "
            "config.json, or leave --gpu out."
        )
        fields = (key,) if name else ()
        yield Violation(what, reason, instead, fields)


# Keys that name a file; EasyR1's has the function behind a colon, ms-swift's holds several.
FILES = (
    "deepspeed",
    "external_plugins",
    "custom_reward_function.path",
    "reward.custom_reward_function.path",
    "worker.reward.reward_function",
)


@recipe_rule("GV116", "error", of=EVERY)
def named_files_exist(recipe: Recipe) -> Iterator[Violation]:
    """A recipe, an accelerate or DeepSpeed configuration or a file of rewards that the repository
    does not have.

    The program stops at start (FileNotFoundError). Judged for literal relative paths whose folder
    is in the repository, if no file of that name is anywhere in it and the script does not write
    it.
    """
    named = [
        ("config", recipe.unresolved.get("config")),
        ("config_file", recipe.launch.accelerate),
    ]
    for key in recipe.config.keys() - recipe.unresolved.keys():
        if key.lstrip("+") in FILES:
            named += [(key, name) for name in listed(recipe.config[key])]
    for key, value in named:
        name = value.partition(":")[0].removeprefix("./") if isinstance(value, str) else ""
        if name and recipe.file and lacks_file(Path(recipe.file), name):
            reason = "the repository has this folder, but no file of that name"
            fields = (key,) if key in recipe.config else ()
            yield Violation(f"{key}: {show(name)}", reason, "Correct the path.", fields)


WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}


def unknown(
    recipe: Recipe, key: str, near: list[str], reason: str, safe: bool = False
) -> Violation:
    """Describe a key that does not exist, with the keys that it may mean."""
    value = recipe.config[key]
    advice = did_you_mean(near)
    changes: list[Change] = [{key: None, other: value} for other in near[:1]]
    if near and near[0] in recipe.config:
        now = show(recipe.config[near[0]])
        advice = f"{near[0]} replaced it, and is set to {now}. Remove the old key."
        changes.insert(0, {key: None})
    harmless = frozenset(changes[0]) if changes and safe else frozenset[str]()
    return Violation(
        set_to(recipe.config, key), f"unknown key: {reason}", advice, (key,), changes, harmless
    )


def ambiguous(recipe: Recipe, key: str, takes: KeySpecs) -> Violation | None:
    """Describe an option that is a prefix of several, at which argparse stops in any release; None
    for other keys.
    """
    if not recipe.launch or key not in recipe.lines:
        return None
    # HfArgumentParser has both spellings
    dashed = FRAMEWORKS[recipe.framework].traits.follows_trl
    options = dict.fromkeys([*takes, *(name.replace("_", "-") for name in takes if dashed)])
    meant = [name for name in options if name.startswith(key)]
    if len(meant) < 2:
        return None
    reason = f"argparse stops (ambiguous option), because it may mean {first_of(meant, 3)}"
    value = recipe.config[key]
    near = [name for name in get_close_matches(key, meant, 1, 0.8) if name in takes]
    return Violation(
        set_to(recipe.config, key),
        reason,
        "Write the whole name.",
        (key,),
        tuple({key: None, name: value} for name in near),
        certain=True,
    )


@recipe_rule("GV303", "error", of=DOTTED, by_release=True)
def dotted_values_have_their_type(recipe: Recipe) -> Iterator[Violation]:
    """A value that its key cannot hold: text for a number, a fraction for a count, null where a
    value is required.

    EasyR1 stops at start ("Value 'x' of type 'str' could not be converted to Integer"). verl's
    configuration has no types, so it fails where the number is used.
    """
    yield from find_mistyped(recipe, known_keys(recipe))


def find_mistyped(recipe: Recipe, takes: KeySpecs) -> Iterator[Violation]:
    """Find values that are not of their key's type."""
    for written, value in recipe.stated.items():
        key = written.lstrip("+")
        if key not in takes or (isinstance(value, str) and "${" in value):
            continue
        kind = takes[key].type.removeprefix("auto ")
        converted = convert(value, kind)
        if converted.trouble == "type" or (kind == "str" and isinstance(value, (list, dict))):
            changes = ({written: converted.value},) if converted.value is not None else ()
            wanted = WANTED.get(kind.rstrip("?"), "another value")
            yield Violation(
                f"{key}: {show(value)}",
                f"it should be {wanted}",
                f"Write {wanted}.",
                (written,),
                changes,
            )


@recipe_rule("GV305", "error", of=DOTTED, by_release=True)
def words_are_known(_: Recipe) -> tuple[Violation, ...]:
    """A value that is not among its key's choices: an estimator, a loss, a schedule, an engine.

    Most are found at start or at the first use (NotImplementedError, ValueError); EasyR1 silently
    treats an unknown ``loss_type`` as ``default``.
    """
    # only variants have lists of choices
    return ()


def find_unknown_words(recipe: Recipe, words: Mapping[str, Sequence[str]]) -> Iterator[Violation]:
    """Find values that are not among the choices of their key."""
    trainer = FRAMEWORKS[recipe.framework].traits.display_name
    for written, value in recipe.stated.items():
        key = written.lstrip("+")
        allowed = words.get(key)
        if allowed is None or value is None:
            continue
        word = str(value)
        if word in allowed or "${" in word:
            continue
        if recipe.file and registers(Path(recipe.file), word):
            continue
        near = get_close_matches(word.lower(), allowed, n=1, cutoff=0.6)
        reason = f"{trainer} knows {first_of(allowed, 6)}"
        # A misspelt word is wrong in every release. Another one may be that of a fork, if the
        # version is unknown.
        is_typo = bool(get_close_matches(word.lower(), allowed, n=1, cutoff=0.75))
        yield Violation(
            f"{key}={show(value)}",
            reason,
            f"Set {key} to one of them.",
            (written,),
            ({written: (near or list(allowed))[0]},),
            certain=is_typo,
            may_be_new=True,
        )


@recipe_rule("GK310", "warning", of=DOTTED)
def kl_keys_are_read(_: Recipe) -> tuple[Violation, ...]:
    """KL keys that have no effect because KL is elsewhere or off: a coefficient, an estimator or a
    controller.

    verl's ``kl_ctrl`` and ``kl_penalty`` belong to the reward, ``kl_loss_coef`` and
    ``kl_loss_type`` to the loss. So do EasyR1's ``algorithm.kl_coef`` and
    ``worker.actor.kl_loss_coef`` until 0.2; since 0.3.0 one coefficient serves both, and
    ``disable_kl`` switches all KL off.
    """
    # only variants have lists of KL keys
    return ()


def find_dead_keys(recipe: Recipe, dead: Names, reason: str) -> Iterator[Violation]:
    """Find keys that have no effect and are set to another value than the default, which says
    nothing.
    """
    takes = known_keys(recipe)
    named = [
        key
        for key in dead
        if key in recipe.config and (key not in takes or recipe.config[key] != takes[key].default)
    ]
    if named:
        words = " and ".join(f"{key}={show(recipe.config[key])}" for key in named)
        yield Violation(
            words,
            f"nothing reads {it_or_them(named)}, because {reason}",
            "Remove the keys without effect, or switch on their KL term.",
            tuple(named),
        )


# keys in a message
MOST_NAMED = 6


def find_violations(rule: RecipeRule, recipe: Recipe) -> list[Violation]:
    """Return a rule's findings on a recipe, without those that depend on the version if nothing
    states the one that trains.
    """
    violations = list(rule.judge(recipe))
    if not violations or not rule.by_release:
        return violations
    source = recipe.version_source
    # with a conflict the pinned release is not the one that trains
    is_open = not source.known or bool(source.conflict)
    violations = [broken for broken in violations if broken.certain or not is_open]
    if source.kind != "newer":
        return violations
    return [broken for broken in violations if not _may_be_new(broken, recipe)]


def _may_be_new(broken: Violation, recipe: Recipe) -> bool:
    """Return whether a release newer than those known may take what a rule finds: an unknown key,
    or another word.
    """
    return broken.may_be_new or (len(broken.fields) == 1 and _never_taken(broken.fields[0], recipe))


# Warnings about what a release does if a recipe says nothing. If only the keys tell the version,
# they hold for a guess.
OF_DEFAULTS = frozenset({"GK203", "GK204", "GL211", "GT202"})


def accepting_releases(recipe: Recipe, rule: Rule) -> list[Version]:
    """Return the releases that may be the one that trains and for which a rule on settings is
    satisfied.

    None of them if the version is known and takes the recipe's keys. A version that only the keys
    tell is known, but not for a warning about the defaults of a release.
    """
    # It loads the frameworks.
    from grporecipe.project.versions import allowed_releases, fitting_releases

    possible: Sequence[Version]
    if rule.severity != "error":
        if rule.code not in OF_DEFAULTS or recipe.version_source.kind != "keys":
            return []
        possible = fitting_releases(recipe)
    elif recipe.version_source.kind == "range":
        possible = allowed_releases(recipe)
    elif recipe.version_source.known and not recipe.version_source.conflict:
        return []
    else:
        possible = fitting_releases(recipe) or FRAMEWORKS[recipe.framework].known_releases
    return [
        release for release in possible if not is_broken(replace(recipe, version=release), rule)
    ]


def is_broken(recipe: Recipe, rule: Rule) -> bool:
    """Return whether a recipe breaks a rule on settings."""
    s = read_recipe(recipe).setting
    if s.processes is None and rule.counts is not None:
        return rule.counts(s) == NO_COUNT
    return bool(rule.find(s))


def release_without(recipe: Recipe, rule: RecipeRule, broken: Violation) -> Version | None:
    """Return a release of a required range for which a rule on recipes does not find this, or
    None.
    """
    # it loads the frameworks
    from grporecipe.project.versions import allowed_releases

    if recipe.version_source.kind != "range":
        return None
    for release in reversed(allowed_releases(recipe)):
        violations = rule.judge(replace(recipe, version=release))
        if all(other.fields != broken.fields for other in violations):
            return release
    return None


@recipe_rule("GV110", "note", of=EVERY)
def the_version_of_the_keys_is_known(recipe: Recipe) -> Iterator[Violation]:
    """The assumed release does not take some keys of the recipe, and nothing states the version
    that trains it.

    Sources of the version, in this order: ``--framework-version``; ``framework-version`` in
    ``.grposweep.toml`` or in ``[tool.grposweep]`` of pyproject.toml; what the repository pins; the
    framework's own source in the repository; the releases that have all keys. If none of these
    gives a version, one finding names all such keys, and there is no fix: a note, or a warning if
    one of them may be misspelled. So are keys and words that no known release takes if the stated
    version is newer than all of them. A key of TRL or ms-swift that no release takes, and that is
    spelled almost like one of all releases, is an error with any version. Nested keys (verl,
    EasyR1) may be those of a fork, so they are an error only if the version is known.
    """
    source = recipe.version_source
    if source.known and source.kind != "newer":
        return
    traits = FRAMEWORKS[recipe.framework].traits
    judged: list[Violation] = []
    for rule in choose_for_recipes(traits):
        if rule.by_release:
            judged += rule.judge(recipe)
    if source.kind == "newer":
        yield from _left_to_newer(
            [broken for broken in judged if _may_be_new(broken, recipe)], recipe
        )
        return
    # What they find if the assumed version is the one that trains.
    uncertain = [broken for broken in judged if not broken.certain]
    if uncertain:
        keys = tuple(dict.fromkeys(_fields(uncertain)))
        label = traits.name_of(text(recipe.version))
        silent = "nothing states the version"
        if source.where:
            silent = f"{source.where} states no release ({source.text})"
        reason = f"{label} is assumed, because {silent} and no known release takes all keys"
        instead = (
            "State the version that trains: --framework-version, or framework-version in "
            ".grposweep.toml."
        )
        near = _near(uncertain)
        if len(uncertain) == 1 and keys and _never_taken(keys[0], recipe):
            reason = (
                f"no {traits.display_name} release has this key{near.get(keys[0], '')}, and "
                f"{silent}"
            )
        elif len(uncertain) == 1:
            reason = f"{uncertain[0].why}; {reason}"
        severity: Severity | None = (
            "warning" if any(_never_taken(key, recipe) for key in near) else None
        )
        yield Violation(
            _named(keys, near) or uncertain[0].what, reason, instead, keys, severity=severity
        )


def _left_to_newer(violations: list[Violation], recipe: Recipe) -> Iterator[Violation]:
    """Yield one finding for all that a stated release, newer than those known, may take."""
    if violations:
        framework = FRAMEWORKS[recipe.framework]
        keys = tuple(_fields(violations))
        newest = text(framework.known_releases[-1])
        it = it_or_them(violations)
        stated = f"{recipe.version_source.where} states {text(recipe.version)}"
        reason = (
            f"no {framework.traits.display_name} up to {newest} takes {it}, but {stated}: not "
            "judged"
        )
        is_typo = any(broken.certain and not broken.may_be_new for broken in violations)
        severity: Severity | None = "warning" if is_typo else None
        what = violations[0].what if len(violations) == 1 else _named(keys, {})
        yield Violation(what, reason, f"Look {it} up in that release.", keys, severity=severity)


def _fields(violations: list[Violation]) -> Iterator[str]:
    return chain.from_iterable(broken.fields for broken in violations)


@recipe_rule("GV111", "warning", of=EVERY)
def the_pinned_version_takes_the_keys(recipe: Recipe) -> Iterator[Violation]:
    """A repository pins one release, and a recipe has keys of another release. One of the two is
    out of date.

    The recipe is judged by the newest release that takes all its keys, if there is one.
    """
    source = recipe.version_source
    keys = tuple(key for key in source.conflict if key in recipe.config)
    if keys:
        pins = f"{source.where} pins {source.text}, which does not take {it_or_them(keys)}"
        if source.kind == "pinned":
            reason = "no known release takes all keys"
            advice = "Change the keys, or lint with --framework-version."
        else:
            now = text(recipe.version)
            reason = f"the newest release that takes all keys is {now}"
            advice = (
                f"Change the pin or the keys. Judged by {now}; --framework-version states another."
            )
        yield Violation(_named(keys, {}), f"{pins}; {reason}", advice, keys)


def _never_taken(key: str, recipe: Recipe) -> bool:
    """Return whether no release takes a key."""
    # it loads the frameworks
    from grporecipe.project.versions import misfits

    framework = FRAMEWORKS[recipe.framework]
    if not framework.is_dotted:
        return not any(key in framework.takes(release) for release in framework.known_releases)
    return all(
        key in misfits(replace(recipe, version=release)) for release in framework.known_releases
    )


def _near(violations: list[Violation]) -> dict[str, str]:
    """Return a hint such as ``" (ppo_epochs?)"`` for each key whose fix is another spelling."""
    near: dict[str, str] = {}
    for broken in violations:
        for change in broken.suggestions:
            new = [key for key, value in change.items() if value is not None]
            if (
                len(new) == 1
                and len(broken.fields) == 1
                and change.get(broken.fields[0], "") is None
            ):
                (old,) = broken.fields
                section = old.rpartition(".")[0]
                near.setdefault(old, f" ({new[0].removeprefix(f'{section}.')}?)")
    return near


def _named(keys: Names, hints: Mapping[str, str]) -> str:
    # for a single key the reason has the hint
    if len(keys) == 1:
        hints = {}
    return first_of([cut(key) + hints.get(key, "") for key in keys], MOST_NAMED)
