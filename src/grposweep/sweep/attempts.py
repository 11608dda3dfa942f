"""Attempts on their way: announced on disk, submitted, and found again when their controller has died."""

import time
from dataclasses import dataclass, replace
from typing import Any

from grposweep.errors import UserError
from grposweep.launchers.base import Job, Launcher
from grposweep.schema import is_external
from grposweep.search.validity import Verdict
from grposweep.storage.folders import OpenAttempt, TrialFolder
from grposweep.sweep.failures import log_sizes
from grposweep.sweep.outcomes import HeartbeatMonitor, RunningAttempt


@dataclass
class Attempts:
    """Where one sweep's trials become jobs."""

    launcher: Launcher
    provenance: dict[str, Any]
    is_dry: bool = False  # nothing is submitted, so no attempt is noted

    def submit(self, folder: TrialFolder, verdict: Verdict) -> RunningAttempt:
        """Intent on disk, then the attempt, then its id."""
        begun = folder.open_attempt()
        (folder.path / "control.json").unlink(missing_ok=True)
        if begun is not None and begun.job_id is None:
            number = begun.number  # announced, and never submitted
        else:
            number = folder.next_attempt()
            packages, logs = self.provenance.get("packages"), log_sizes(folder.path)
            self._note(folder, number, "intent", packages=packages, logs=logs)
        job_id = self._launch(_job(folder, number, verdict), folder.nodes_to_avoid())
        self._note(folder, number, "started", job_id=job_id)
        return running_of(folder, verdict, OpenAttempt(number, job_id, time.time()))

    def find(self, folder: TrialFolder, verdict: Verdict, begun: OpenAttempt) -> RunningAttempt | None:
        """The attempt where it has outlived its controller, or None."""
        found = self.launcher.find(_job(folder, begun.number, verdict), begun.job_id)
        if found is None:
            return None
        if begun.job_id is None:
            self._note(folder, begun.number, "started", job_id=found)
        return running_of(folder, verdict, replace(begun, job_id=found))

    def _note(self, folder: TrialFolder, number: int, event: str, **content: Any) -> None:
        if not self.is_dry:
            folder.note_attempt(number, event, time=time.time(), **content)

    def _launch(self, job: Job, avoided: str) -> str:
        """Submit, away from nodes that failed before, where the cluster has others."""
        if avoided:
            exclude = ",".join(part for part in (job.cluster.exclude, avoided) if part)
            try:
                return self.launcher.submit(replace(job, cluster=replace(job.cluster, exclude=exclude)))
            except UserError:
                pass  # these are all the nodes it can have
        return self.launcher.submit(job)


def running_of(folder: TrialFolder, verdict: Verdict, begun: OpenAttempt) -> RunningAttempt:
    """An attempt under way, with what its folder says of it."""
    minutes = verdict.experiment.cluster.stall_min
    return RunningAttempt(
        folder,
        verdict.point,
        begun.number,
        begun.job_id or "",
        begun.time,
        HeartbeatMonitor(folder.path / "heartbeat"),
        None if minutes is None else minutes * 60,
        verdict.seed,
        hangs=folder.hung(begun.number),
        asked=folder.asked,
    )


def _job(folder: TrialFolder, number: int, verdict: Verdict) -> Job:
    experiment = verdict.experiment
    starts_ranks = is_external(experiment.trainer.kind)
    return Job(folder.path, number, experiment.cluster, experiment.generation, starts_ranks=starts_ranks)
