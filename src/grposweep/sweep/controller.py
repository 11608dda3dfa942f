"""The controller: an idempotent tick that collects what ended, tells the study, asks for valid points and submits them."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from grposweep.config.read import experiment_id
from grposweep.config.schema import Search
from grposweep.launch.base import FINISHED, STOPPED, Busy, End, Job, Launcher
from grposweep.outside import is_outside
from grposweep.search.judge import Judge, Verdict
from grposweep.search.sampler import Valid
from grposweep.search.space import Label, Point, freeze
from grposweep.search.study import SweepStudy
from grposweep.sweep.folder import SweepFolder, TrialFolder
from grposweep.sweep.lease import Lease
from grposweep.sweep.trial import write_trial

DEFAULT_TRIALS = 20  # of an adaptive search; a grid runs all its valid points
BUSY_SECONDS = 30.0  # until a launcher that took nothing more is asked again


@dataclass
class Running:
    """One attempt under way."""

    folder: TrialFolder
    point: Point
    attempt: int
    job_id: str
    since: float
    killed: bool = False


@dataclass
class Controller:
    """Owns one sweep while its lease is held; everything it knows is also in files."""

    folder: SweepFolder
    study: SweepStudy
    judge: Judge
    launcher: Launcher
    lease: Lease
    search: Search
    sampler: str  # resolved: grid, tpe, random or gp
    valid_points: list[Point]  # valid combinations of the finite dials
    overrides: list[str]  # those that every trial shares
    provenance: dict[str, Any]
    enqueued: list[Point] = field(default_factory=list)
    keep: str = "best"  # trainer.keep
    repeat: bool = False  # run a recorded experiment again
    is_dry: bool = False  # nothing is submitted, so no attempt is noted
    running: dict[int, Running] = field(default_factory=dict)
    doubles: set[object] = field(default_factory=set)  # valid points that are another one's experiment
    stopping: bool = False
    exhausted: bool = False
    busy: str = ""  # why the launcher takes nothing more for now
    busy_until: float = 0.0  # time.monotonic()

    def tick(self) -> bool:
        """Collect, then fill free slots; returns whether the sweep has nothing left to do."""
        self.lease.check()
        self.collect()
        if not self.stopping:
            self.fill()
        return not self.running and not self.busy

    @property
    def started(self) -> list[FrozenTrial]:
        """All trials that were started, now or by an earlier controller; recorded invalid points are none."""
        return [trial for trial in self.study.trials if not trial.user_attrs.get("invalid")]

    @property
    def target(self) -> int:
        """How many trials the sweep starts in all."""
        most = len(self.valid_points) - len(self.doubles) if self.study.space.is_finite else None
        wanted = self.search.trials or (most if self.sampler == "grid" and most is not None else DEFAULT_TRIALS)
        wanted = wanted if most is None else min(wanted, most)
        return max(wanted, self._repeats)

    @cached_property
    def _repeats(self) -> int:
        """With ``force``, one trial more than there are."""
        return len(self.started) + 1 if self.repeat else 0

    def collect(self) -> None:
        """Record what ended: in the trial folder first, then in the study."""
        for number, running in list(self.running.items()):
            end = self.launcher.poll(running.job_id)
            if end is None:
                continue
            del self.running[number]
            said = {"kind": end.kind, "again": end.again} if end.kind else {}
            running.folder.note_attempt(
                running.attempt,
                "ended",
                code=end.code,
                killed=running.killed,
                seconds=round(time.time() - running.since, 3),
                **said,
            )
            if end.code != STOPPED and not end.again and not running.killed:
                self._record_crash(running, end)
                self.tell(number, running.folder)

    def fill(self) -> None:
        """Submit until the slots are full, or the launcher takes no more for now."""
        if time.monotonic() < self.busy_until:
            return
        try:
            self._fill()
            self.busy = ""
        except Busy as why:
            self.busy, self.busy_until = str(why), time.monotonic() + BUSY_SECONDS

    def _fill(self) -> None:
        """Unfinished trials of an earlier controller first, then new points."""
        while len(self.running) < self.launcher.slots:
            again = next((trial for trial in self._unfinished()), None)
            if again is not None:
                self._resume(again)
            elif len(self.started) < self.target:
                if not self._start_new():
                    self.exhausted = True
                    return
            else:
                return

    def stop(self) -> None:
        """Ask every attempt to stop at its next rollout boundary; nothing new is started."""
        self.stopping = True
        for running in self.running.values():
            running.folder.control("stop")

    def kill(self) -> None:
        """End every attempt now, and start none; their last checkpoints remain."""
        self.stopping = True
        for running in self.running.values():
            running.killed = True
            self.launcher.cancel(running.job_id)

    def tell(self, number: int, folder: TrialFolder) -> None:
        """Tell the study how a trial ended, and give back what a loser kept."""
        result = folder.result or {}
        value = result.get("objective") if result.get("status") == "finished" else None
        value = value if value is not None and math.isfinite(value) else None
        self.study.tell(number, value, folder.evaluations(self.search.metric))
        if value is not None and self.keep == "best":
            self._keep_best()

    def best(self) -> FrozenTrial | None:
        """The best finished trial; the earlier of two equal ones."""
        finished = [trial for trial in self.started if trial.state == TrialState.COMPLETE and trial.value is not None]
        sign = -1 if self.search.direction == "maximize" else 1
        return min(finished, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)

    def trial_folder(self, trial: FrozenTrial) -> TrialFolder:
        """The folder of a started trial."""
        return self.folder.trial(trial.number, trial.user_attrs["experiment"])

    def _unfinished(self) -> list[FrozenTrial]:
        """Trials that are running by the study, but not under this controller."""
        return [trial for trial in self.started if not trial.state.is_finished() and trial.number not in self.running]

    def _resume(self, trial: FrozenTrial) -> None:
        """Bring a trial of an earlier controller to its end: follow its attempt, tell what it left, or run it again."""
        verdict = self.judge.verdict(dict(trial.params))
        folder = self._write(trial.number, verdict)
        if self._adopt(folder, verdict):
            return
        if folder.is_done:
            self.tell(trial.number, folder)
        else:
            self._submit(folder, verdict)

    def _adopt(self, folder: TrialFolder, verdict: Verdict) -> bool:
        """Go on with an attempt that outlived its controller; False where there is none."""
        begun = folder.open_attempt()
        if begun is None:
            return False
        job_id = self.launcher.find(Job(folder.path, begun.number, verdict.experiment.cluster), begun.job_id)
        if job_id is None:
            return False
        if begun.job_id is None:
            folder.note_attempt(begun.number, "started", time=time.time(), job_id=job_id)
        self.running[folder.number] = Running(folder, verdict.point, begun.number, job_id, begun.time)
        return True

    def _start_new(self) -> bool:
        """Ask for a point and start its trial; False where no valid point is left."""
        used = {trial.user_attrs.get("enqueued") for trial in self.started}
        index = next((i for i in range(len(self.enqueued)) if i not in used), None)
        point = self._ask(self.enqueued[index] if index is not None else {})
        if point is None:
            return False
        verdict = self.judge.verdict(point)
        attributes: dict[str, Any] = {"experiment": experiment_id(verdict.experiment, verdict.setting)}
        if index is not None:
            attributes["enqueued"] = index
        number = self.study.add(point, attributes)
        self._submit(self._write(number, verdict), verdict)
        return True

    def _ask(self, fixed: Mapping[str, Label]) -> Point | None:
        """The next point of the grid, or what the sampler proposes."""
        done = {trial.user_attrs["experiment"] for trial in self.started}
        known = {freeze(trial.params) for trial in self.started} | self.doubles

        def is_new(point: Point) -> bool:
            if self.repeat:
                return True
            if freeze(point) in known:
                return False
            verdict = self.judge.verdict(point)
            if not verdict.is_valid:
                return False
            if experiment_id(verdict.experiment, verdict.setting) in done:
                self.doubles.add(freeze(point))
                return False
            return True

        if self.sampler == "grid":
            agreeing = (p for p in self.valid_points if all(p.get(name) == label for name, label in fixed.items()))
            return next((point for point in agreeing if is_new(point)), None)
        finite = tuple(self.study.space.finite_part(point) for point in self.valid_points)
        return self.study.ask(Valid(is_new, finite), self.sampler, self.search.seed, fixed)

    def _write(self, number: int, verdict: Verdict) -> TrialFolder:
        values = self.study.space.values(verdict.point)
        return write_trial(self.folder, number, verdict, self.overrides, values, self.provenance)

    def _submit(self, folder: TrialFolder, verdict: Verdict) -> None:
        """Intent on disk, then the attempt, then its id."""
        begun = folder.open_attempt()
        (folder.path / "control.json").unlink(missing_ok=True)
        if begun is not None and begun.job_id is None:
            attempt = begun.number  # announced, and never submitted
        else:
            attempt = folder.next_attempt()
            if not self.is_dry:
                folder.note_attempt(attempt, "intent", time=time.time(), packages=self.provenance.get("packages"))
        job_id = self.launcher.submit(
            Job(
                folder.path,
                attempt,
                verdict.experiment.cluster,
                starts_ranks=is_outside(verdict.experiment.trainer.kind),
            )
        )
        if not self.is_dry:
            folder.note_attempt(attempt, "started", time=time.time(), job_id=job_id)
        self.running[folder.number] = Running(folder, verdict.point, attempt, job_id, time.time())

    def _record_crash(self, running: Running, end: End) -> None:
        """An attempt that could not say how it ended is recorded as failed, with its last lines.

        What the launcher knows counts more: a rank whose neighbour ran out of memory only sees a connection close.
        """
        result = running.folder.result
        wanted = "finished" if end.code == FINISHED else "failed"
        if result is not None and result.get("status") == wanted and not end.kind:
            return
        kind = end.kind or (f"signal {-end.code}" if end.code < 0 else f"exit code {end.code}")
        message = end.message or f"the attempt ended with {kind}"
        failure = {"kind": kind, "message": message, "last_lines": running.folder.last_lines()}
        running.folder.write_result(
            {
                "status": "failed",
                "objective": None,
                "step": running.folder.heartbeat().get("step", 0),
                "failure": failure,
            }
        )

    def _keep_best(self) -> None:
        """With ``trainer.keep=best`` only the winner's model stays."""
        best = self.best()
        for trial in self.started:
            if best is not None and trial.state == TrialState.COMPLETE and trial.number != best.number:
                self.trial_folder(trial).delete_model()


def recorded_points(study: SweepStudy) -> set[object]:
    """The frozen points that the study holds as invalid."""
    return {freeze(trial.params) for trial in study.trials if trial.user_attrs.get("invalid")}
