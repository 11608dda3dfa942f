"""GM: what was asked of a recipe's memory and cannot be answered; part of the family of ``memory``."""

from collections.abc import Iterator

from grposweep import frameworks
from grposweep.recipe import Recipe
from grposweep.rules.registry import Broken, recipe_rule
from grposweep.setting import FRAMEWORKS, TRL, TRL_FAMILY


@recipe_rule("GM203", "warning", of=frozenset(FRAMEWORKS))
def the_memory_that_was_asked_for_is_known(recipe: Recipe) -> Iterator[Broken]:
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
    if recipe.framework not in TRL_FAMILY:
        yield Broken(
            what=f"a GPU of {recipe.gpu_gib:g} GiB",
            why=f"memory is estimated for recipes of TRL and Open-R1, not of {recipe.framework}",
            instead="Leave --gpu out, or translate the recipe (grposweep translate --to trl) and judge that.",
        )
        return
    name = recipe.config.get("model_name_or_path")
    yield Broken(
        what=f"a GPU of {recipe.gpu_gib:g} GiB",
        why="no model is named" if name is None else f"the shape of model_name_or_path={name} is not known",
        instead="Name a model that is known (Qwen2.5, Qwen3, Llama 3, Mistral, Gemma), or leave --gpu out.",
        fields=() if name is None else ("model_name_or_path",),
    )


def _older(recipe: Recipe) -> Broken:
    judged = ".".join(map(str, recipe.version))
    return Broken(
        what=f"a GPU of {recipe.gpu_gib:g} GiB",
        why=f"memory is estimated as TRL {'.'.join(map(str, TRL))} uses it, and TRL {judged} may hold all logits of a "
        "micro-batch at once (micro-batch x completion length x vocabulary)",
        instead="Leave some memory free, or take a newer TRL.",
    )
