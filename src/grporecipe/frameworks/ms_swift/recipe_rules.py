"""GV and GB, ms-swift: keys that `swift rlhf` takes, values that it can read, and whole sizes of
its Megatron back-end.

Sources: ms-swift 4.6.0 cli/main.py parse_yaml_args, pipelines/base.py, arguments/; keys.json is its
parser's own list of keys. megatron/arguments/megatron_args.py (resolve_generation_batch_size,
validate_batch_dp_alignment, _init_grpo); Megatron's own count of micro-batches.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from grporecipe.files import Config, Json
from grporecipe.frameworks.ms_swift import keys
from grporecipe.frameworks.ms_swift.rules import MS_SWIFT
from grporecipe.frameworks.trl.keys import HABITS
from grporecipe.frameworks.trl.recipe_rules import WANTED
from grporecipe.model.framework import known_keys
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import closest_keys, text
from grporecipe.model.setting import Version
from grporecipe.model.values import Names
from grporecipe.rules.helpers import misnamed, of_key
from grporecipe.rules.registry import Violation, recipe_rule

# Names of keys in older releases and in other libraries.
RENAMES: Mapping[str, str] = keys.TABLES["renames"]
# before 4.0
OLDER = {"tuner_type": "train_type"}
SAME_VALUE = frozenset(keys.TABLES["same_value"])
GONE: Mapping[str, str] = keys.TABLES["gone"]


@recipe_rule("GV501", "error", of=MS_SWIFT, by_release=True)
def ms_swift_knows_the_keys(recipe: Recipe) -> Iterator[Violation]:
    """A key that `swift rlhf` does not take: a typo, another library's key, or a key of an older
    release.

    pipelines/base.py: "remaining_argv: ['--per_device_batch', '4']". With ``ignore_args_error`` it
    is only logged. A unique prefix of a key is accepted (argparse's abbreviations).
    """
    if recipe.config.get("ignore_args_error") in (True, "true") or keys.is_megatron(recipe):
        return
    takes = known_keys(recipe)
    for key in recipe.config:
        name = keys.spelled(str(key), recipe.version)
        if name in takes or name == keys.ENVIRONMENT:
            continue
        near = _near(name, takes)
        reason = f"ms-swift {text(recipe.version)} takes no such key{_life(name, recipe.version)}"
        same = {str(key), *near} if name in SAME_VALUE else ()
        yield misnamed(
            recipe.config,
            key,
            near,
            reason,
            without_effect=frozenset(same),
            certain=_is_typo(name, near),
        )


def _is_typo(name: str, near: list[str]) -> bool:
    """Return whether no release has a key, and every release has one with a similar spelling."""
    # another name, no typo
    is_meant = name in RENAMES or name in HABITS
    return (
        keys.span(name) is None
        and not is_meant
        and bool(near)
        and keys.span(near[0]) == (keys.releases()[0], None)
    )


def _life(name: str, version: Version) -> str:
    """Say why a key is missing: its successor, or the releases that have it."""
    if name in GONE:
        return f": {GONE[name]}"
    lifetime = keys.span(name)
    if lifetime is None:
        return ""
    first, last = lifetime
    if version < first:
        return f": it came with {text(first)}"
    if last:
        return f": {text(last)} removed it"
    return ""


def _near(name: str, takes: Mapping[str, KeySpec]) -> list[str]:
    """Return the keys that an unknown one may mean."""
    if name in GONE and name not in RENAMES:
        return []
    meant = RENAMES.get(name) or OLDER.get(name) or HABITS.get(name, "")
    return [meant] if meant in takes else closest_keys(name, takes)


@recipe_rule("GV502", "error", of=MS_SWIFT, by_release=True)
def ms_swift_reads_the_values(recipe: Recipe) -> Iterator[Violation]:
    """A value that its key cannot hold. A YAML's values become words of a command line, so ``null``
    becomes the text None.

    argparse: "argument --num_generations: invalid int value: 'None'", "invalid choice: 'fast'".
    Leave a key out for its default. A number in quotes, or one that YAML reads as text (``1e-6``),
    is valid here.
    """
    takes = {} if keys.is_megatron(recipe) else known_keys(recipe)
    for key, value in recipe.stated.items():
        name = keys.spelled(str(key), recipe.version)
        if name not in takes:
            continue
        trouble = _trouble(name, value, takes[name].type, recipe.version)
        if trouble:
            reason, changes = trouble
            yield of_key(str(key), value, reason, f"Leave {key} out for its default.", *changes)


def _trouble(
    name: str, value: Any, kind: str, version: Version
) -> tuple[str, tuple[Json, ...]] | None:
    """Return why a value cannot be read, with its fixes."""
    if value is None:
        return "ms-swift gets null as the text None", ({name: None},)
    if value == []:
        return "ms-swift gets an empty list as a key without a value", ({name: None},)
    converted = keys.read_value(value, kind)
    if converted.trouble:
        whole = isinstance(value, float) and value.is_integer() and kind.startswith("int")
        wanted = WANTED.get(kind.rstrip("?"), "one value")
        changes = ({name: int(value)},) if whole else ()
        return f"{name} is {wanted}", changes
    allowed = keys.choices(name, version)
    if allowed and str(converted.value) not in allowed:
        near = closest_keys(str(converted.value), allowed)
        return f"choices are {', '.join(allowed[:8])}", tuple({name: word} for word in near[:1])
    return None


@recipe_rule("GB503", "error", of=MS_SWIFT)
def the_sizes_of_megatron_are_whole(recipe: Recipe) -> Iterator[Violation]:
    """A rollout is whole steps, a step is whole micro-batches of all data ranks, and a data rank
    has whole prompts.

    "num_rollout_prompt (2) = generation_batch_size (16) // num_generations (8) must be divisible by
    dp_size (8)."; "Per-device rollout prompt count (2) ... must be divisible by micro_batch_size
    (4)."; "generation_batch_size (24) must be divisible by global_batch_size (16)". Data ranks are
    processes / (tensor x pipeline x context parallel sizes).
    """
    if not keys.is_megatron(recipe):
        return
    v = keys.read_numbers(recipe.config)
    sizes = (
        v["micro_batch_size"],
        v["global_batch_size"],
        v["num_generations"],
        keys.completions(v),
    )
    if min(sizes) < 1:
        reason = (
            "micro_batch_size, global_batch_size, num_generations and the completions per "
            "rollout must each be at least 1"
        )
        yield Violation(f"sizes {sizes}", reason, "Set each to 1 or more.", ("global_batch_size",))
        return
    ranks = keys.data_ranks(v, recipe.processes)
    broken = list(_of_a_rollout(v))
    if ranks:
        broken += _of_the_ranks(v, ranks)
    for fields, reason in broken:
        what = ", ".join(f"{name}={v[name]}" for name in fields if v[name] is not None)
        yield Violation(what, reason, "Choose sizes that divide.", fields)


def _of_a_rollout(v: Config) -> Iterator[tuple[Names, str]]:
    rollout, step, steps = keys.completions(v), v["global_batch_size"], v["steps_per_generation"]
    if rollout % step:
        yield (
            ("generation_batch_size", "global_batch_size"),
            f"a rollout of {rollout} is not whole steps of {step}",
        )
    elif steps is not None and rollout != step * steps:
        reason = f"{steps} steps of {step} are not {rollout} completions"
        yield ("generation_batch_size", "steps_per_generation"), reason


def _of_the_ranks(v: Config, ranks: int) -> Iterator[tuple[Names, str]]:
    micro, step, prompts = (
        v["micro_batch_size"],
        v["global_batch_size"],
        keys.completions(v) // v["num_generations"],
    )
    if step % (micro * ranks):
        reason = f"a step of {step} is not whole micro-batches of {ranks} x {micro}"
        yield ("global_batch_size", "micro_batch_size"), reason
    if prompts % ranks:
        reason = f"{prompts} prompts per rollout do not divide among {ranks} data ranks"
        yield ("num_generations", "global_batch_size"), reason
    elif (prompts // ranks) % micro:
        reason = f"{prompts // ranks} prompts a data rank are not a multiple of the micro-batch"
        yield ("micro_batch_size", "global_batch_size", "num_generations"), reason


@recipe_rule("GB504", "error", of=MS_SWIFT)
def megatron_trains_each_rollout_once(recipe: Recipe) -> Iterator[Violation]:
    """This back-end has no ``num_iterations`` above 1, no ``sync_ref_model`` and no
    ``async_generate``: "... is not supported".

    megatron/arguments/megatron_args.py _init_grpo.
    """
    if not keys.is_megatron(recipe):
        return
    if keys.read_numbers(recipe.config)["num_iterations"] > 1:
        reason = "Megatron GRPO uses each rollout once"
        yield Violation("num_iterations above 1", reason, "Leave it out.", ("num_iterations",))
    for name in ("sync_ref_model", "async_generate"):
        if recipe.config.get(name) in (True, "true", "True"):
            reason = "Megatron GRPO does not have it"
            yield of_key(name, True, reason, "Leave it out.", {name: None})
