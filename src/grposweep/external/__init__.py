"""The contract of external trainers: what starts one, where it runs, and how its log is read.

Nothing runs here, so a command can be shown where nothing is submitted; ``train/external.py`` runs it. A framework's folder
holds its external trainer, and `grposweep.frameworks.external_trainers` finds them all.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # lint, which loads every framework, needs no schema
    from grposweep.schema import Trainer


@dataclass(frozen=True)
class Entry:
    """One entry of a program's log: ``kind`` is train or eval, ``step`` counts optimizer steps."""

    kind: str
    step: int
    values: Mapping[str, Any]


Log = Callable[[], list[Entry]]  # what was logged since the last call; a file that is not there yet is nothing logged


@dataclass(frozen=True)
class NodeContext:
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

    trainer: "Trainer"
    folder: Path
    recipe: Mapping[str, Any]
    place: NodeContext = NodeContext()
    checkpoint: Path | None = None

    @property
    def output(self) -> Path:
        """The program's own output folder; the controller deletes it where ``trainer.keep`` says so."""
        return self.folder / "model"

    @property
    def file(self) -> Path:
        """The point's recipe as a file."""
        return self.folder / RECIPE


def interpreter(trainer: "Trainer") -> str:
    """The program's own Python; a path is from here, whatever folder the program runs in."""
    python = trainer.python or sys.executable
    return os.path.abspath(python) if os.sep in python else python  # noqa: PTH100 - links lead out of an environment


RECIPE = "recipe.yaml"  # in a trial's folder: somebody's recipe with the point's dials in it, native keys


@dataclass(frozen=True)
class ExternalProgram:
    """A command as it is run in ``trainer.workdir``, what it finds in its environment, and how to read its log.

    ``log`` is read every second, unless the program has our Callback, which writes metrics itself.
    """

    command: tuple[str, ...]
    log: Log
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExternalTrainer:
    """What builds the program of one ``trainer.kind``, and what the kind needs.

    ``kind`` is the framework's name if empty. ``output`` is the key of a recipe that says where the program writes.
    ``needs_script``: it runs ``trainer.script``. ``several_nodes``: it can train on more than one.
    """

    build: Callable[[Trial], ExternalProgram]
    kind: str = ""
    output: str = "output_dir"
    needs_script: bool = False
    several_nodes: bool = True


NAME = "trainer_state.json"


class TrainerStateTail:
    """The log that transformers' Trainer leaves in any case: the newest trainer_state.json under an output folder.

    It is written with every checkpoint, so entries arrive as often as the recipe saves. States that were there before the
    program started are its past.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.seen = 0  # entries of the history
        self.before = {path: path.stat().st_mtime_ns for path in self._states()}

    def __call__(self) -> list[Entry]:
        """The entries since the last call."""
        changed = [path for path in self._states() if path.stat().st_mtime_ns != self.before.get(path)]
        newest = max(changed, key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is None:
            return []
        try:
            history = json.loads(newest.read_text(encoding="utf-8")).get("log_history", [])
        except (OSError, ValueError):  # being written, or rotated away just now
            return []
        new, self.seen = history[self.seen :], max(self.seen, len(history))
        return [as_entry(line) for line in new if not is_summary(line)]

    def _states(self) -> list[Path]:
        return [*self.output.glob(NAME), *self.output.glob(f"checkpoint-*/{NAME}")]


def as_entry(line: dict[str, Any]) -> Entry:
    """A line of the history; evaluations are told by their keys."""
    kind = "eval" if any(name.startswith("eval_") for name in line) else "train"
    return Entry(kind, int(line.get("step", 0)), {name: value for name, value in line.items() if name != "step"})


def is_summary(line: dict[str, Any]) -> bool:
    """The last line of a run holds times and the mean loss, and would be taken for a step."""
    return "train_runtime" in line
