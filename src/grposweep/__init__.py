"""Sweep hyperparameters of GRPO: compose with Hydra, validate before training, search with Optuna.

``from grposweep import fit, lint, plan, load_sweep`` gives the Python interface, imported at its
first use.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from grporecipe import __version__ as __version__

if sys.version_info < (3, 11):  # noqa: UP036 - a checkout, which no pip has judged
    found = ".".join(map(str, sys.version_info[:3]))
    print(f"error: grposweep needs Python 3.11 or later, and this is {found}.", file=sys.stderr)
    sys.exit(2)

if TYPE_CHECKING:
    from grposweep.api import fit, lint, plan
    from grposweep.report.frames import load_sweep

__all__ = ["fit", "lint", "load_sweep", "plan"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # importing the api loads all rules, which only a caller who judges needs
    home = "report.frames" if name == "load_sweep" else "api"
    return getattr(import_module(f"grposweep.{home}"), name)


def __dir__() -> list[str]:
    """Return the names of the Python interface."""
    return sorted([*__all__, "__version__"])
