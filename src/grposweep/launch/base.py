"""The contract of a launcher: it starts the ranks of an attempt, says how they ended, and ends them on request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

# How an attempt's first rank ends (and with it the attempt): what train promises its launcher.
FINISHED, CRASHED, BAD_INPUT, STOPPED = 0, 1, 2, 3


@dataclass(frozen=True)
class Job:
    """What a launcher is asked to run: the ranks of one attempt in one trial folder."""

    folder: Path
    attempt: int
    processes: int
    threads: int
    environment: Mapping[str, str] = field(default_factory=dict)


class Launcher(Protocol):
    """One place where attempts run."""

    slots: int
    """How many attempts may run at once."""

    def submit(self, job: Job) -> str:
        """Start an attempt; returns an id for poll and cancel."""

    def poll(self, job_id: str) -> int | None:
        """The attempt's exit code (negative: ended by that signal), None while it runs."""

    def cancel(self, job_id: str) -> None:
        """End an attempt now."""

    def close(self) -> None:
        """End whatever still runs and give everything back."""
