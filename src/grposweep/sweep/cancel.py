"""``grposweep cancel``: end a sweep's Slurm jobs and only those; its trials can be resumed afterwards."""

from pathlib import Path

from grposweep.errors import UserError
from grposweep.launchers.slurm import commands as queue
from grposweep.launchers.slurm.commands import ALIVE
from grposweep.launchers.slurm.script import sweep_name
from grposweep.storage.folders import find_sweep
from grposweep.storage.lease import Lease
from grposweep.storage.records import AttemptEventKind


def cancel_sweep(named: str, outputs: Path) -> str:
    """End the jobs of a sweep, given by name or path; what to tell the person.

    Raises UserError where there is no such sweep, or where a controller here still works on it.
    """
    folder = find_sweep(named, outputs)
    prefix = f"{sweep_name(folder.path)}:"
    try:
        alive = [
            entry for entry in queue.read_queue().values() if entry.name.startswith(prefix) and entry.state in ALIVE
        ]
    except queue.Unreachable as error:
        raise UserError(
            f"Slurm does not answer ({error}), so nothing was cancelled. Try again on a login node."
        ) from error
    controllers = {entry.job_id for entry in alive if entry.name == f"{prefix}controller"}
    queue.cancel(sorted(controllers))  # first: it would submit more
    trials = {entry.job_id for entry in alive} - controllers
    with Lease(folder.lease):
        queue.cancel(sorted(trials))
        for trial in folder.trials():
            begun = trial.open_attempt()
            if begun is not None and begun.job_id in trials:
                # Noted here, or a later controller would take it for a failure.
                trial.note_attempt(begun.number, AttemptEventKind.ENDED, code=-15, killed=True, kind="cancelled")
    jobs = "1 job" if len(alive) == 1 else f"{len(alive)} jobs"
    return f"cancelled {jobs} of {folder.path}; the sweep's command goes on from their last checkpoints"
