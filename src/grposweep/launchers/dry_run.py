"""Everything but the submission: scripts are written, and the commands that would submit them are printed."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from grposweep.launchers.base import End, Job, Launcher
from grposweep.launchers.slurm.launcher import Slurm, code_for
from grposweep.launchers.slurm.script import submit_command, write_script
from grposweep.schema import Experiment

ALL = 1_000_000  # slots: nothing runs, so nothing has to wait


class DryRun(Launcher):
    """Prints an sbatch command for each attempt."""

    kind = "dry_run"
    is_dry = True
    outlives = True
    slots = ALL

    def __init__(self, sweep: Path, code: Path) -> None:
        self._sweep, self._code = sweep, code

    @classmethod
    def build(cls, experiment: Experiment, sweep: Path) -> Self:
        """Return the dry run of a sweep; works on every machine."""
        return cls(sweep, code_for(experiment.cluster, sweep))

    @classmethod
    def validate(cls, experiment: Experiment) -> None:
        """Raise what submitting would raise."""
        Slurm.validate(experiment)

    def submit(self, job: Job) -> str:
        """Write the script and print its command."""
        self.console(shlex.join(submit_command(write_script(job, self._sweep, self._code))))
        return "dry run"

    def poll(self, job_id: str) -> End | None:  # noqa: ARG002 - the contract's arguments
        """Return None: nothing ends."""
        return None

    def cancel(self, job_id: str) -> None:
        """Do nothing: nothing runs."""

    def detach_message(self, job_ids: Sequence[str]) -> str:
        """Return how many trials are written, and how to submit them."""
        written = f"{len(job_ids)} trials are written in {self._sweep} and none is submitted"
        return f"{written}; the same command with cluster=slurm submits them"
