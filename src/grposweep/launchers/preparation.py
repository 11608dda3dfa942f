"""Where models and data are prepared: on this machine, or as a Slurm job where this machine lacks the network or the memory."""

import shlex
import sys
import time
from pathlib import Path
from typing import Protocol

from grposweep.errors import UserError
from grposweep.files import write_text
from grposweep.launchers.base import LauncherBusy
from grposweep.launchers.slurm import commands as queue
from grposweep.launchers.slurm.commands import ALIVE
from grposweep.launchers.slurm.script import asked_of, quoted, render, sweep_name
from grposweep.process import Processes, end_session
from grposweep.schema import Cluster
from grposweep.storage.exit_code import ExitCode

LOOK_SECONDS = 0.2


class Preparer(Protocol):
    """Runs ``python -m grposweep.train prepare <sweep>`` once."""

    where: str
    """What to tell a person about it."""

    def start(self, sweep: Path, log: Path) -> None:
        """Begin; what it says goes to ``log``."""

    def poll(self) -> int | None:
        """Its exit code, None while it waits or runs; takes about 0.2 seconds."""

    def end(self) -> None:
        """Stop it now."""


class LocalPreparation:
    """A process of this machine's."""

    where = "importing torch and trl takes a few seconds"

    def __init__(self, processes: Processes) -> None:
        self._processes, self._pid = processes, 0

    def start(self, sweep: Path, log: Path) -> None:
        """Through the same server as the trials."""
        self._pid = self._processes.start(["prepare", str(sweep)], {}, log)

    def poll(self) -> int | None:
        """The process's exit code."""
        return self._processes.poll(self._pid, timeout=LOOK_SECONDS)

    def end(self) -> None:
        """Kill it, and what it started."""
        end_session(self._pid)


class SlurmPreparation:
    """A job of one task without GPUs, where the trials' jobs run."""

    where = "as a Slurm job"

    def __init__(self, cluster: Cluster, code: Path) -> None:
        """``code`` is the folder whose grposweep the job runs."""
        self._cluster, self._code = cluster, code
        self._job_id, self._done = "", Path()
        self._read_at = 0.0

    def start(self, sweep: Path, log: Path) -> None:
        """Submit it, unless an earlier controller's still waits or runs.

        Raises UserError where Slurm does not take it.
        """
        self._done = sweep / "prepare" / "exit_code"
        name = f"{sweep_name(sweep)}:prepare"
        try:
            alive = [job for job in queue.read_queue().values() if job.name == name and job.state in ALIVE]
            if not alive:
                self._done.unlink(missing_ok=True)
            self._job_id = alive[0].job_id if alive else queue.submit(self._write(sweep, name, log), self._cluster)
        except (LauncherBusy, queue.Unreachable) as error:
            raise UserError(
                f"cluster.prepare=job: Slurm takes no job now ({error}). Give the command again later, or "
                "set cluster.prepare=here."
            ) from error
        self.where, self._read_at = f"as Slurm job {self._job_id}", time.monotonic()

    def poll(self) -> int | None:
        """The code that its script left; FAILED where the job is gone without one."""
        time.sleep(LOOK_SECONDS)
        code = self._left()
        if code is None and time.monotonic() - self._read_at > self._cluster.poll_seconds:
            self._read_at = time.monotonic()
            return self._lost()
        return code

    def end(self) -> None:
        """Cancel the job."""
        queue.cancel([self._job_id])

    def _left(self) -> int | None:
        try:
            return int(self._done.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):  # ValueError: about to be written
            return None

    def _lost(self) -> int | None:
        try:
            entry = queue.read_queue().get(self._job_id)
        except queue.Unreachable:
            return None
        if entry is not None and entry.state in ALIVE:
            return None
        return self._left() or ExitCode.FAILED

    def _write(self, sweep: Path, name: str, log: Path) -> Path:
        cluster, script = self._cluster, sweep / "prepare" / "job.sbatch"
        options = [
            f"--job-name={name}",
            "--nodes=1",
            "--ntasks=1",
            "--cpus-per-task=1",
            *asked_of(cluster),
            *cluster.extra,
        ]
        text = render(
            "prepare.sbatch.j2",
            name=name,
            options=options,
            setup=cluster.setup,
            log=quoted(log),
            working_directory=quoted(Path.cwd()),
            code=quoted(self._code),
            container=[shlex.quote(option) for option in cluster.container],
            python=shlex.quote(cluster.python or sys.executable),
            folder=quoted(sweep),
            done=quoted(self._done),
        )
        write_text(script, text)
        return script
