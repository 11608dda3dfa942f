"""Open-R1: TRL 0.18.0 with keys and checks of its own.

Source: open-r1 src/open_r1/configs.py (GRPOConfig, GRPOScriptArguments, ScriptArguments.__post_init__).
"""

from typing import Any

from grposweep.frameworks.keys import OPEN_R1_TRL as VERSION
from grposweep.frameworks.trl import reader as trl
from grposweep.recipe import Recipe
from grposweep.setting import Setting

__all__ = ["VERSION", "mixture_trouble", "read"]


def read(recipe: Recipe) -> Setting:
    """The setting behind an Open-R1 recipe: its keys are TRL's, its version TRL's 0.18.0."""
    return trl.read(recipe)


def mixture_trouble(mixture: Any) -> str | None:
    """What Open-R1's own checks say to a ``dataset_mixture``; None for nothing."""
    if not isinstance(mixture, dict) or "datasets" not in mixture:
        return "dataset_mixture is a mapping with a 'datasets' key"
    datasets = mixture["datasets"]
    if not isinstance(datasets, list):
        return "'datasets' is a list of dataset configurations"
    if not all(isinstance(entry, dict) and "id" in entry for entry in datasets):
        return "each dataset of the mixture is a mapping with an 'id'"
    columns = [frozenset(map(str, entry["columns"])) for entry in datasets if isinstance(entry.get("columns"), list)]
    if len(set(columns)) > 1:
        return "the columns are the same for all datasets of a mixture"
    return None
