"""The trainers' own words: one file per framework reads its recipes into a setting.

Adding a framework is one file with ``reading(recipe)``, and its line in ``FRAMEWORKS``. A framework is told by the recipe's
keys and the paths it names, never by what is importable here.
"""

from collections.abc import Mapping
from typing import Any

from grposweep.errors import BadInput
from grposweep.frameworks import keys, open_r1, trl
from grposweep.frameworks.native import native
from grposweep.frameworks.trl import Reading
from grposweep.recipe import Recipe
from grposweep.setting import TRL, Version

__all__ = ["FRAMEWORKS", "Reading", "detect", "native", "read", "version_of"]

FRAMEWORKS = {"trl": trl.reading, "open-r1": trl.reading}  # Open-R1 is TRL with more keys
OTHERS = {"verl": ("actor_rollout_ref",), "easyr1": ("worker",), "ms-swift": ("rlhf_type",)}


def read(recipe: Recipe) -> Reading:
    """The setting behind a recipe, and what of it could not be read."""
    return FRAMEWORKS[recipe.framework](recipe)


def detect(config: Mapping[str, Any], *paths: str) -> str:
    """The framework of a recipe, from its keys and from the paths of its file and script."""
    other = next((name for name, words in OTHERS.items() if any(word in config for word in words)), None)
    if other:
        raise BadInput(
            f"a recipe for {other}: grposweep reads those of {' and '.join(FRAMEWORKS)}. Translate it first."
        )
    if not keys.OPEN_R1_ONLY.isdisjoint(config):
        return "open-r1"
    return "open-r1" if any("open_r1" in path or "open-r1" in path for path in paths) else "trl"


def version_of(framework: str, wanted: Version | None) -> Version:
    """The TRL release to judge by: as asked, or the framework's own."""
    if wanted is not None:
        return wanted
    return open_r1.VERSION if framework == "open-r1" else TRL
