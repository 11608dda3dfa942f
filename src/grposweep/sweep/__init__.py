"""The sweep on disk and its controller: crash-only, one writer, everything in files."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """``grposweep.sweep`` is also the function of the Python interface: this package has its name once it is imported."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from grposweep.api import sweep  # loads all rules

        return sweep(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
