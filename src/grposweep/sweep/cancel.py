"""``grposweep cancel``: end the jobs of one sweep. Its trials can be resumed afterwards."""

import signal
from collections.abc import Sequence
from pathlib import Path

from grposweep.errors import UserError
from grposweep.labels import count
from grposweep.launchers import launcher_class
from grposweep.launchers.base import EndState, Launcher, LauncherUnreachable, SweepJob
from grposweep.registries import LAUNCHERS
from grposweep.storage.folders import SweepFolder, find_sweep
from grposweep.storage.lease import Lease
from grposweep.storage.records import AttemptEventKind


def cancel_sweep(named: str, outputs: Path) -> str:
    """End the jobs of a sweep, given by name or path; return the message to the user.

    Raises UserError if there is no such sweep, if a scheduler does not answer, or if a controller works on the sweep here.
    """
    folder = find_sweep(named, outputs)
    launchers = [found for found in map(launcher_class, LAUNCHERS) if found.may_have_jobs(folder.path)]
    jobs = {launcher: _jobs(launcher, folder.path) for launcher in launchers}
    for launcher, found in jobs.items():  # controllers first: they would submit more
        launcher.cancel_jobs(sorted(job.job_id for job in found if job.is_controller))
    with Lease(folder.lease):
        for launcher, found in jobs.items():
            _cancel(launcher, folder, [job.job_id for job in found if not job.is_controller])
    cancelled = sum(map(len, jobs.values()))
    if not cancelled:
        return f"{folder.path} has no job that waits or runs; attempts on this machine end with their controller"
    return (
        f"cancelled {count(cancelled, 'job')} of {folder.path}; the sweep's command goes on from their last checkpoints"
    )


def _jobs(launcher: type[Launcher], sweep: Path) -> list[SweepJob]:
    try:
        return [job for job in launcher.list_jobs(sweep) if job.is_of_sweep]
    except LauncherUnreachable as error:
        raise UserError(
            f"{launcher.scheduler} does not answer ({error}), so nothing was cancelled. Try again on a login node."
        ) from error


def _cancel(launcher: type[Launcher], folder: SweepFolder, job_ids: Sequence[str]) -> None:
    """End jobs, and note the end of their attempts: a later controller would take it for a failure."""
    launcher.cancel_jobs(sorted(job_ids))
    for trial in folder.trials():
        begun = trial.open_attempt()
        if begun is not None and begun.job_id in job_ids:
            trial.note_attempt(
                begun.number, AttemptEventKind.ENDED, code=-signal.SIGTERM, killed=True, kind=EndState.CANCELLED
            )
