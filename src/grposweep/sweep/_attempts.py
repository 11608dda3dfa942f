"""Trial folders and their attempts: write, announce on disk, submit, watch, and find again after a
controller's death.
"""

import json
import shlex
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import Json, text_sha256, write_json, write_text
from grporecipe.redaction import redact
from grposweep.command.trial_recipe import write_program
from grposweep.config.compose import override_name, override_text, render_experiment
from grposweep.config.trial_plan import plan_content
from grposweep.launchers import refuse_other_launcher
from grposweep.launchers.base import End, Job, Launcher
from grposweep.process import run_command
from grposweep.schema.registries import is_external
from grposweep.search.space import Point
from grposweep.search.validity import ValidationResult
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.provenance import configuration_of
from grposweep.storage.records import (
    COPY,
    AttemptEventKind,
    ControlRequest,
    OpenAttempt,
    TrialRecord,
    read_metrics,
)
from grposweep.sweep._failures import log_sizes
from grposweep.sweep._log import about
from grposweep.sweep._oom import find_needs


def write_trial(
    sweep: SweepFolder,
    number: int,
    verdict: ValidationResult,
    overrides: list[str],
    provenance: Json,
    attributes: Json,
) -> TrialFolder:
    """Write a trial's folder; ``config.yaml`` last, so that a folder which has one is complete.
    Idempotent.

    ``attributes`` are the trial's in the study, which can be rebuilt from trial.json
    (sweep/_resume.py).
    """
    identity = verdict.config.identity
    folder = sweep.trial(number, identity)
    if folder.has(paths.CONFIG):
        return folder
    folder.path.mkdir(parents=True, exist_ok=True)
    values = verdict.values
    point_overrides = [f"{name}={override_text(value)}" for name, value in values.items()]
    config = render_experiment(verdict.experiment)
    record = TrialRecord(verdict.point, attributes, text_sha256(config), number)
    record.write(folder.path)
    write_json(folder.path / paths.PLAN, plan_content(verdict.setting))
    lines = [f"- {json.dumps(redact(override))}\n" for override in [*overrides, *point_overrides]]
    write_text(folder.path / paths.OVERRIDES, "".join(lines))
    seeds = {"seed": verdict.experiment.seed, "search.seed": verdict.experiment.search.seed}
    write_json(folder.path / paths.PROVENANCE, {**provenance, "seeds": seeds, COPY: asdict(record)})
    # What names or controls the sweep is left out, and a study's own values stay.
    steering = ("search", "name=", "hydra", "force=", "verbose=")
    kept = [override for override in overrides if not override.lstrip("+").startswith(steering)]
    if any(override.startswith("sweeps=") for override in kept):
        kept += ["hydra.mode=RUN", "name=null"]
    command = [
        sys.executable,
        *run_command(),
        *configuration_of(provenance),
        *kept,
        *point_overrides,
    ]
    text = (
        "#!/bin/sh\n# Repeats this trial as a single run.\ncd "
        f"{shlex.quote(str(Path.cwd()))} &&\n{shlex.join(command)}\n"
    )
    write_text(folder.path / paths.COMMAND, redact(text))
    if is_external(verdict.experiment.trainer):
        named = set(map(override_name, (*overrides, *values)))
        write_program(
            folder.path,
            verdict.experiment,
            verdict.setting,
            named,
            verdict.validator.points.base.trainer,
        )
    write_text(folder.path / paths.CONFIG, config)
    return folder


# between two looks at a heartbeat, counted as silence
LONGEST_GAP_SECONDS = 60.0


@dataclass
class HeartbeatMonitor:
    """Watches one attempt's heartbeat for change, by this machine's clock alone."""

    heartbeat: Path
    seen: tuple[int, int] | None = None
    # for how long it was watched and did not move
    still_seconds: float = 0.0
    looked: float = field(default_factory=time.monotonic)

    def look(self, waits: bool) -> bool:
        """Read the heartbeat once, and return whether it moved. A waiting attempt does not move
        it.
        """
        try:
            stat = self.heartbeat.stat()
            now: tuple[int, int] | None = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            now = None
        before = self.looked
        self.looked = time.monotonic()
        moved = now != self.seen or waits
        # A controller that was suspended, or waited for a stalled file system, did not see what
        # happened meanwhile; the attempt may have waited with it.
        self.still_seconds = (
            0.0 if moved else self.still_seconds + min(self.looked - before, LONGEST_GAP_SECONDS)
        )
        self.seen = now
        return moved


