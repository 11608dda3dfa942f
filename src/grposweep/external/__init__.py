"""The contract of external trainers: what starts one, where it runs, and how its log is read.

Nothing runs here, so a command can be shown where nothing is submitted; ``train/external.py`` runs it. A framework's folder
holds its external trainer, and `grposweep.frameworks.external_trainers` finds them all.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grposweep.files import read_json

if TYPE_CHECKING:  # lint, which loads every framework, needs no schema
    from grposweep.schema import Cluster, Trainer


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

    ``processes`` are the training ranks of all nodes together, ``gpus`` and ``cpus`` what the job has of each node.
    """

    processes: int = 1
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    gpus: int = 0
    cpus: int = 1

    @property
    def ranks(self) -> int:
        """Training ranks of one node."""
        return self.processes // self.nodes


def node_cpus(cluster: "Cluster") -> int:
    """Return the CPUs that a job has of each node: its GPUs' shares, or those of its tasks."""
    if cluster.gpus_per_node:
        return cluster.gpus_per_node * cluster.cpus_per_gpu
    return cluster.tasks_per_node * cluster.threads


@dataclass(frozen=True)
class Trial:
    """What a program is built from: a person's settings, the point's own recipe, and the trial's folder.

    The recipe stands in ``folder / RECIPE`` as well. ``output`` is where the program keeps checkpoints and model;
    ``checkpoint`` is the one in it to resume from.
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
    """The program's own Python; a path is from here, also if the program runs in another folder."""
    python = trainer.python or sys.executable
    return os.path.abspath(python) if os.sep in python else python  # noqa: PTH100 - links lead out of an environment


RECIPE = "recipe.yaml"  # in a trial's folder: the user's recipe with the point's parameters in it, native keys


@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster of a job's nodes, each with ``gpus`` and ``cpus``; ``python`` has Ray and starts a node of it.

    Jobs may share a node, so every port is one that Ray finds free: by default jobs would meet at 6379, 10001, 52365 and in
    10002-19999. Source: ray 2.60 scripts/scripts.py.
    """

    python: str
    nodes: int
    gpus: int
    cpus: int

    def start_head(self, temporary: str, *further: str) -> tuple[str, ...]:
        """Return the command of the first node; it writes its address to a file in ``temporary`` and does not end."""
        own = ("--head", "--port=0", "--include-dashboard=false", f"--temp-dir={temporary}", *further)
        return (*self._start, *own, *self._shape)

    def start_worker(self, address: str) -> tuple[str, ...]:
        """Return the command of every other node; ``address`` is the head's, with its port."""
        return (*self._start, f"--address={address}", *self._shape)

    @property
    def _start(self) -> tuple[str, ...]:
        return (self.python, "-m", "ray.scripts.scripts", "start")  # what the command ray runs, in any environment

    @property
    def _shape(self) -> tuple[str, ...]:
        ports = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
        return (f"--num-gpus={self.gpus}", f"--num-cpus={self.cpus}", *ports, "--disable-usage-stats", "--block")


@dataclass(frozen=True)
class ExternalProgram:
    """A command as it is run in ``trainer.workdir``, what it finds in its environment, and how to read its log.

    ``log`` is read every second, unless the program has our Callback, which writes metrics itself. With ``ray`` it runs once,
    on the first node, and the job starts that cluster around it.
    """

    command: tuple[str, ...]
    log: Log
    environment: Mapping[str, str] = field(default_factory=dict)
    ray: RayCluster | None = None


@dataclass(frozen=True)
class ExternalTrainer:
    """What builds the program of one ``trainer.kind``, and what the kind needs.

    ``kind`` is the framework's name if empty. ``output`` is the key of a recipe that says where the program writes.
    ``needs_script``: it runs ``trainer.script``. ``ray_cpus``: the CPUs a GPU that it reserves in a Ray cluster, so that fewer
    let it wait forever (0: it does not use Ray).
    """

    build: Callable[[Trial], ExternalProgram]
    kind: str = ""
    output: str = "output_dir"
    needs_script: bool = False
    ray_cpus: int = 0


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
            history = (read_json(newest) or {}).get("log_history", [])
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
