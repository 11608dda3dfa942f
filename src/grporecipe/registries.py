"""The registry of frameworks, and entries of registries that are imported when they are first
used.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Lazy:
    """A function or class written ``module:name`` and imported at its first use."""

    target: str

    def load(self) -> Any:
        """Return the function or class."""
        module, _, name = self.target.partition(":")
        return getattr(sys.modules.get(module) or import_module(module), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.load()(*arguments, **named)


def load_entry(entry: Any) -> Any:
    """Return a registered function or class, imported if it is `Lazy`."""
    if isinstance(entry, Lazy):
        return entry.load()
    return entry


# name on command lines: the Framework; the last that fits a recipe is detected
FRAMEWORKS = {
    "trl": Lazy("grporecipe.frameworks.trl:FRAMEWORK"),
    "open-r1": Lazy("grporecipe.frameworks.open_r1:FRAMEWORK"),
    "unsloth": Lazy("grporecipe.frameworks.unsloth:FRAMEWORK"),
    "ms-swift": Lazy("grporecipe.frameworks.ms_swift:FRAMEWORK"),
    "easyr1": Lazy("grporecipe.frameworks.easyr1:FRAMEWORK"),
    "verl": Lazy("grporecipe.frameworks.verl:FRAMEWORK"),
}
# The newest release in each table of keys (keys.json). `make <framework>-release VERSION=...` sets
# both.
NEWEST = {
    "trl": (1, 16, 0),
    "ms-swift": (4, 6, 0),
    "easyr1": (0, 3, 3),
    "verl": (0, 9, 1),
}
