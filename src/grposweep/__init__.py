"""Hyperparameter sweeps for GRPO: composed by Hydra, validated before they cost anything, searched by Optuna.

``from grposweep import lint, plan, validate`` gives the functions of `grposweep.api`. They are imported at their first use.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grposweep.api import InvalidRecipe, validate

__all__ = ["InvalidRecipe", "validate"]
__version__ = "0.1.0"
MODULES = ("lint", "plan")  # functions with the name of a module


class _Function(ModuleType):
    """A module that is also the function of its name in `grposweep.api`."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return getattr(import_module("grposweep.api"), self.__name__.rpartition(".")[2])(*arguments, **named)


class _Package(ModuleType):
    """This package: its functions come from `grposweep.api` when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in MODULES:
            return import_module(f"{__name__}.{name}")
        if name in __all__:
            return getattr(import_module(f"{__name__}.api"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:  # the import system sets modules here
        if name in MODULES and isinstance(value, ModuleType):
            value.__class__ = _Function
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
