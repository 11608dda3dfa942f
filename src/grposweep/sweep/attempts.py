"""Attempts under way: announced on disk, submitted, watched, and found again after their controller died."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grposweep.errors import UserError
from grposweep.launchers import refuse_other_launcher
from grposweep.launchers.base import End, Job, Launcher
from grposweep.schema import is_external
from grposweep.search.space import Point
from grposweep.search.validity import ValidationResult
from grposweep.storage import paths
from grposweep.storage.folders import TrialFolder
from grposweep.storage.records import AttemptEventKind, ControlRequest, OpenAttempt
from grposweep.sweep.failures import log_sizes


@dataclass
class HeartbeatMonitor:
    """Watches one attempt's heartbeat for change, by this machine's clock alone."""

    heartbeat: Path
    seen: tuple[int, int] | None = None
    since: float = field(default_factory=time.monotonic)
    """When it last moved, or when the attempt began."""

    def look(self, waits: bool) -> None:
        """Look once; an attempt that waits to run cannot move."""
        try:
            stat = self.heartbeat.stat()
            now: tuple[int, int] | None = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            now = None
        if now != self.seen or waits:
            self.seen, self.since = now, time.monotonic()

    @property
    def still_seconds(self) -> float:
        """For how long it has not moved."""
        return time.monotonic() - self.since


@dataclass
class RunningAttempt:
    """One attempt under way; ``end`` is set once its launcher reports how it ended."""

    folder: TrialFolder
    point: Point
    attempt: int
    job_id: str
    since: float  # clock time in seconds
    heartbeat: HeartbeatMonitor
    stall_seconds: float | None
    seed: int | None = None  # a replicate's
    killed: bool = False
    hangs: bool = False  # its heartbeat has stopped,
    cancelled: bool = False  # and this controller has had it ended
    request: ControlRequest = field(default_factory=ControlRequest)  # in its control.json
    end: End | None = None


@dataclass
class Attempts:
    """Submits one sweep's trials to its launcher."""

    launcher: Launcher
    provenance: dict[str, Any]

    def submit(self, folder: TrialFolder, verdict: ValidationResult) -> RunningAttempt:
        """Write the intent, submit the attempt, write its job id."""
        begun = folder.open_attempt()
        (folder.path / paths.CONTROL).unlink(missing_ok=True)
        if begun is not None and begun.job_id is None:
            number = begun.number  # announced, and never submitted
        else:
            number = folder.next_attempt()
            packages, logs = self.provenance.get("packages"), log_sizes(folder.path)
            self._note(folder, number, AttemptEventKind.INTENT, packages=packages, logs=logs)
        job_id = self._launch(_job(folder, number, verdict), folder.nodes_to_avoid())
        self._note(folder, number, AttemptEventKind.STARTED, job_id=job_id)
        return running_attempt(folder, verdict, OpenAttempt(number, job_id, time.time()))

    def find(self, folder: TrialFolder, verdict: ValidationResult, begun: OpenAttempt) -> RunningAttempt | None:
        """Return the attempt if it has outlived its controller, or None."""
        if begun.job_id is not None and not self.launcher.is_dry:
            refuse_other_launcher(self.launcher, folder.path, begun.number, begun.job_id)
        found = self.launcher.find(_job(folder, begun.number, verdict), begun.job_id)
        if found is None:
            return None
        if begun.job_id is None:
            self._note(folder, begun.number, AttemptEventKind.STARTED, job_id=found)
        return running_attempt(folder, verdict, replace(begun, job_id=found))

    def _note(self, folder: TrialFolder, number: int, event: AttemptEventKind, **content: Any) -> None:
        if not self.launcher.is_dry:  # a dry run submits nothing
            folder.note_attempt(number, event, time=time.time(), **content)

    def _launch(self, job: Job, avoided: str) -> str:
        """Submit, away from nodes that failed before if the cluster has others."""
        if avoided:
            exclude = ",".join(part for part in (job.cluster.exclude, avoided) if part)
            try:
                return self.launcher.submit(replace(job, cluster=replace(job.cluster, exclude=exclude)))
            except UserError:
                pass  # these are all the nodes it can have
        return self.launcher.submit(job)


def running_attempt(folder: TrialFolder, verdict: ValidationResult, begun: OpenAttempt) -> RunningAttempt:
    """Return an attempt under way, with what its folder says of it."""
    minutes = verdict.experiment.cluster.stall_min
    return RunningAttempt(
        folder,
        verdict.point,
        begun.number,
        begun.job_id or "",
        begun.time,
        HeartbeatMonitor(folder.path / paths.HEARTBEAT),
        None if minutes is None else minutes * 60,
        verdict.seed,
        hangs=folder.hung(begun.number),
        request=folder.control,
    )


def _job(folder: TrialFolder, number: int, verdict: ValidationResult) -> Job:
    experiment = verdict.experiment
    starts_ranks = is_external(experiment.trainer.kind)
    return Job(folder.path, number, experiment.cluster, experiment.generation, starts_ranks=starts_ranks)
