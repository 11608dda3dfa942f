"""Slurm: an attempt is a job of its own shape, and goes on without its controller.

One reading of the queue serves all jobs. It happens every ``poll_seconds``, and soon after a result appears on disk.
"""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from grposweep.errors import UserError
from grposweep.launchers.base import End, Job, LauncherBusy
from grposweep.launchers.code_snapshot import snapshot_code
from grposweep.launchers.slurm import commands as queue
from grposweep.launchers.slurm.commands import ALIVE, HOPELESS, VANISHED, Entry, Unreachable, end_of
from grposweep.launchers.slurm.script import job_name, write_script
from grposweep.process import SOURCE
from grposweep.schema import Cluster
from grposweep.storage.records import Action, ControlRequest, TrialResult, TrialStatus, read_attempts
from grposweep.storage.runs import read_runs

SETTLE_SECONDS = 1.0  # a submission whose controller was killed in the middle of it shows up within this time
CERTAIN = 2  # readings that must agree on a job's being hopeless
NEWS_SECONDS = 2.0  # between two looks for results on disk, and two readings of the queue because of them


@dataclass
class _Followed:
    """A job that somebody polls."""

    job: Job
    since: float  # time.monotonic() at submission
    last: Entry | None = None
    hopeless: int = 0  # readings in a row that gave one of the reasons to wait for ever


class Slurm:
    """Submits attempts as jobs of this user, at most ``slots`` of a sweep at once."""

    outlives = True

    def __init__(self, sweep: Path, slots: int, poll_seconds: float, code: Path) -> None:
        """``code`` is the folder whose grposweep the jobs run."""
        self.slots, self._code = slots, code
        self._sweep, self._poll_seconds = sweep, poll_seconds
        self._news_seconds = min(NEWS_SECONDS, poll_seconds)
        self._jobs: dict[str, _Followed] = {}
        self._read_at = -poll_seconds
        self._looked_at = 0.0

    def submit(self, job: Job) -> str:
        """Write the script and submit it."""
        job_id = queue.submit(write_script(job, self._sweep, self._code), job.cluster)
        self._jobs[job_id] = _Followed(job, time.monotonic())
        return job_id

    def find(self, job: Job, job_id: str | None) -> str | None:
        """A job by its id, or by the name that only this attempt has."""
        if job_id is None:
            job_id = self._named(job_name(job, self._sweep))
        if job_id is None or not job_id.isdigit():  # none, or an attempt of another launcher's
            return None
        self._jobs[job_id] = _Followed(job, time.monotonic())
        return job_id

    def poll(self, job_id: str) -> End | None:
        """None while the job waits or runs, or while the scheduler does not answer."""
        self._refresh()
        followed = self._jobs[job_id]
        entry = followed.last
        if entry is None or entry.state in ALIVE:
            self._refuse_hopeless(followed)
            return None
        del self._jobs[job_id]
        is_asked = ControlRequest.read(followed.job.folder).action != Action.RUN
        end = end_of(entry, _status(followed.job), is_asked)
        nodes = "" if entry.nodes.startswith("None") else entry.nodes  # "None assigned"
        return replace(_limited(end, followed.job), nodes=nodes)

    def waiting(self, job_id: str) -> str:
        """Slurm's state and reason, such as ``pending (Resources)``."""
        entry = self._jobs[job_id].last if job_id in self._jobs else None
        if entry is None:
            return "submitted"
        if entry.state == "RUNNING":
            return ""
        reason = "" if entry.reason in ("", "None") else f" ({entry.reason})"
        return f"{entry.state.lower()}{reason}"

    def cancel(self, job_id: str) -> None:
        """Through scancel; a job that has ended already is no error."""
        queue.cancel([job_id])

    def close(self) -> None:
        """Nothing ends: jobs outlive their controller."""

    def _named(self, name: str) -> str | None:
        """The job of this name, asked for twice: its submission may still be on its way."""
        for pause in (SETTLE_SECONDS, 0.0):
            try:
                found = [entry.job_id for entry in queue.read_queue().values() if entry.name == name]
            except Unreachable as error:
                # Submitting now might run the trial twice.
                raise LauncherBusy(f"Slurm does not answer ({error}); trying again") from error
            if found := found or list(queue.read_accounts([], name)):
                return max(found, key=int)
            time.sleep(pause)
        return None

    def _refresh(self) -> None:
        """Read the queue when it is time to, for all jobs at once."""
        now = time.monotonic()
        if now - self._read_at < self._poll_seconds and not self._has_news(now):
            return
        self._read_at = now
        try:
            found = queue.read_queue()
        except Unreachable:
            return
        lost = [
            job_id
            for job_id, followed in self._jobs.items()
            if job_id not in found and followed.since < now and (followed.last is None or followed.last.state in ALIVE)
        ]
        found |= queue.read_accounts(lost) if lost else {}
        for job_id, followed in self._jobs.items():
            if job_id in found:
                followed.last = entry = found[job_id]
                followed.hopeless = (
                    followed.hopeless + 1 if entry.state == "PENDING" and entry.reason in HOPELESS else 0
                )
            elif job_id in lost:
                followed.last = Entry(job_id, VANISHED)

    def _has_news(self, now: float) -> bool:
        """Whether a job has left a result of which the queue said nothing yet; looked for every few seconds."""
        if now - max(self._looked_at, self._read_at) < self._news_seconds:
            return False
        self._looked_at = now
        return any(
            _status(followed.job) in (TrialStatus.FINISHED, TrialStatus.FAILED) for followed in self._jobs.values()
        )

    def _refuse_hopeless(self, followed: _Followed) -> None:
        """Raise UserError, and cancel, where Slurm says twice that a job can never start: its first word may be hasty."""
        entry = followed.last
        if entry is None or followed.hopeless < CERTAIN:
            return
        queue.cancel([entry.job_id])
        key = HOPELESS[entry.reason]
        raise UserError(
            f"cluster.{key}={getattr(followed.job.cluster, key)}: Slurm took job {entry.job_id} and would never start it "
            f"({entry.reason}), so it was cancelled. Set another cluster.{key}, a smaller job, or another cluster.partition."
        )


