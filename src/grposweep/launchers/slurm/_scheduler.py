"""The jobs of a sweep as Slurm knows them: found, listed and ended without a running sweep."""

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from grporecipe.errors import UserError
from grposweep.launchers.base import LauncherUnreachable, Scheduler, Scripts, SweepJob
from grposweep.launchers.slurm import _commands as commands
from grposweep.launchers.slurm._commands import JobInfo
from grposweep.launchers.slurm._script import build_job_name, submit_command, write_script
from grposweep.launchers.slurm._sweep_jobs import CONTROLLER, hands_over, write_controller
from grposweep.process import SOURCE
from grposweep.process.variables import RankPlace
from grposweep.schema import Cluster, Experiment
from grposweep.storage import paths
from grposweep.storage.provenance import snapshot_code

# In a job's script.
_SNAPSHOT = r"/code/([0-9a-f]{12})\b"


class SlurmScheduler(Scheduler):
    """This user's jobs."""

    kind = "slurm"
    name = "Slurm"
    job_name = "Slurm job"

    def check_available(self) -> None:
        """Raise UserError if this machine has no Slurm, or its controller does not answer."""
        check_installed()
        try:
            commands.read_queue()
        except LauncherUnreachable as error:
            raise UserError(
                f"cluster=slurm: Slurm's controller does not answer ({error}), so no trial could "
                "start. Try again later or on a login node, set SLURM_CONF to the cluster's "
                "slurm.conf, or set cluster=local."
            ) from error

    def scripts(self, experiment: Experiment, sweep: Path) -> Scripts:
        """Return what writes the sbatch scripts."""
        cluster = experiment.cluster
        code = code_for(cluster, sweep)
        return Scripts(
            lambda job: submit_command(write_script(job, sweep, code)),
            (lambda command: submit_command(write_controller(cluster, sweep, command)))
            if hands_over(cluster)
            else None,
        )

    def may_have_started(self, trial: Path, job_id: str | None) -> bool:
        """Return whether the id is a number, or there is a script for an attempt without an id."""
        return job_id.isdigit() if job_id else any(trial.glob("job-*.sbatch"))

    def may_have_jobs(self, sweep: Path) -> bool:
        """Return whether there is a script of a job that was announced.

        A dry run announces none.
        """
        others = (sweep / "controller.sbatch", sweep / paths.PREPARE_FOLDER / "job.sbatch")
        scripts = sweep.glob("trials/*/job-*.sbatch")
        announced = any((path.parent / paths.ATTEMPTS).exists() for path in scripts)
        return announced or any(map(Path.exists, others))

    def list_jobs(self, sweep: Path) -> list[SweepJob]:
        """Return this user's waiting and running jobs. Names identify the sweep's."""
        suffix = build_job_name("", sweep)
        return [_sweep_job(job, suffix) for job in commands.read_queue().values() if job.is_alive]

    def cancel_jobs(self, job_ids: Sequence[str]) -> None:
        """End jobs through scancel."""
        commands.cancel_jobs(job_ids)

    def cancel_command(self, job_ids: Sequence[str]) -> str:
        """Return the scancel command."""
        return shlex.join(["scancel", *job_ids])

    def code_of(self, trial: Path) -> Path | None:
        """Return the snapshot that the newest script names, if it is still there."""
        scripts = sorted(trial.glob("job-*.sbatch"), key=lambda path: int(path.stem.split("-")[1]))
        for script in reversed(scripts):
            named = re.search(_SNAPSHOT, script.read_text(encoding="utf-8"))
            copy = trial.parent.parent / "code" / named[1] if named else None
            if copy is not None and copy.is_dir():
                return copy
        return None

    def rank_place(self, environment: Mapping[str, str]) -> RankPlace:
        """Return a rank's place by srun's variables.

        The first rank runs where srun does, on the job's first node.
        """
        node = environment.get("GRPOSWEEP_FIRST_NODE")
        return RankPlace(
            rank=int(environment["SLURM_PROCID"]),
            local_rank=int(environment["SLURM_LOCALID"]),
            ranks=int(environment["SLURM_STEP_NUM_TASKS"]),
            address=node or environment["SLURM_LAUNCH_NODE_IPADDR"],
            port=int(environment["GRPOSWEEP_PORT"]),
            restarts=int(environment.get("SLURM_RESTART_COUNT") or 0),
        )


def _sweep_job(job: JobInfo, suffix: str) -> SweepJob:
    """Parse the name of a job of the sweep whose names end with ``suffix``."""
    if not job.name.endswith(suffix):
        return SweepJob(job.job_id, is_of_sweep=False)
    trial, _, attempt = job.name.removesuffix(suffix).partition(":")
    if not attempt.isdigit():
        return SweepJob(job.job_id, is_controller=trial == CONTROLLER)
    return SweepJob(job.job_id, trial, int(attempt))


def check_installed() -> None:
    """Raise UserError if this machine has no Slurm."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "cluster=slurm: this machine has no sbatch, so it cannot submit jobs. Run on the "
            "cluster's login node, or set cluster=local (or cluster=dry_run to see the scripts)."
        )


def code_for(cluster: Cluster, sweep: Path) -> Path:
    """Return the folder whose grposweep jobs run.

    It is a snapshot, the running one, or the one a rerun trial ran.
    """
    if cluster.code is not None:
        return Path(cluster.code)
    return snapshot_code(sweep) if cluster.snapshot else SOURCE
