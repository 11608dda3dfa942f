"""Do everything but submit: write scripts, and print the commands that would submit them."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

from grporecipe.terminal import count
from grposweep.launchers import launcher_class
from grposweep.launchers.base import End, Job, Launcher
from grposweep.schema import Experiment, Jobs

# slots: nothing runs, so nothing has to wait
ALL = 1_000_000


class DryRun(Launcher):
    """Writes what another launcher would submit, and prints its commands."""

    kind = "dry_run"
    rehearses: ClassVar[str] = "slurm"
    """The other launcher, which has a `script_writer`; a subclass names one of its own."""
    section = Jobs
    is_dry = True
    outlives = True
    ranks_follow = True
    slots = ALL

    def __init__(
        self,
        sweep: Path,
        write: Callable[[Job], Sequence[str]],
        write_controller: Callable[[Sequence[str]], Sequence[str]] | None = None,
    ) -> None:
        self._sweep, self._write, self._write_controller = sweep, write, write_controller

    @classmethod
    def rehearsed(cls) -> type[Launcher]:
        """Return the launcher whose scripts are written."""
        return launcher_class(cls.rehearses)

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:
        """Return the dry run of a sweep; works on every machine."""
        rehearsed = cls.rehearsed()
        return cls(
            sweep,
            rehearsed.script_writer(experiment, sweep),
            rehearsed.controller_writer(experiment, sweep),
        )

    @classmethod
    def validate(cls, experiment: Experiment) -> None:
        """Raise the errors that submitting would raise."""
        cls.rehearsed().validate(experiment)

    def submit(self, job: Job) -> str:
        """Write the script and print its command."""
        self.console(shlex.join(self._write(job)))
        return "dry run"

    @property
    def hands_over(self) -> bool:
        """Return whether the controller would be a job."""
        return self._write_controller is not None

    def submit_controller(self, command: Sequence[str]) -> str:
        """Write the controller's script; return the command that would submit it, which then
        submits all others.
        """
        # `hands_over` says so
        assert self._write_controller is not None
        real = [
            f"cluster={self.rehearses}" if word == f"cluster={self.kind}" else word
            for word in command
        ]
        return (
            "the controller's job, which submits the trials' jobs: "
            f"{shlex.join(self._write_controller(real))}"
        )

    def poll(self, job_id: str) -> End | None:  # noqa: ARG002 - the contract's arguments
        """Return None: nothing ends."""
        return None

    def cancel(self, job_id: str) -> None:
        """Do nothing: nothing runs."""

    def detach_message(self, job_ids: Sequence[str]) -> str:
        """Return how many trials are written, and how to submit them."""
        are = "is" if len(job_ids) == 1 else "are"
        written = (
            f"{count(len(job_ids), 'trial')} {are} written in {self._sweep} and none is submitted"
        )
        return f"{written}; the same command with cluster={self.rehearses} submits them"
