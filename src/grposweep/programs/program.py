"""A trainer that is a program of its own: what starts it, where it stands, and how its log is read; one contract for all.

Pure: nothing runs here, so that a command can be shown where nothing is submitted. ``train/program.py`` runs it.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grposweep.config.schema import Trainer


@dataclass(frozen=True)
class Entry:
    """One entry of a program's log: ``kind`` is train or eval, ``step`` counts optimizer steps."""

    kind: str
    step: int
    values: Mapping[str, Any]


Log = Callable[[], list[Entry]]  # what was logged since the last call; a file that is not there yet is nothing logged


@dataclass(frozen=True)
class Place:
    """Where a process of ours stands: it starts the ranks of one node of ``nodes``, and they meet at an address.

    ``processes`` are the training ranks of all nodes together.
    """

    processes: int = 1
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int = 0

    @property
    def ranks(self) -> int:
        """Training ranks of one node."""
        return self.processes // self.nodes


@dataclass(frozen=True)
class Trial:
    """What a program is built from: a person's settings, the point's own recipe, and the trial's folder.

    The recipe stands in ``folder / RECIPE`` as well. ``output`` is where the program keeps checkpoints and model;
    ``checkpoint`` is the one in it to go on from.
    """

    trainer: Trainer
    folder: Path
    recipe: Mapping[str, Any]
    place: Place = Place()
    checkpoint: Path | None = None

    @property
    def output(self) -> Path:
        """The program's own output folder; the controller deletes it where ``trainer.keep`` says so."""
        return self.folder / "model"

    @property
    def file(self) -> Path:
        """The point's recipe as a file."""
        return self.folder / RECIPE


def interpreter(trainer: Trainer) -> str:
    """The program's own Python; a path is from here, whatever folder the program runs in."""
    python = trainer.python or sys.executable
    return os.path.abspath(python) if os.sep in python else python  # noqa: PTH100 - links lead out of an environment


RECIPE = "recipe.yaml"  # in a trial's folder: somebody's recipe with the point's dials in it, native keys


@dataclass(frozen=True)
class Program:
    """A command as it is run in ``trainer.workdir``, what it finds in its environment, and how to read its log.

    ``log`` is read every second, unless the program has our Callback, which writes metrics itself.
    """

    command: tuple[str, ...]
    log: Log
    environment: Mapping[str, str] = field(default_factory=dict)
