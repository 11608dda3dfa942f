"""The contract of external trainers: the command that starts one, where it runs, and how its log is
read.

Nothing runs here, so a command can be shown without submitting anything; ``command/follow.py`` runs
it. An external trainer is a file of this package and a line in ``grposweep.registries.EXTERNAL``.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grporecipe.files import count_or_none, read_json
from grposweep.storage import paths

# lint loads every framework and needs no schema
if TYPE_CHECKING:
    from grposweep.schema import Cluster, Trainer


@dataclass(frozen=True)
class Entry:
    """One entry of a program's log: ``kind`` is train or eval, ``step`` counts optimizer steps.

    An empty ``kind`` is unknown: the entry is an evaluation if it has the objective.
    """

    kind: str
    step: int
    values: Mapping[str, Any]


# what was logged since the last call; empty while the file does not exist
Log = Callable[[], list[Entry]]


@dataclass(frozen=True)
class NodeContext:
    """The place of a process: it starts the ranks of one of ``nodes`` nodes, which meet at
    ``address``.

    ``processes`` are the training ranks of all nodes together, ``gpus`` and ``cpus`` what the job
    has of each node.
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


def meeting(place: NodeContext) -> dict[str, str]:
    """Return the variables by which a launch on one of several nodes finds the others; empty for a
    single node.
    """
    if place.nodes == 1:
        return {}
    return {
        "NNODES": str(place.nodes),
        "NODE_RANK": str(place.node),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
    }


def node_cpus(cluster: "Cluster") -> int:
    """Return the CPUs that a job has on each node: the shares of its GPUs, or those of its
    tasks.
    """
    if cluster.gpus_per_node:
        return cluster.gpus_per_node * cluster.cpus_per_gpu
    return cluster.tasks_per_node * cluster.threads


@dataclass(frozen=True)
class Trial:
    """The inputs of a program: the user's settings, the point's recipe, and the trial's folder.

    The recipe is in ``folder / paths.RECIPE`` as well. ``output`` is where the program keeps
    checkpoints and model; ``checkpoint`` is the one in it to resume from.
    """

    trainer: "Trainer"
    folder: Path
    recipe: Mapping[str, Any]
    place: NodeContext = NodeContext()
    checkpoint: Path | None = None

    @property
    def output(self) -> Path:
        """Return the program's output folder; the controller deletes it as ``trainer.keep``
        says.
        """
        return self.folder / "model"

    @property
    def file(self) -> Path:
        """Return the path of the point's recipe."""
        return self.folder / paths.RECIPE


def interpreter(trainer: "Trainer") -> str:
    """Return the Python of the program's environment. A relative path starts here, even if the
    program runs in another folder.
    """
    python = trainer.python or sys.executable
    # links lead out of an environment
    return os.path.abspath(python) if os.sep in python else python  # noqa: PTH100


# in a trial's folder: the user's recipe with the point's parameters, under native keys
@dataclass(frozen=True)
class RayCluster:
    """A Ray cluster on a job's nodes, each with ``gpus`` and ``cpus``; ``python`` has Ray and
    starts a node.

    Jobs may share a node, so Ray chooses free ports. With the defaults jobs would collide at 6379,
    10001, 52365 and in 10002-19999. Source: ray 2.60 scripts/scripts.py.
    """

    python: str
    nodes: int
    gpus: int
    cpus: int

    def start_head(self, temporary: str, *further: str) -> tuple[str, ...]:
        """Return the command of the first node. It writes its address to a file in ``temporary``
        and keeps running.
        """
        own = (
            "--head",
            "--port=0",
            "--include-dashboard=false",
            f"--temp-dir={temporary}",
            *further,
        )
        return (*self._start, *own, *self._shape)

    def start_worker(self, address: str) -> tuple[str, ...]:
        """Return the command of every other node; ``address`` is the head's, with its port."""
        return (*self._start, f"--address={address}", *self._shape)

    @property
    def _start(self) -> tuple[str, ...]:
        # this is what the command ray runs, in any environment
        return (self.python, "-m", "ray.scripts.scripts", "start")

    @property
    def _shape(self) -> tuple[str, ...]:
        ports = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
        return (
            f"--num-gpus={self.gpus}",
            f"--num-cpus={self.cpus}",
            *ports,
            "--disable-usage-stats",
            "--block",
        )


@dataclass(frozen=True)
class ExternalProgram:
    """A command that runs in ``trainer.workdir``, its environment, and how to read its log.

    ``log`` is read every second, unless the program uses grposweep's Callback, which writes metrics
    itself. With ``ray`` it runs once, on the first node, and the job starts that cluster around it.
    ``reports``: its trainer gets our Callback by itself; a program whose trainer never reports has
    not got its trial's values. ``resumed_at``: the step up to which its earlier metrics stay; None
    if it logs all of them again. ``finishes``: it ends with an error if it is asked to end.
    """

    command: tuple[str, ...]
    log: Log
    environment: Mapping[str, str] = field(default_factory=dict)
    ray: RayCluster | None = None
    reports: bool = False
    resumed_at: int | None = None
    finishes: bool = True


NAME = "trainer_state.json"


class TrainerStateTail:
    """Reads the log that transformers' Trainer always writes: the newest trainer_state.json below
    an output folder.

    The file is written with every checkpoint, so entries arrive as often as the recipe saves.
    States from before the program's start are skipped.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        # entries of the history that were returned
        self.seen = 0
        self.before = {path: path.stat().st_mtime_ns for path in self._states()}

    def __call__(self) -> list[Entry]:
        """Return the entries since the last call."""
        changed = [
            path for path in self._states() if path.stat().st_mtime_ns != self.before.get(path)
        ]
        newest = max(changed, key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is None:
            return []
        try:
            history = (read_json(newest) or {}).get("log_history")
        except OSError:
            # the file was just rotated
            return []
        if not isinstance(history, list):
            return []
        new, self.seen = history[self.seen :], max(self.seen, len(history))
        # a run's last line has times and the mean loss, and is not a step
        return [
            as_entry(line) for line in new if isinstance(line, dict) and "train_runtime" not in line
        ]

    def _states(self) -> list[Path]:
        return [*self.output.glob(NAME), *self.output.glob(f"checkpoint-*/{NAME}")]


def as_entry(line: dict[str, Any]) -> Entry:
    """Convert a line of the history; the keys of evaluations identify them."""
    kind = "eval" if any(name.startswith("eval_") for name in line) else "train"
    return Entry(
        kind,
        count_or_none(line.get("step")) or 0,
        {name: value for name, value in line.items() if name != "step"},
    )
