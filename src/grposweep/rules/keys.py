"""GV: keys that a version takes, with values it can read; on the recipe, because a setting has no words for these.

Sources: trl scripts/utils.py TrlParser, transformers hf_argparser.py; which key exists when is in
frameworks/trl_keys.json, read from the releases.
"""

from collections.abc import Iterator
from typing import Any

from grposweep.frameworks import easyr1, keys, ms_swift, open_r1, trl, verl
from grposweep.frameworks.renames import HABITS, instead
from grposweep.recipe import Recipe
from grposweep.rules.registry import Broken, recipe_rule
from grposweep.rules.values import cut, show
from grposweep.setting import EVERY, IN_PROMPTS

# `trl grpo` hands these to accelerate launch, also from the YAML.
LAUNCHER_KEYS = frozenset(
    [
        "num_processes",
        "num_machines",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "accelerate_config",
        "config_file",
        "mixed_precision",
        "use_deepspeed",
        "deepspeed_config_file",
        "zero_stage",
        "gpu_ids",
        "multi_gpu",
        "dynamo_backend",
    ]
)
OWN_PROGRAMS = ("trl.scripts.grpo", "trl/scripts/grpo.py", "open_r1/grpo.py")


@recipe_rule("GV101", "error")
def keys_exist_in_this_version(recipe: Recipe) -> Iterator[Broken]:
    """A key that TRL (or the transformers under it) takes in another version: removed, renamed, or not there yet.

    TRL's parser stops: "Unknown arguments from config file: [...]"; ``trl grpo`` passes it on to accelerate, which stops;
    ``python -m trl.scripts.grpo`` ignores it without a word (since 1.0), so that the setting is silently lost. Renamed keys
    are read by their new name for every other rule.
    """
    takes = keys.known(recipe.framework, recipe.version)
    for key in recipe.config:
        if key in takes or (keys.span(str(key)) is None and (key not in keys.OPEN_R1 or _is_own_script(recipe))):
            continue
        way = instead(key, recipe.config, takes)
        change = way.change
        why = f"{_when(str(key), recipe)}; {_happens(recipe)}"
        advice = f"Instead: {way.why}." if way.why else "Remove it, or lint for a release that takes it."
        if way.why and change == {key: None}:  # a fix that only removes does not explain itself
            why, advice = f"{why}; {way.why}", "Remove it."
        safe = frozenset(change) if change and way.safe else frozenset()
        yield Broken(_set(recipe, key), why, advice, (str(key),), (change,) if change else (), without_effect=safe)


@recipe_rule("GV102", "error")
def keys_are_known(recipe: Recipe) -> Iterator[Broken]:
    """A key that no release of TRL takes: a typo, or another library's word.

    TRL's parser stops at it ("Unknown arguments from config file: [...]"), ``trl grpo`` passes it on to accelerate, which
    stops, and ``python -m trl.scripts.grpo`` ignores it without a word (since 1.0).
    """
    if not _is_own_script(recipe):
        for key, near in _strangers(recipe):
            yield _stranger(recipe, key, near, _happens(recipe))


@recipe_rule("GV105", "warning", of=EVERY)
def keys_are_set_once(recipe: Recipe) -> Iterator[Broken]:
    """A key that a file sets twice: YAML's reader takes the last one without a word."""
    for twice in recipe.duplicates:
        yield Broken(
            what=f"{twice.key} is set on lines {twice.first_line} and {twice.line}",
            why="the last one counts, and the others are lost without a word",
            instead=f"Keep line {twice.line}.",
            fields=(twice.key,),
            suggestions=({twice.key: recipe.config.get(twice.key)},),
            without_effect=frozenset({twice.key}),
        )


@recipe_rule("GV106", "warning", of=EVERY)
def shell_values_are_known(recipe: Recipe) -> Iterator[Broken]:
    """A value that only a running shell would know: rules that depend on it are not judged, and plan numbers are null."""
    for key, text in recipe.unresolved.items():
        if key not in (text, "num_processes") and not _matters(recipe, key):
            continue  # a folder's name, a run's: no rule reads it
        yield Broken(
            what=f"{key}: {show(text)}" if key != text else key,
            why="it is not known from the script alone, so nothing that depends on it was checked",
            instead=f"Assign it in the script{', or lint with --processes' if key == 'num_processes' else ''}.",
            fields=(key,),
        )


def _matters(recipe: Recipe, key: str) -> bool:
    """Whether some field of a setting is read from a key."""
    if recipe.framework in IN_PROMPTS:
        read = {"trainer.nnodes", *easyr1.KEYS.values(), *verl.KEYS.values()} - {"data.train_files"}
        return key.lstrip("+") in read
    return bool(ms_swift.fields_of({key}) if recipe.framework == "ms-swift" else trl.fields_of({key}))


