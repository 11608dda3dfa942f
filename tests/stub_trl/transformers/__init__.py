"""Callbacks, their state and the parser of dataclasses, as transformers names them."""

import dataclasses
from argparse import SUPPRESS, ArgumentParser
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any


class TrainerCallback:
    """Every event does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)


@dataclass
class TrainerControl:
    """What a callback may ask for."""

    should_training_stop: bool = False
    should_save: bool = False


@dataclass
class TrainerState:
    """Where a training is, in optimizer steps."""

    global_step: int = 0
    max_steps: int = 0
    is_world_process_zero: bool = True


class HfArgumentParser(ArgumentParser):
    """An option for each field of some dataclasses."""

    def __init__(self, types: Any) -> None:
        super().__init__()
        self.types = types if isinstance(types, (list, tuple)) else [types]
        for name in {field.name for kind in self.types for field in dataclasses.fields(kind)}:
            self.add_argument(f"--{name}", type=typed, nargs="?", const=True, default=SUPPRESS)

    def parse_args_into_dataclasses(self) -> tuple[Any, ...]:
        """Return an object of each class."""
        given = vars(self.parse_args())
        fields = [(kind, {field.name for field in dataclasses.fields(kind)}) for kind in self.types]
        return tuple(
            kind(**{name: given[name] for name in names & given.keys()}) for kind, names in fields
        )


def typed(text: str) -> Any:
    """Return an option as a number or a truth value if it looks like one."""
    words = {"true": True, "false": False, "True": True, "False": False}
    for read in (words.__getitem__, int, float):
        with suppress(KeyError, ValueError):
            return read(text)
    return text


def set_seed(_: int) -> None:
    """Do nothing."""


class AutoModelForCausalLM:
    """A model that knows its name."""

    def __init__(self, name_or_path: str) -> None:
        self.name_or_path = name_or_path

    @classmethod
    def from_pretrained(cls, name: str, **_: Any) -> "AutoModelForCausalLM":
        """Return it."""
        return cls(name)


AutoTokenizer = AutoModelForCausalLM


def __getattr__(name: str) -> Any:
    """Return a class of a module below, which imports this one."""
    for module in ("transformers.trainer", "transformers.training_args"):
        with suppress(AttributeError):
            return getattr(import_module(module), name)
    raise AttributeError(name)
