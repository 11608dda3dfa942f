"""The contract of a launcher: one class for each place where attempts run.

A new launcher is a subclass of `Launcher` and its line in ``registries.LAUNCHERS``. It must start
an attempt's ranks, report how they ended and end them on request. The rest has defaults, which suit
attempts that end with their controller. If they outlive it, their jobs are a `Scheduler`.
"""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from grporecipe.errors import UserError
from grporecipe.terminal import count
from grposweep.launchers.gpu_memory import GpuMemory
from grposweep.process import SOURCE, SpawnedProcesses, end_session
from grposweep.process.variables import RankPlace
from grposweep.schema import Cluster, Experiment, Generation, Place
from grposweep.storage.folders import TrialFolder
from grposweep.storage.records import AttemptEventKind, read_attempts
from grposweep.storage.results import read_runs

PREPARATION_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Job:
    """One attempt to run: the ranks of a trial folder, in the shape of ``cluster``.

    ``starts_ranks``: an external program starts its ranks itself. Then one process of ours per node
    gets all of its GPUs.
    """

    folder: Path
    attempt: int
    cluster: Cluster
    generation: Generation = field(default_factory=Generation)
    starts_ranks: bool = False
    needs_gib: float | None = None
    """GPU memory that a rank is known to need; None: not known."""
    was_crowded_out: bool = False
    """An earlier attempt ran out of GPU memory because processes of others held it."""
    serves: bool = False
    """It is the vLLM server that the trials of a sweep share, one process with all of the job's
    GPUs (``starts_ranks``).
    """

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of ``python -m grposweep.train``."""
        folder = str(self.folder.resolve())
        return ["serve", folder] if self.serves else [folder]


class EndState(StrEnum):
    """What a launcher knows about an attempt's end beyond the exit code; written to
    attempts.jsonl.
    """

    NONE = ""
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    STOPPED = "stopped"
    """A signal that the sweep did not send stopped it at a rollout boundary."""
    NODE_FAILED = "node_fail"
    VANISHED = "vanished"
    """The launcher no longer knows the attempt, and there is no result."""
    OUT_OF_MEMORY = "out_of_memory"
    """The host's memory."""
    CANCELLED = "cancelled"
    SERVER_ENDED = "vllm_server"
    FORK_SERVER_DIED = "fork_server"
    """The warm server died, and the trials that it had forked died with it."""
    HANG = "hang"
    """The sweep ended it because it showed no sign of life."""


@dataclass(frozen=True)
class End:
    """How an attempt ended; ``code`` is its `ExitCode` (negative: ended by that signal)."""

    code: int
    kind: EndState = EndState.NONE
    message: str = ""
    again: bool = False
    """The attempt was preempted or lost its node, and did not fail: a new one continues from its
    last checkpoint.
    """
    nodes: str = ""
    """Where it ran, in the launcher's notation for a list of nodes."""


@dataclass(frozen=True)
class SweepJob:
    """A job that waits or runs. ``trial`` and ``attempt`` are set for an attempt of the sweep in
    question.
    """

    job_id: str
    trial: str = ""
    attempt: int | None = None
    is_controller: bool = False
    is_of_sweep: bool = True


class LauncherBusy(Exception):
    """The launcher takes no further attempt now: a full queue, a scheduler that does not answer.
    Try again later.
    """

    seconds = 30.0
    """Until it is asked again."""


class GpuBusy(LauncherBusy):
    """Processes of others hold the GPU memory that an attempt needs. ``holders`` is the same while
    only amounts change.
    """

    seconds = 5.0

    def __init__(self, message: str, holders: str) -> None:
        super().__init__(message)
        self.holders = holders


class LauncherUnreachable(Exception):
    """The launcher's scheduler gave no answer."""


class Preparation:
    """Runs ``python -m grposweep.train prepare <sweep>`` once, in a process of this machine."""

    where = "importing torch and trl takes a few seconds"
    """Where it runs, for the message to the user."""

    def __init__(self, processes: SpawnedProcesses, environment: Mapping[str, str]) -> None:
        self._processes, self._environment, self._pid = processes, environment, 0

    def start(self, sweep: Path, log: Path) -> None:
        """Begin; the output goes to ``log``. Raises UserError if it cannot run there."""
        self._pid = self._processes.start(["prepare", str(sweep)], self._environment, log)

    def poll(self) -> int | None:
        """Return the exit code, or None while it waits or runs; takes about 0.2 seconds."""
        return self._processes.poll(self._pid, timeout=PREPARATION_POLL_SECONDS)

    def end(self) -> None:
        """Stop it now."""
        end_session(self._pid)


