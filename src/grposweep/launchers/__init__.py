"""Where attempts run: `Launcher` is the contract, ``registries.LAUNCHERS`` has one line for each.

Open attempts of a sweep may belong to several launchers, because ``cluster`` is not part of a
sweep's identity.
"""

from collections.abc import Callable
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.registries import load_entry
from grporecipe.terminal import count
from grposweep.launchers.base import (
    Launcher,
    LauncherUnreachable,
    Scheduler,
    SweepJob,
    note_cancelled,
)
from grposweep.schema import Experiment
from grposweep.schema.registries import LAUNCHERS, is_external
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
    if gpus and is_external(experiment.trainer):
        raise UserError(
            f"generation.vllm_gpus={gpus}: trainer={experiment.trainer.kind} starts its ranks "
            "itself, so the job has no server of its own. Set generation=transformers, and let the "
            "program or another job run one."
        )
    launcher = launcher_class(experiment.cluster.kind).build(experiment, sweep)
    launcher.console = console
    return launcher


def schedulers() -> list[Scheduler]:
    """Return the schedulers of all launchers whose attempts outlive their controller."""
    found = (launcher_class(kind).scheduler for kind in LAUNCHERS)
    return [scheduler for scheduler in found if scheduler is not None]


def is_running(scheduler: Scheduler, trial: Path, attempt: int, job_id: str | None) -> bool:
    """Return whether an attempt waits or runs, by its job's id or its name.

    A scheduler that does not answer has none.
    """
    try:
        jobs = scheduler.list_jobs(trial.parent.parent)
    except LauncherUnreachable:
        return False
    wanted = (trial.name, attempt)
    return any(job.job_id == job_id or (job.trial, job.attempt) == wanted for job in jobs)


def refuse_other_launcher(launcher: Launcher, trial: Path, attempt: int, job_id: str) -> None:
    """Raise UserError if an open attempt still runs as a job of another launcher."""
    for other in schedulers():
        if other.kind == launcher.kind or not other.may_have_started(trial, job_id):
            continue
        if is_running(other, trial, attempt, job_id):
            raise UserError(
                f"cluster={launcher.kind}: an attempt of this sweep's {trial.name} still is "
                f"{other.job_name} {job_id}, and two would overwrite each other. Set "
                f"cluster={other.kind} to resume it, or end it first "
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
    for scheduler, of_sweep in jobs.items():
        scheduler.cancel_jobs(sorted(job.job_id for job in of_sweep if job.is_controller))
    with Lease(folder.lease):
        for scheduler, of_sweep in jobs.items():
            job_ids = {job.job_id for job in of_sweep if not job.is_controller}
            scheduler.cancel_jobs(sorted(job_ids))
            for trial in folder.trials():
                begun = trial.open_attempt()
                if begun is not None and begun.job_id in job_ids:
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


def find_jobs(sweep: Path) -> dict[Scheduler, list[SweepJob]]:
    """Return the jobs of a sweep that wait or run, by scheduler.

    Raises UserError if a scheduler does not answer.
    """
    jobs = {}
    for scheduler in schedulers():
        if not scheduler.may_have_jobs(sweep):
            continue
        try:
            jobs[scheduler] = [job for job in scheduler.list_jobs(sweep) if job.is_of_sweep]
        except LauncherUnreachable as error:
            raise UserError(
                f"{scheduler.name} does not answer ({error}), so nothing was changed. Try again on "
                "a login node."
            ) from error
    return jobs