@recipe_rule("GV107", "error", of=EVERY)
def the_launch_is_whole(recipe: Recipe) -> Iterator[Broken]:
    r"""A launch command that ends before its options do: after a comment, a blank line, or a blank behind the backslash.

    bash joins lines at a backslash that is the very last character; a comment runs to the end of its line whatever stands
    there. The options that follow are run as a command of their own, and the trainer takes its defaults for them.
    """
    if recipe.launch is not None and recipe.launch.cut_line is not None:
        yield Broken(
            what=f"the options from line {recipe.launch.cut_line} on",
            why="the command ended before them (a comment, or a blank after the backslash), so they are never passed",
            instead="Move the comment above the command, and end each line but the last with a backslash.",
        )


@recipe_rule("GV108", "warning")
def own_scripts_may_have_own_keys(recipe: Recipe) -> Iterator[Broken]:
    """A key that TRL does not take, in the launch of a script that may have arguments of its own."""
    launch = recipe.launch
    if launch is None or not _is_own_script(recipe):
        return
    strangers = list(_strangers(recipe))
    for key, near in strangers:
        if near:
            yield _stranger(recipe, key, near, f"TRL takes none of this name; fine if {launch.program} does")
    others = tuple(str(key) for key, near in strangers if not near)
    if others:
        shown = ", ".join(cut(key) for key in others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
        yield Broken(shown, "TRL takes none of these names", f"Fine if {launch.program} does.", others)


@recipe_rule("GV109", "error")
def mixtures_are_well_formed(recipe: Recipe) -> Iterator[Broken]:
    """Open-R1's ``dataset_mixture``: a mapping with a list of datasets, all with the same columns.

    Source: open-r1 src/open_r1/configs.py ScriptArguments.__post_init__.
    """
    mixture = recipe.config.get("dataset_mixture")
    trouble = open_r1.mixture_trouble(mixture) if recipe.framework == "open-r1" and mixture is not None else None
    if trouble:
        yield Broken(
            "dataset_mixture", f"Open-R1 refuses it: {trouble}", "See its README for an example.", ("dataset_mixture",)
        )


def _strangers(recipe: Recipe) -> Iterator[tuple[str, list[str]]]:
    """Keys that no release takes, with those they may have meant."""
    takes = keys.known(recipe.framework, recipe.version)
    for key in recipe.config:
        if key in takes or key in LAUNCHER_KEYS or key == "env":
            continue
        if keys.span(str(key)) is None and (key not in keys.OPEN_R1 or _is_own_script(recipe)):
            habit = HABITS.get(str(key))
            yield key, [habit] if habit else keys.near(str(key), takes)


def _stranger(recipe: Recipe, key: str, near: list[str], why: str) -> Broken:
    value = recipe.config[key]
    advice = f"Did you mean {' or '.join(near)}?" if near else "Remove it."
    changes = tuple({key: None, name: value} for name in near[:1] if name not in recipe.config)
    return Broken(_set(recipe, key), f"unknown key: {why}", advice, (str(key),), changes)


def _is_own_script(recipe: Recipe) -> bool:
    """Somebody's own training script, which may read keys of its own."""
    launch = recipe.launch
    return launch is not None and launch.launcher != "trl" and not launch.program.endswith(OWN_PROGRAMS)


def _happens(recipe: Recipe) -> str:
    """What the launch of this recipe does with a key it does not take."""
    launch = recipe.launch
    if launch is not None and launch.launcher == "trl":
        return "accelerate launch, which gets it from `trl grpo`, stops at it"
    if launch is not None and launch.program.endswith("trl.scripts.grpo") and recipe.version >= (1, 0, 0):
        return "trl.scripts.grpo ignores it without a word"
    return "TRL's parser stops at it"


def _when(key: str, recipe: Recipe) -> str:
    """The life of a key, beside the version asked for."""
    now = f"TRL {keys.text(recipe.version)}"
    seen = keys.span(key)
    if seen is None:
        return f"a key of Open-R1, which {now} does not take"
    first, last = seen
    if recipe.version < first:
        return f"it came with TRL {keys.text(first)}, after {now}"
    return f"{now} (transformers {keys.transformers(recipe.version)}) does not take it" + (
        f", nor any since {keys.text(last)}" if last and last < recipe.version else ""
    )


def _set(recipe: Recipe, key: str) -> str:
    return f"{_show_key(key)}={show(recipe.config[key])}"


def _show_key(key: Any) -> str:
    return cut(str(key))
