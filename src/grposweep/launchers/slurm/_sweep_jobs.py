"""The jobs of a sweep that are no attempts: its controller, and the preparation of models and
data.
"""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import write_text
from grposweep.launchers.base import (
    PREPARATION_POLL_SECONDS,
    LauncherBusy,
    LauncherUnreachable,
    Preparation,
    is_controller_job,
)
from grposweep.launchers.slurm import _commands as commands
from grposweep.launchers.slurm._script import (
    build_job_name,
    environment_lines,
    keep_output,
    mount_sources,
    python_command,
    quoted,
    render_template,
    service_cluster,
    service_options,
)
from grposweep.schema import Cluster
from grposweep.storage import paths

# the first part of their names
CONTROLLER, PREPARE = "controller", "prepare"
# of a controller with thousands of trials
CONTROLLER_MEMORY_GB = 4


def hands_over(cluster: Cluster) -> bool:
    """Return whether a job must continue from here; never inside that job."""
    return cluster.controller == "job" and not is_controller_job()


def submit_controller(cluster: Cluster, sweep: Path, command: Sequence[str]) -> str:
    """Submit the controller as a job of one CPU that requeues itself before its time limit.

    A controller that waits or runs already is kept. Returns the message to the user. Raises
    UserError if Slurm does not take the job.
    """
    name = build_job_name(CONTROLLER, sweep)
    log = sweep / paths.CONTROLLER_OUTPUT
    try:
        if waiting := _living(name):
            return f"the controller is Slurm job {waiting} already; its output is in {log}"
        job_id = commands.submit_script(
            write_controller(cluster, sweep, command), service_cluster(cluster)
        )
    except (LauncherBusy, LauncherUnreachable) as error:
        raise UserError(
            f"cluster.controller=job: Slurm does not take the controller now ({error}), and no "
            "process here waits for it. "
            "Give the command again later, or set cluster.controller=here, which waits."
        ) from error
    return (
        f"the controller is Slurm job {job_id}; its output is in {log}, and scancel {job_id} "
        "detaches it"
    )


def write_controller(cluster: Cluster, sweep: Path, command: Sequence[str]) -> Path:
    """Write the script of a sweep's controller; return its path."""
    name = build_job_name(CONTROLLER, sweep)
    script = sweep / "controller.sbatch"
    text = render_template(
        "controller.sbatch.j2",
        name=name,
        options=keep_output(service_options(cluster, name, CONTROLLER_MEMORY_GB), sweep),
        setup=cluster.setup,
        mounts=[],
        log=quoted(sweep / paths.CONTROLLER_OUTPUT),
        working_directory=quoted(Path.cwd()),
        command=shlex.join(command),
        interrupted=ExitCode.INTERRUPTED,
    )
    write_text(script, text)
    return script


def _living(name: str) -> str:
    """Return the id of the job of this name that waits or runs, or an empty string."""
    return next(
        (job.job_id for job in commands.read_queue().values() if job.name == name and job.is_alive),
        "",
    )


class SlurmPreparation(Preparation):
    """Prepares in a job of one task without GPUs, on ``cluster.service_partition`` or the partition
    of the trials' jobs.
    """

    where = "as a Slurm job"

    def __init__(self, cluster: Cluster, code: Path) -> None:
        """``code`` is the folder whose grposweep the job runs."""
        self._cluster = cluster
        self._code = code
        self._job_id = ""
        self._done = Path()
        self._read_at = 0.0

    def start(self, sweep: Path, log: Path) -> None:
        """Submit the job, unless an earlier controller's waits or runs.

        Raises UserError if Slurm does not take it.
        """
        self._done = sweep / paths.PREPARE_FOLDER / "exit_code"
        name = build_job_name(PREPARE, sweep)
        try:
            self._job_id = _living(name)
            if not self._job_id:
                self._done.unlink(missing_ok=True)
                self._job_id = commands.submit_script(
                    self._write(sweep, name, log), service_cluster(self._cluster)
                )
        except (LauncherBusy, LauncherUnreachable) as error:
            raise UserError(
                f"cluster.prepare=job: Slurm takes no job now ({error}). Give the command again "
                "later, or set cluster.prepare=here."
            ) from error
        self.where, self._read_at = f"as Slurm job {self._job_id}", time.monotonic()

    def poll(self) -> int | None:
        """Return the exit code that its script wrote, or FAILED if the job is gone without one."""
        time.sleep(PREPARATION_POLL_SECONDS)
        code = self._exit_code()
        if code is None and time.monotonic() - self._read_at > self._cluster.poll_seconds:
            self._read_at = time.monotonic()
            return self._lost()
        return code

    def end(self) -> None:
        """Cancel the job."""
        commands.cancel_jobs([self._job_id])

    def _exit_code(self) -> int | None:
        try:
            return int(self._done.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            # ValueError: about to be written
            return None

    def _lost(self) -> int | None:
        try:
            job = commands.read_queue().get(self._job_id)
        except LauncherUnreachable:
            return None
        if job is not None and job.is_alive:
            return None
        # once more: it may have ended since
        code = self._exit_code()
        return ExitCode.FAILED if code is None else code

    def _write(self, sweep: Path, name: str, log: Path) -> Path:
        cluster = self._cluster
        script = sweep / paths.PREPARE_FOLDER / "job.sbatch"
        # GPUs would be held idle
        extra = [
            option for option in cluster.extra if not option.startswith(("--gres", "--gpu", "-G"))
        ]
        text = render_template(
            "prepare.sbatch.j2",
            name=name,
            options=keep_output([*service_options(cluster, name), *extra], script.parent),
            setup=cluster.setup,
            environment=environment_lines(cluster),
            log=quoted(log),
            working_directory=quoted(Path.cwd()),
            code=quoted(self._code),
            container=list(map(shlex.quote, cluster.container)),
            mounts=mount_sources(cluster),
            python=python_command(cluster),
            folder=quoted(sweep),
            done=quoted(self._done),
        )
        write_text(script, text)
        return script
