"""Everything but the submission: scripts are written, and the commands that would submit them are printed."""

import shlex
from collections.abc import Callable
from pathlib import Path

from grposweep.launchers.base import End, Job
from grposweep.launchers.slurm.script import submit_command, write_script

ALL = 1_000_000  # slots: nothing runs, so nothing has to wait


class DryRun:
    """Prints an sbatch command for each attempt."""

    slots = ALL
    outlives = True

    def __init__(self, sweep: Path, code: Path, say: Callable[[str], None]) -> None:
        self._sweep, self._code, self._say = sweep, code, say

    def submit(self, job: Job) -> str:
        """Write the script, say its command."""
        self._say(shlex.join(submit_command(write_script(job, self._sweep, self._code))))
        return "dry run"

    def find(self, job: Job, job_id: str | None) -> str | None:  # noqa: ARG002 - the contract's arguments
        """None: nothing was ever submitted."""
        return None

    def poll(self, job_id: str) -> End | None:  # noqa: ARG002 - the contract's arguments
        """None: nothing ends."""
        return None

    def waiting(self, job_id: str) -> str:  # noqa: ARG002 - the contract's arguments
        """Nothing waits."""
        return ""

    def cancel(self, job_id: str) -> None:
        """Nothing to cancel."""

    def close(self) -> None:
        """Nothing to end."""
