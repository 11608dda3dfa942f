"""The contract of a launcher: it starts the ranks of an attempt, says how they ended, and ends them on request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from grposweep.schema import Cluster, Generation


@dataclass(frozen=True)
class Job:
    """What a launcher is asked to run: the ranks of one attempt in one trial folder, in the shape of ``cluster``.

    ``starts_ranks``: a program starts its ranks itself, so one process of ours a node has all of the node's GPUs.
    """

    folder: Path
    attempt: int
    cluster: Cluster
    generation: Generation = field(default_factory=Generation)
    environment: Mapping[str, str] = field(default_factory=dict)
    starts_ranks: bool = False


@dataclass(frozen=True)
class End:
    """How an attempt ended; ``code`` is its `ExitCode` (negative: ended by that signal)."""

    code: int
    kind: str = ""
    """What the place says of it where an exit code does not: timeout, preempted, out_of_memory, cancelled, ..."""
    message: str = ""
    again: bool = False
    """It was taken away and did not fail: a new attempt is to go on from its last checkpoint."""
    nodes: str = ""
    """Where it ran, as the place writes lists of nodes."""


class LauncherBusy(Exception):
    """The place takes no further attempt now (a full queue, a scheduler that does not answer); later it may."""


class Launcher(Protocol):
    """One place where attempts run."""

    slots: int
    """How many attempts may be there at once."""
    outlives: bool
    """Whether attempts go on without their controller."""

    def submit(self, job: Job) -> str:
        """Start an attempt; returns an id for poll and cancel. Raises Busy, or UserError for what will never run."""

    def find(self, job: Job, job_id: str | None) -> str | None:
        """The id under which an earlier controller's attempt can be polled and cancelled from now on.

        ``job_id`` None: it was about to submit. None: there is no such attempt.
        """

    def poll(self, job_id: str) -> End | None:
        """How an attempt ended, None while it waits or runs."""

    def waiting(self, job_id: str) -> str:
        """Why an attempt does not run yet, in the place's own words; empty while it runs."""

    def cancel(self, job_id: str) -> None:
        """End an attempt now."""

    def close(self) -> None:
        """End whatever does not outlive its controller, and give everything back."""
