"""GV and GM, on recipes of every framework: keys set twice, values that only a shell knows, launches cut short, memory.

Sources: PyYAML (the last of two keys counts), bash; docs/memory.md.
"""

from collections.abc import Iterator

from grposweep import frameworks
from grposweep.recipe import Recipe
from grposweep.rules.helpers import show
from grposweep.rules.registry import Violation, recipe_rule
from grposweep.setting import EVERY, TRL


@recipe_rule("GV105", "warning", of=EVERY)
def keys_are_set_once(recipe: Recipe) -> Iterator[Violation]:
    """A key that a file sets twice: YAML's reader takes the last one without a word."""
    for twice in recipe.duplicates:
        yield Violation(
            what=f"{twice.key} is set on lines {twice.first_line} and {twice.line}",
            why="the last one counts, and the others are lost without a word",
            instead=f"Keep line {twice.line}.",
            fields=(twice.key,),
            suggestions=({twice.key: recipe.config.get(twice.key)},),
            without_effect=frozenset({twice.key}),
        )


@recipe_rule("GV106", "warning", of=EVERY)
def shell_values_are_known(recipe: Recipe) -> Iterator[Violation]:
    """A value that only a running shell would know: rules that depend on it are not judged, and plan numbers are null."""
    for key, text in recipe.unresolved.items():
        if key not in (text, "num_processes") and not _matters(recipe, key):
            continue  # a folder's name, a run's: no rule reads it
        yield Violation(
            what=f"{key}: {show(text)}" if key != text else key,
            why="it is not known from the script alone, so nothing that depends on it was checked",
            instead=f"Assign it in the script{', or lint with --processes' if key == 'num_processes' else ''}.",
            fields=(key,),
        )


def _matters(recipe: Recipe, key: str) -> bool:
    """Return whether what is judged depends on a key."""
    return frameworks.FRAMEWORKS[recipe.framework].is_judged(key.lstrip("+"), recipe.version)


@recipe_rule("GV107", "error", of=EVERY)
def the_launch_is_whole(recipe: Recipe) -> Iterator[Violation]:
    r"""A launch command that ends before its options do: after a comment, a blank line, or a blank behind the backslash.

    bash joins lines at a backslash that is the very last character; a comment runs to the end of its line whatever stands
    there. The options that follow are run as a command of their own, and the trainer takes its defaults for them.
    """
    if recipe.launch is not None and recipe.launch.cut_line is not None:
        yield Violation(
            what=f"the options from line {recipe.launch.cut_line} on",
            why="the command ended before them (a comment, or a blank after the backslash), so they are never passed",
            instead="Move the comment above the command, and end each line but the last with a backslash.",
        )


@recipe_rule("GM203", "warning", of=EVERY)
def the_memory_that_was_asked_for_is_known(recipe: Recipe) -> Iterator[Violation]:
    """With a GPU named (``--gpu``), silence would read as "it fits": so what cannot be estimated is said.

    Estimated are recipes of TRL and Open-R1 whose model is one of those that are known by name (docs/memory.md), as the
    newest TRL uses memory: it goes over the logits in tiles (trl kernels/chunked_logprob.py), which older releases did not.
    """
    if recipe.gpu_gib is None:
        return
    if frameworks.read(recipe).setting.architecture is not None:
        if recipe.version < TRL:
            yield _older(recipe)
        return
    if not frameworks.FRAMEWORKS[recipe.framework].traits.follows_trl:
        yield Violation(
            what=f"a GPU of {recipe.gpu_gib:g} GiB",
            why=f"memory is estimated for recipes of TRL and Open-R1, not of {recipe.framework}",
            instead="Leave --gpu out, or translate the recipe (grposweep translate --to trl) and judge that.",
        )
        return
    name = recipe.config.get("model_name_or_path")
    yield Violation(
        what=f"a GPU of {recipe.gpu_gib:g} GiB",
        why="no model is named" if name is None else f"the shape of model_name_or_path={name} is not known",
        instead="Name a model that is known (Qwen2.5, Qwen3, Llama 3, Mistral, Gemma), or leave --gpu out.",
        fields=() if name is None else ("model_name_or_path",),
    )


def _older(recipe: Recipe) -> Violation:
    judged = ".".join(map(str, recipe.version))
    return Violation(
        what=f"a GPU of {recipe.gpu_gib:g} GiB",
        why=f"memory is estimated as TRL {'.'.join(map(str, TRL))} uses it, and TRL {judged} may hold all logits of a "
        "micro-batch at once (micro-batch x completion length x vocabulary)",
        instead="Leave some memory free, or take a newer TRL.",
    )