@dataclass
class RunningAttempt:
    """An attempt under way; ``end`` is set once its launcher reports the end."""

    folder: TrialFolder
    point: Point
    attempt: int
    job_id: str
    # when it began, by time.monotonic(): the time of day may be set meanwhile
    since: float
    heartbeat: HeartbeatMonitor
    stall_seconds: float | None
    # a replicate's
    seed: int | None = None
    killed: bool = False
    # its heartbeat has stopped,
    hangs: bool = False
    # and this controller has had it ended
    cancelled: bool = False
    # in its control.json
    request: ControlRequest = field(default_factory=ControlRequest)
    end: End | None = None

    @property
    def where(self) -> Json:
        """Return the ``extra`` of log calls about it."""
        return about(self.folder.number, self.attempt)


@dataclass
class Attempts:
    """Submits one sweep's trials to its launcher."""

    launcher: Launcher
    provenance: Json

    def submit(self, folder: TrialFolder, verdict: ValidationResult) -> RunningAttempt:
        """Write the intent, submit the attempt, write its job id."""
        begun = folder.open_attempt()
        (folder.path / paths.CONTROL).unlink(missing_ok=True)
        if begun is not None and begun.job_id is None:
            # announced, and never submitted
            number = begun.number
        else:
            number = folder.next_attempt()
            packages = self.provenance.get("packages")
            logs = log_sizes(folder.path)
            self._note(folder, number, AttemptEventKind.INTENT, packages=packages, logs=logs)
        needs, was_crowded_out = find_needs(folder, verdict)
        job = replace(
            _job(folder, number, verdict), needs_gib=needs, was_crowded_out=was_crowded_out
        )
        job_id = self._launch(job, folder.nodes_to_avoid())
        self._note(folder, number, AttemptEventKind.STARTED, job_id=job_id)
        return running_attempt(folder, verdict, OpenAttempt(number, job_id, time.time()))

    def find(
        self, folder: TrialFolder, verdict: ValidationResult, begun: OpenAttempt
    ) -> RunningAttempt | None:
        """Return the attempt if it has outlived its controller, or None."""
        if begun.job_id is not None and not self.launcher.is_dry:
            refuse_other_launcher(self.launcher, folder.path, begun.number, begun.job_id)
        job_id = self.launcher.find(_job(folder, begun.number, verdict), begun.job_id)
        if job_id is None:
            return None
        if begun.job_id is None:
            self._note(folder, begun.number, AttemptEventKind.STARTED, job_id=job_id)
        return running_attempt(folder, verdict, replace(begun, job_id=job_id))

    def _note(
        self, folder: TrialFolder, number: int, event: AttemptEventKind, **content: Any
    ) -> None:
        # a dry run submits nothing
        if not self.launcher.is_dry:
            folder.note_attempt(number, event, time=time.time(), **content)

    def _launch(self, job: Job, avoided: str) -> str:
        """Submit, away from nodes that failed before if the cluster has others."""
        if avoided:
            exclude = ",".join(filter(None, (job.cluster.exclude, avoided)))
            try:
                return self.launcher.submit(
                    replace(job, cluster=replace(job.cluster, exclude=exclude))
                )
            except UserError:
                # these are all the nodes it can have
                pass
        return self.launcher.submit(job)


def running_attempt(
    folder: TrialFolder, verdict: ValidationResult, begun: OpenAttempt
) -> RunningAttempt:
    """Return an attempt under way, with the state in its folder."""
    minutes = verdict.experiment.cluster.stall_min
    return RunningAttempt(
        folder,
        verdict.point,
        begun.number,
        begun.job_id or "",
        time.monotonic() - max(time.time() - begun.time, 0.0),
        HeartbeatMonitor(folder.path / paths.HEARTBEAT),
        None if minutes is None else minutes * 60,
        verdict.seed,
        hangs=folder.hung(begun.number),
        request=folder.control,
    )


def rollout_seconds(folder: TrialFolder, steps: int) -> float | None:
    """Return the seconds of the slowest of a trial's ``steps``-step rollouts with its optimizer
    steps.

    None before the second one has ended: the first one loads and compiles.
    """
    times = [
        row.number("time/step") or 0.0 for row in read_metrics(folder.path) if row.kind == "train"
    ]
    rollouts = [
        sum(times[start : start + steps]) for start in range(steps, len(times) - steps + 1, steps)
    ]
    return max(rollouts, default=None)


def _job(folder: TrialFolder, number: int, verdict: ValidationResult) -> Job:
    experiment = verdict.experiment
    starts_ranks = is_external(experiment.trainer)
    return Job(
        folder.path, number, experiment.cluster, experiment.generation, starts_ranks=starts_ranks
    )
