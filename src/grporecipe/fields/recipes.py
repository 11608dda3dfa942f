"""Read a recipe into a setting, and spell changes of a setting, by the table of its framework."""

from grporecipe.fields.memory import DTYPES, describe, describe_types
from grporecipe.fields.reading import read_table
from grporecipe.fields.writing import to_native
from grporecipe.files import Config, Json
from grporecipe.model.framework import FRAMEWORKS, ParsedRecipe
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting


def read_recipe(recipe: Recipe) -> ParsedRecipe:
    """Return a recipe's setting and its unreadable fields. With a GPU it has all fields of the
    memory estimate.
    """
    parsed = read_table(FRAMEWORKS[recipe.framework], recipe)
    if recipe.gpu_gib is None:
        unknown = parsed.unknown
        if not recipe.unresolved.keys().isdisjoint(DTYPES):
            unknown |= {"weights_dtype"}
        return parsed._replace(setting=describe_types(recipe, parsed.setting), unknown=unknown)

    setting = describe(recipe, parsed.setting).replace(
        {"gpu_memory_gib": recipe.gpu_gib, "gpu": recipe.gpu}
    )
    autocast = recipe.launch_fields.get("autocast_dtype")
    if autocast and setting.weights_dtype == "float32" and setting.autocast_dtype is None:
        # accelerate's type, if the recipe does not set it
        setting = setting.replace({"autocast_dtype": autocast})
    return parsed._replace(setting=setting)


def spell_keys(change: Config, recipe: Recipe, setting: Setting) -> Json | None:
    """Return a change of fields under the recipe's keys; None if the recipe has no key for it."""
    return to_native(FRAMEWORKS[recipe.framework], change, recipe, setting)
