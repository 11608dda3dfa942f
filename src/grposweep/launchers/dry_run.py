"""Do everything but submit: write scripts, and print the commands that would submit them."""

import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from grporecipe.terminal import count
from grposweep.launchers import launcher_class
from grposweep.launchers.base import End, Job, Launcher, Scripts
from grposweep.schema import Experiment, Jobs

# slots: nothing runs, so nothing has to wait
ALL = 1_000_000


class DryRun(Launcher):
    """Writes what another launcher would submit, and prints its commands."""

    kind = "dry_run"
    rehearses: ClassVar[str] = "slurm"
    """The other launcher, whose scheduler writes scripts; a subclass names one of its own."""
    section = Jobs
    is_dry = True
    outlives = True
    ranks_follow = True
    slots = ALL

    def __init__(self, sweep: Path, scripts: Scripts) -> None:
        self._sweep = sweep
        self._scripts = scripts
        if scripts.controller is not None:
            self.submit_controller = partial(self._show_controller, scripts.controller)

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:
        """Return the dry run of a sweep; works on every machine."""
        scheduler = launcher_class(cls.rehearses).scheduler
        assert scheduler is not None
        return cls(sweep, scheduler.scripts(experiment, sweep))

    @classmethod
    def validate(cls, experiment: Experiment) -> None:
        """Raise the errors that submitting would raise."""
        launcher_class(cls.rehearses).validate(experiment)

    def submit(self, job: Job) -> str:
        """Write the script and print its command."""
        self.console(shlex.join(self._scripts.attempt(job)))
        return "dry run"

    def _show_controller(
        self, write: Callable[[Sequence[str]], Sequence[str]], command: Sequence[str]
    ) -> str:
        """Write the controller's script; return the command that would submit it.

        That job then submits all others.
        """
        real = {f"cluster={self.kind}": f"cluster={self.rehearses}"}
        shown = shlex.join(write([real.get(word, word) for word in command]))
        return f"the controller's job, which submits the trials' jobs: {shown}"

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
