"""A sweep's controller as a job of one CPU that requeues itself before its time limit: nothing stays on the login node."""

import os
import shlex
import sys
from pathlib import Path

from grposweep.errors import UserError
from grposweep.files import PROJECT, write_text
from grposweep.launchers.base import LauncherBusy
from grposweep.launchers.slurm import commands as queue
from grposweep.launchers.slurm.commands import ALIVE
from grposweep.launchers.slurm.script import asked_of, quoted, render, sweep_name
from grposweep.schema import Cluster
from grposweep.storage import paths
from grposweep.storage.exit_code import ExitCode

MEMORY_GB = 4  # of a controller with thousands of trials


def hands_over(cluster: Cluster) -> bool:
    """Whether a job is to go on from here; inside that job, nobody else is."""
    return cluster.kind == "slurm" and cluster.controller == "job" and "GRPOSWEEP_CONTROLLER" not in os.environ


def submit_controller(cluster: Cluster, sweep: Path) -> str:
    """Submit the controller's job, unless it is there already; what to tell the person.

    Raises UserError where Slurm does not take it.
    """
    try:
        return _submit(cluster, sweep)
    except (LauncherBusy, queue.Unreachable) as error:
        raise UserError(
            f"cluster.controller=job: Slurm does not take the controller now ({error}), and nobody is left here to wait. "
            "Give the command again later, or set cluster.controller=here, which waits."
        ) from error


def _submit(cluster: Cluster, sweep: Path) -> str:
    name, log = f"{sweep_name(sweep)}:controller", sweep / paths.CONTROLLER_OUTPUT
    waiting = [entry.job_id for entry in queue.read_queue().values() if entry.name == name and entry.state in ALIVE]
    if waiting:
        return f"the controller is Slurm job {waiting[0]} already; its output is in {log}"
    script = sweep / "controller.sbatch"
    command = [sys.executable, str(PROJECT / "src" / "run.py"), *sys.argv[1:]]
    text = render(
        "controller.sbatch.j2",
        name=name,
        options=controller_options(cluster, name),
        setup=cluster.setup,
        log=quoted(log),
        working_directory=quoted(Path.cwd()),
        command=shlex.join(command),
        interrupted=ExitCode.INTERRUPTED,
    )
    write_text(script, text)
    job_id = queue.submit(script, cluster)
    return f"the controller is Slurm job {job_id}; its output is in {log}, and scancel {job_id} detaches it"


def controller_options(cluster: Cluster, name: str) -> list[str]:
    """One CPU where the trials run; it is warned in time to let go and requeue."""
    shape = ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={MEMORY_GB}G"]
    return [f"--job-name={name}", *shape, *asked_of(cluster)]