def _status(job: Job) -> TrialStatus | None:
    """Return the status in the result of this attempt or of a restart of its job."""
    result = TrialResult.read(job.folder)
    is_older = result.attempt is not None and result.attempt < job.attempt
    return None if is_older else result.status


def _limited(end: End, job: Job) -> End:
    """The end, or where its trial was taken away too often already, a failure."""
    if not end.again:
        return end
    taken = sum(bool(event.again) for event in read_attempts(job.folder))
    taken += sum(run.restarts > 0 for run in read_runs(job.folder))
    limit = job.cluster.requeue_limit
    if taken < limit:
        return end
    message = (
        f"{end.message}; it was taken away {taken + 1} times, and cluster.requeue_limit={limit}. "
        "Set that higher if it made progress, otherwise a longer cluster.walltime_min or more schedule.checkpoints."
    )
    return End(end.code, end.kind, message)


def code_for(cluster: Cluster, sweep: Path) -> Path:
    """The folder whose grposweep jobs run: a snapshot, the one that is running, or a rerun trial's own."""
    if cluster.code is not None:
        return Path(cluster.code)
    return snapshot_code(sweep) if cluster.snapshot else SOURCE


def build_slurm(cluster: Cluster, sweep: Path, parallel: int | None) -> Slurm:
    """The launcher for this cluster.

    Raises UserError where this machine has no Slurm; a scheduler that does not answer now may do so later.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "cluster=slurm: this machine has no sbatch, so it cannot submit jobs. "
            "Run on the cluster's login node, or set cluster=local (or cluster=dry_run to see the scripts)."
        )
    slots = cluster.max_jobs if parallel is None else min(parallel, cluster.max_jobs)
    return Slurm(sweep, slots, cluster.poll_seconds, code_for(cluster, sweep))
