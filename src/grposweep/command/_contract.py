"""The contract of external trainers: the command that starts one, where it runs, and how its log is
read.

Nothing runs here, so a command can be shown without submitting anything; ``command/follow.py`` runs
it. An external trainer is a file of this package and a line in
``grposweep.schema.registries.EXTERNAL``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from grporecipe.files import Config
from grporecipe.model.recipe import Recipe

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
    values: Config


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


def meeting(context: NodeContext) -> dict[str, str]:
    """Return the variables by which a launch on one of several nodes finds the others; empty for a
    single node.
    """
    if context.nodes == 1:
        return {}
    return {
        "NNODES": str(context.nodes),
        "NODE_RANK": str(context.node),
        "MASTER_ADDR": context.address,
        "MASTER_PORT": str(context.port),
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

    ``output`` is where the program keeps checkpoints and model;
    ``checkpoint`` is the one in it to resume from.
    """

    trainer: "Trainer"
    folder: Path
    recipe: Recipe
    place: NodeContext = NodeContext()
    checkpoint: Path | None = None

    @property
    def output(self) -> Path:
        """Return the program's output folder; the controller deletes it as ``trainer.keep``
        says.
        """
        return self.folder / "model"


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
