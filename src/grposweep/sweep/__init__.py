"""The sweep on disk and its controller: one writer, all state in files, safe to kill at any time."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """Makes this package callable: ``grposweep.sweep`` is also the function of the Python interface."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from grposweep.api import sweep  # loads all rules

        return sweep(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
