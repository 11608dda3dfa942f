"""The rules on recipes themselves, all registered once this is imported; lint needs them, sweeps do not."""

from grposweep.rules import dotted_keys, easyr1_recipes, keys, ms_swift_conflicts, ms_swift_recipes, verl_recipes
from grposweep.rules.registry import RECIPE_RULES

__all__ = ["FILES", "RECIPE_RULES"]

FILES = (dotted_keys, easyr1_recipes, keys, ms_swift_conflicts, ms_swift_recipes, verl_recipes)
