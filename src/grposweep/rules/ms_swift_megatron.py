"""GB, of ms-swift's Megatron back-end: its sizes are whole; on the recipe, because a setting has other words for them.

Source: ms-swift 4.6.0 megatron/arguments/megatron_args.py (resolve_generation_batch_size, validate_batch_dp_alignment,
_init_grpo); Megatron's own count of micro-batches.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from grposweep.frameworks.ms_swift_megatron import completions, data_ranks, is_megatron, read_numbers
from grposweep.recipe import Recipe
from grposweep.rules.ms_swift import MS_SWIFT
from grposweep.rules.registry import Broken, recipe_rule


@recipe_rule("GB503", "error", of=MS_SWIFT)
def megatrons_sizes_are_whole(recipe: Recipe) -> Iterator[Broken]:
    """A rollout is whole steps, a step whole micro-batches of all data ranks, and each of these has whole prompts.

    "num_rollout_prompt (2) = generation_batch_size (16) // num_generations (8) must be divisible by dp_size (8)."; "Per-device
    rollout prompt count (2) ... must be divisible by micro_batch_size (4)."; "generation_batch_size (24) must be divisible
    by global_batch_size (16)". Data ranks are processes / (tensor x pipeline x context parallel sizes).
    """
    if not is_megatron(recipe):
        return
    v = read_numbers(recipe.config)
    sizes = (v["micro_batch_size"], v["global_batch_size"], v["num_generations"], completions(v))
    if min(sizes) < 1:
        yield Broken(
            f"sizes {sizes}", "each counts something, so it is at least 1", "Correct them.", ("global_batch_size",)
        )
        return
    ranks = data_ranks(v, recipe.processes)
    for fields, why in (*_of_a_rollout(v), *(_of_the_ranks(v, ranks) if ranks else ())):
        what = ", ".join(f"{name}={v[name]}" for name in fields if v[name] is not None)
        yield Broken(what, why, "Choose sizes that divide.", fields)


def _of_a_rollout(v: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    rollout, step, steps = completions(v), v["global_batch_size"], v["steps_per_generation"]
    if rollout % step:
        yield ("generation_batch_size", "global_batch_size"), f"a rollout of {rollout} is not whole steps of {step}"
    elif steps is not None and rollout != step * steps:
        yield (
            ("generation_batch_size", "steps_per_generation"),
            f"{steps} steps of {step} are not {rollout} completions",
        )


def _of_the_ranks(v: Mapping[str, Any], ranks: int) -> Iterator[tuple[tuple[str, ...], str]]:
    micro, step, prompts = v["micro_batch_size"], v["global_batch_size"], completions(v) // v["num_generations"]
    if step % (micro * ranks):
        yield (
            ("global_batch_size", "micro_batch_size"),
            f"a step of {step} is not whole micro-batches of {ranks} x {micro}",
        )
    if prompts % ranks:
        yield (
            ("num_generations", "global_batch_size"),
            f"{prompts} prompts a rollout do not divide among {ranks} data ranks",
        )
    elif (prompts // ranks) % micro:
        why = f"{prompts // ranks} prompts a data rank are no multiple of the micro-batch"
        yield ("micro_batch_size", "global_batch_size", "num_generations"), why


@recipe_rule("GB504", "error", of=MS_SWIFT)
def megatron_trains_each_rollout_once(recipe: Recipe) -> Iterator[Broken]:
    """This back-end has no ``num_iterations`` above 1, no ``sync_ref_model`` and no ``async_generate``: "... is not supported".

    megatron/arguments/megatron_args.py _init_grpo.
    """
    if not is_megatron(recipe):
        return
    if read_numbers(recipe.config)["num_iterations"] > 1:
        yield Broken(
            "num_iterations above 1", "Megatron GRPO uses each rollout once", "Leave it out.", ("num_iterations",)
        )
    for name in ("sync_ref_model", "async_generate"):
        if recipe.config.get(name) in (True, "true", "True"):
            yield Broken(f"{name}=true", "Megatron GRPO does not have it", "Leave it out.", (name,), ({name: None},))
