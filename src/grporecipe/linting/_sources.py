"""Say where the values behind an error come from: the recipe, the code that will run, or a
documented default.
"""

from collections.abc import Iterable

from grporecipe.fields.reading import values_of
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting

# versions whose code is the one that trains
OF_CODE = frozenset({"asked", "project", "pinned", "vendored"})


def sources_of(recipe: Recipe, setting: Setting, fields: Iterable[str]) -> dict[str, str]:
    """Return the source of each native key behind fields.

    ``stated`` with its line, ``read`` (a default of the repository's own source, or of the release
    that the repository states), or ``documented`` (a stock default). Fields without a key are
    computed from these. No error rests on an unknown value.
    """
    keys = {setting.keys[name] for name in fields if name in setting.keys}
    return sources_of_keys(recipe, sorted(keys))


def sources_of_keys(recipe: Recipe, keys: Iterable[str]) -> dict[str, str]:
    """Return the source of each native key; see `sources_of`."""
    given = values_of(recipe).given
    default = "documented"
    if recipe.vendored is not None or recipe.version_source.kind in OF_CODE:
        default = "read"
    sources = {}
    for key in keys:
        sources[key] = default
        if key in given or key in recipe.config:
            sources[key] = "stated"
            if recipe.lines.get(key):
                sources[key] += f" on line {recipe.lines[key]}"
    return sources