class Gpus:
    """What a launcher knows of the GPUs of its attempts, and of the processes on them.

    By default an attempt has its GPUs to itself.
    """

    @property
    def sees_memory(self) -> bool:
        """Whether an attempt starts only if others leave it its GPU memory (``Job.needs_gib``)."""
        return False

    def memory(self, job_id: str) -> Sequence[GpuMemory]:  # noqa: ARG002 - the contract's arguments
        """Return the present memory of an attempt's GPUs; empty if it cannot be read."""
        return ()

    def owns(self, pid: int, ended: bool = False) -> bool:  # noqa: ARG002 - the contract's arguments
        """Return whether a process on an attempt's GPU is one of this sweep's.

        ``ended``: those that have ended may be.
        """
        return ended


class Scripts(NamedTuple):
    """What writes the scripts of a scheduler; each function returns the command to submit one."""

    attempt: Callable[[Job], Sequence[str]]
    controller: Callable[[Sequence[str]], Sequence[str]] | None
    """For a command that controls the sweep; None if that is to run here."""


class Scheduler(ABC):
    """The jobs of a launcher whose attempts outlive their controller.

    It reads a sweep's folder and asks the scheduler, so it works without a running sweep.
    """

    kind: ClassVar[str]
    """The launcher's name in ``cluster.kind``."""
    name: ClassVar[str]
    """What decides when jobs run, in messages."""
    job_name: ClassVar[str]
    """What one job is called in messages, such as ``Slurm job``."""

    @abstractmethod
    def may_have_started(self, trial: Path, job_id: str | None) -> bool:
        """Return whether an open attempt in this trial folder may be one of its jobs, by its files.

        ``job_id`` is None if the attempt was announced, and its id was never noted.
        """

    @abstractmethod
    def may_have_jobs(self, sweep: Path) -> bool:
        """Return whether the sweep's controller, preparation or attempts may be its jobs.

        Its files tell.
        """

    @abstractmethod
    def list_jobs(self, sweep: Path) -> list[SweepJob]:
        """Return the jobs that wait or run. Raises LauncherUnreachable."""

    @abstractmethod
    def cancel_jobs(self, job_ids: Sequence[str]) -> None:
        """End jobs. Those that have already ended are not an error."""

    @abstractmethod
    def cancel_command(self, job_ids: Sequence[str]) -> str:
        """Return the command with which the user ends jobs."""

    def scripts(self, experiment: Experiment, sweep: Path) -> Scripts:
        """Return what writes scripts, for a dry run; works on every machine."""
        raise NotImplementedError(f"{self.kind} submits no scripts")

    def check_available(self) -> None:  # noqa: B027 - a default
        """Raise UserError if nothing could be submitted from here now.

        Called before a new sweep's folder is created.
        """

    def rank_place(self, environment: Mapping[str, str]) -> RankPlace:
        """Return a rank's place in its job.

        Called in a rank in whose environment ``GRPOSWEEP_RANKS`` names this launcher. Without that
        variable a rank expects torch's own (RANK, WORLD_SIZE, ...).
        """
        raise NotImplementedError(f"{self.kind} sets torch's variables itself")

    def code_of(self, trial: Path) -> Path | None:  # noqa: ARG002 - the contract's arguments
        """Return the copy of the code that the trial's last attempt ran.

        None if it ran none, or if the copy is gone.
        """
        return None


@dataclass(frozen=True)
class Description:
    """What a launcher makes of ``cluster``.

    Args:
        devices: how many devices an attempt holds; a rank without a GPU counts as one.
        warning_seconds: how long before a job's time limit its attempt is asked to stop.
        has_own_environment: whether attempts run in another Python than the controller's.

    """

    devices: int
    warning_seconds: int | None = None
    has_own_environment: bool = False


