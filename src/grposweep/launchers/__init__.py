"""Where attempts run: `Launcher` is the contract, ``registries.LAUNCHERS`` has one line for each.

Open attempts of a sweep may belong to several launchers, because ``cluster`` is not part of a
sweep's identity.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.registries import load_entry
from grporecipe.terminal import count
from grposweep.launchers.base import Launcher, LauncherUnreachable, SweepJob, note_cancelled
from grposweep.registries import LAUNCHERS, is_external
from grposweep.schema import Experiment
from grposweep.storage.folders import find_sweep
from grposweep.storage.lease import Lease


def launcher_class(kind: str) -> type[Launcher]:
    """Return the class registered for ``cluster.kind``."""
    launcher: type[Launcher] = load_entry(LAUNCHERS[kind])
    return launcher


def build_launcher(
    experiment: Experiment, sweep: Path, console: Callable[[str], None] = print
) -> Launcher:
    """Return the launcher of ``cluster.kind`` for a sweep; ``console`` prints a line.

    Raises UserError if this machine cannot be one.
    """
    gpus = experiment.generation.vllm_gpus
    if gpus and is_external(experiment.trainer.kind):
        raise UserError(
            f"generation.vllm_gpus={gpus}: trainer={experiment.trainer.kind} starts its ranks "
            "itself, so the job has no "
            "server of its own. Set generation=transformers, and let the program or another job "
            "run one."
        )
    launcher = launcher_class(experiment.cluster.kind).build(experiment, sweep)
    launcher.console = console
    return launcher


class RunningJobs:
    """The jobs of a sweep that wait or run, by launcher. Each scheduler is asked once, and only if
    it may have jobs.
    """

    def __init__(self, sweep: Path) -> None:
        self._sweep = sweep
        self._list = cache(self._ask)

    def launchers(self, trial: Path, job_id: str | None) -> Iterator[type[Launcher]]:
        """Yield the launchers that may have started an open attempt in this trial folder."""
        return (
            launcher
            for launcher in map(launcher_class, LAUNCHERS)
            if launcher.may_have_started(trial, job_id)
        )

    def has(
        self, launcher: type[Launcher], trial: Path, attempt: int, job_id: str | None
    ) -> bool | None:
        """Return whether one launcher has an attempt that waits or runs; None if it does not
        answer.
        """
        jobs = self._list(launcher)
        if isinstance(jobs, LauncherUnreachable):
            return None
        return any(
            job.job_id == job_id or (job.trial, job.attempt) == (trial.name, attempt)
            for job in jobs
        )

    def _ask(self, launcher: type[Launcher]) -> list[SweepJob] | LauncherUnreachable:
        try:
            return launcher.list_jobs(self._sweep)
        except LauncherUnreachable as error:
            return error


def refuse_other_launcher(launcher: Launcher, trial: Path, attempt: int, job_id: str) -> None:
    """Raise UserError if an open attempt still runs as a job of another launcher."""
    jobs = RunningJobs(trial.parent.parent)
    for other in jobs.launchers(trial, job_id):
        if other.kind != launcher.kind and jobs.has(other, trial, attempt, job_id):
            raise UserError(
                f"cluster={launcher.kind}: an attempt of this sweep's {trial.name} still is "
                f"{other.job_name} {job_id}, and "
                f"two would overwrite each other. Set cluster={other.kind} to resume it, or end "
                "it first "
                f"({other.cancel_command([job_id])})."
            )


def cancel_sweep(named: str, outputs: Path) -> str:
    """End the jobs of a sweep, given by name or path; return the message to the user.

    Raises UserError if there is no such sweep, if a scheduler does not answer, or if a controller
    works on the sweep here.
    """
    folder = find_sweep(named, outputs)
    jobs = find_jobs(folder.path)
    # controllers first: they would submit more
    for launcher, of_sweep in jobs.items():
        launcher.cancel_jobs(sorted(job.job_id for job in of_sweep if job.is_controller))
    with Lease(folder.lease):
        for launcher, of_sweep in jobs.items():
            job_ids = {job.job_id for job in of_sweep if not job.is_controller}
            launcher.cancel_jobs(sorted(job_ids))
            for trial in folder.trials():
                if (begun := trial.open_attempt()) is not None and begun.job_id in job_ids:
                    note_cancelled(trial, begun.number)
    cancelled = sum(map(len, jobs.values()))
    if not cancelled:
        return (
            f"{folder.path} has no job that waits or runs; attempts on this machine end with "
            "their controller"
        )
    return (
        f"cancelled {count(cancelled, 'job')} of {folder.path}; the sweep's command resumes "
        "from their last checkpoints"
    )


def find_jobs(sweep: Path) -> dict[type[Launcher], list[SweepJob]]:
    """Return the jobs of a sweep that wait or run, by launcher. Raises UserError if a scheduler
    does not answer.
    """
    launchers = (kind for kind in map(launcher_class, LAUNCHERS) if kind.may_have_jobs(sweep))
    return {launcher: _jobs(launcher, sweep) for launcher in launchers}


def _jobs(launcher: type[Launcher], sweep: Path) -> list[SweepJob]:
    try:
        return [job for job in launcher.list_jobs(sweep) if job.is_of_sweep]
    except LauncherUnreachable as error:
        raise UserError(
            f"{launcher.scheduler} does not answer ({error}), so nothing was changed. Try again "
            "on a login node."
        ) from error
