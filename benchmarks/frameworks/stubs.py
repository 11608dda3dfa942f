"""Stand-ins for packages that only a GPU needs, so that a framework's own configuration and checks
can be imported and run.

A missing package is any attribute of it, and any call of those: nothing that is judged goes through
one.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any, ClassVar
from unittest.mock import MagicMock


class _Stub(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "99.0.0"
        if name.startswith("__"):
            raise AttributeError(name)
        value = (
            type(name, (), {}) if name[:1].isupper() else MagicMock(name=f"{self.__name__}.{name}")
        )
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, *_: Any) -> Any:
        known = name.split(".")[0] in self.packages
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: attributes are made when they are first read."""


def stub(*packages: str) -> None:
    """Let these packages be imported."""
    sys.meta_path.insert(0, _Finder(frozenset(packages)))