class Launcher(ABC):
    """One place where attempts run: `submit`, `poll`, `cancel`, `find` and `describe`.

    Class methods read the configuration alone. An instance serves one controller.
    """

    kind: ClassVar[str]
    """The name in ``cluster.kind`` and in ``registries.LAUNCHERS``."""
    outlives: ClassVar[bool] = False
    """Whether attempts continue without their controller."""
    is_dry: ClassVar[bool] = False
    """Whether attempts are only written to disk."""
    ranks_follow: ClassVar[bool] = False
    """Whether the number of ranks follows from the shape of a job (``cluster.nodes``, ...)."""
    shares_gpus: ClassVar[bool] = False
    """Whether ``cluster.trials_per_gpu`` may be another number than 1."""
    section: ClassVar[type[Place]] = Cluster
    """The keys of ``cluster`` that it reads; others need another launcher."""
    log_patterns: ClassVar[Sequence[tuple[EndState, str]]] = ()
    """Regular expressions for lines in logs by which the launcher reports an end."""
    scheduler: ClassVar[Scheduler | None] = None
    """Its jobs, if attempts outlive their controller."""
    slots: int
    """How many attempts may be there at once."""
    gpus = Gpus()
    """The GPUs of attempts."""
    submit_controller: Callable[[Sequence[str]], str] | None = None
    """Submits a command as the job that controls the sweep, and returns the message to the user.

    None: the controller continues here.
    """
    console: Callable[[str], None] = print
    """Prints a line to the user."""

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:
        """Return the launcher of a sweep. Raises UserError if this machine cannot be one."""
        raise NotImplementedError(f"{cls.__name__} is registered without `build`")

    @classmethod
    def unread_keys(cls) -> list[str]:
        """Return the keys of ``cluster`` that only other launchers read."""
        return [
            f"cluster.{name}"
            for name in Cluster.__dataclass_fields__
            if name not in cls.section.__dataclass_fields__
        ]

    @classmethod
    def check_gpu_share(cls, experiment: Experiment) -> None:
        """Raise UserError if several trials are to share a GPU, and cannot."""
        share = experiment.cluster.trials_per_gpu
        if share != 1 and not cls.shares_gpus:
            raise UserError(
                f"cluster.trials_per_gpu={share} with cluster={cls.kind}: a job has its GPUs to "
                "itself. Set cluster.trials_per_gpu=1."
            )

    @classmethod  # noqa: B027 - a default
    def validate(cls, experiment: Experiment) -> None:
        """Raise UserError if the configuration cannot work with this launcher.

        It does not look at this machine. By default every configuration is fine.
        """

    @classmethod
    def describe(cls, cluster: Cluster) -> Description:
        """Return what the launcher makes of a configuration."""
        return Description(cluster.processes)

    def admit(self, experiment: Experiment) -> None:  # noqa: B027 - a default
        """Raise UserError if an attempt of this experiment can never run here.

        Called before the first one starts. By default every attempt can run.
        """

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Start an attempt; return an id for `poll` and `cancel`.

        Other launchers must not use the same ids. One that starts with ``local`` is of an attempt
        that ends with its controller. Raises LauncherBusy, or UserError for a job that can never
        run.
        """

    def find(self, job: Job, job_id: str | None) -> str | None:  # noqa: ARG002 - the contract's arguments
        """Return the id under which an earlier controller's attempt can be polled.

        None if there is no such attempt. ``job_id`` is None if that controller died while it
        submitted. Raises LauncherBusy if it cannot tell.
        """
        return None

    @abstractmethod
    def poll(self, job_id: str) -> End | None:
        """Return how an attempt ended, or None while it waits or runs."""

    def waiting(self, job_id: str) -> str:  # noqa: ARG002 - the contract's arguments
        """Return why an attempt does not run yet, in the launcher's words; empty while it runs."""
        return ""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """End an attempt now. One that has already ended is not an error."""

    def close(self) -> None:  # noqa: B027 - a default
        """End everything that does not outlive its controller, and release resources."""

    def preparation(self, cluster: Cluster) -> Preparation:
        """Return the object that prepares models and data."""
        return Preparation(SpawnedProcesses(SOURCE), cluster.environment)

    def detach_message(self, job_ids: Sequence[str]) -> str:
        """Return the message for the user when the controller leaves its attempts.

        It is empty if attempts end with their controller.
        """
        if self.scheduler is None:
            return ""
        return (
            f"detached: {count(len(job_ids), 'job')} queued or running continue; the same command "
            "returns to them and submits the rest. To end them: "
            f"{self.scheduler.cancel_command(job_ids)}"
        )


def limit_requeues(end: End, job: Job) -> End:
    """Return the end, turned into a failure if the trial was taken away too often
    (``cluster.requeue_limit``).
    """
    if not end.again:
        return end
    taken = sum(bool(event.again) for event in read_attempts(job.folder))
    taken += sum(run.restarts > 0 for run in read_runs(job.folder))
    limit = job.cluster.requeue_limit
    if taken < limit:
        return end
    message = (
        f"{end.message}; it was taken away {taken + 1} times, and cluster.requeue_limit={limit}. "
        "Set that higher if it made progress, otherwise a longer cluster.walltime_min or more "
        "schedule.checkpoints."
    )
    return End(end.code, end.kind, message)


def note_cancelled(trial: TrialFolder, attempt: int) -> None:
    """Note the end of an attempt whose job grposweep cancelled: a later controller would take it
    for a failure.
    """
    trial.note_attempt(
        attempt, AttemptEventKind.ENDED, code=-signal.SIGTERM, killed=True, kind=EndState.CANCELLED
    )


def is_controller_job() -> bool:
    """Return whether this process is a controller that runs as a job."""
    return "GRPOSWEEP_CONTROLLER" in os.environ
