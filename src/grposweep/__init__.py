"""Hyperparameter sweeps for GRPO: composed by Hydra, validated before they cost anything, searched by Optuna.

``from grposweep import lint, plan, validate`` gives the functions of `grposweep.api`, imported at their first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grposweep.api import InvalidRecipe, lint, plan, validate

__all__ = ["InvalidRecipe", "lint", "plan", "validate"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from grposweep import api  # with all rules: only a caller who judges needs it

    return getattr(api, name)
