"""The controller: an idempotent tick that collects what ended, tells the study, asks for valid points and submits them."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from grposweep import runs
from grposweep.launch.base import FINISHED, STOPPED, Busy, End, Job, Launcher
from grposweep.programs import is_program
from grposweep.search.judge import Verdict
from grposweep.search.space import Point
from grposweep.sweep.folder import SweepFolder, TrialFolder
from grposweep.sweep.lease import Lease
from grposweep.sweep.proposals import Proposals
from grposweep.sweep.trial import write_trial

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
    proposals: Proposals
    launcher: Launcher
    lease: Lease
    overrides: list[str]  # those that every trial shares
    provenance: dict[str, Any]
    keep: str = "best"  # trainer.keep
    is_dry: bool = False  # nothing is submitted, so no attempt is noted
    running: dict[int, Running] = field(default_factory=dict)
    stopping: bool = False
    exhausted: bool = False  # no valid point is left
    overspent: bool = False  # the budget is
    costs: dict[int, float] = field(default_factory=dict)  # device-seconds of finished trials
    busy: str = ""  # why the launcher takes nothing more for now
    busy_until: float = 0.0  # time.monotonic()

    def __post_init__(self) -> None:
        self.study, self.judge, self.search = self.proposals.study, self.proposals.judge, self.proposals.search

    def tick(self) -> bool:
        """Collect, then fill free slots; returns whether the sweep has nothing left to do."""
        self.lease.check()
        self.collect()
        if not self.stopping:
            self.fill()
        return not self.running and not self.busy

    @property
    def started(self) -> list[FrozenTrial]:
        """All trials that were started, now or by an earlier controller."""
        return self.proposals.started

    def collect(self) -> None:
        """Record what ended: in the trial folder first, then in the study."""
        for number, running in list(self.running.items()):
            end = self.launcher.poll(running.job_id)
            if end is None:
                continue
            del self.running[number]
            self.busy_until = 0.0  # there may be room now
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
                _record_crash(running.folder, end)
                self.tell(number, running.folder)

    def fill(self) -> None:
        """Submit until the slots are full, the budget is spent, or the launcher takes no more for now."""
        if time.monotonic() < self.busy_until:
            return
        try:
            self._fill()
            self.busy = ""
        except Busy as why:
            self.busy, self.busy_until = str(why), time.monotonic() + BUSY_SECONDS

    def _fill(self) -> None:
        """Unfinished trials of an earlier controller first, then new points."""
        while len(self.running) < self.launcher.slots and not (self.exhausted or self._overspends()):
            again = next((trial for trial in self._unfinished()), None)
            if again is not None:
                self._resume(again)
            elif len(self.started) >= self.proposals.target:
                return
            elif not self._start_new():
                self.exhausted = True

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

    def spent_hours(self) -> float:
        """GPU hours of all trials so far, those that run among them; a rank without a GPU counts as one."""
        passing = 0.0
        for trial in self.started:
            if trial.number not in self.costs:
                seconds = runs.device_seconds(self.trial_folder(trial).path, trial.number in self.running)
                if not trial.state.is_finished():
                    passing += seconds
                else:
                    self.costs[trial.number] = seconds
        return sum(self.costs.values(), passing) / 3600

    def trial_folder(self, trial: FrozenTrial) -> TrialFolder:
        """The folder of a started trial."""
        return self.folder.trial(trial.number, trial.user_attrs["experiment"])

    def _overspends(self) -> bool:
        """Whether the budget is spent, and nothing more may be started; what runs goes on."""
        budget = self.search.budget_gpu_hours
        self.overspent = budget is not None and self.spent_hours() >= budget
        return self.overspent

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
        job_id = self.launcher.find(_job(folder, begun.number, verdict), begun.job_id)
        if job_id is None:
            return False
        if begun.job_id is None:
            folder.note_attempt(begun.number, "started", time=time.time(), job_id=job_id)
        self.running[folder.number] = Running(folder, verdict.point, begun.number, job_id, begun.time)
        return True

    def _start_new(self) -> bool:
        """Start a trial of the next point; False where no valid point is left."""
        proposal = self.proposals.next()
        if proposal is None:
            return False
        number = self.study.add(proposal.verdict.point, proposal.attributes)
        self._submit(self._write(number, proposal.verdict), proposal.verdict)
        return True

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
        job_id = self.launcher.submit(_job(folder, attempt, verdict))
        if not self.is_dry:
            folder.note_attempt(attempt, "started", time=time.time(), job_id=job_id)
        self.running[folder.number] = Running(folder, verdict.point, attempt, job_id, time.time())

    def _keep_best(self) -> None:
        """With ``trainer.keep=best`` only the winner's model stays."""
        best = self.best()
        for trial in self.started:
            if best is not None and trial.state == TrialState.COMPLETE and trial.number != best.number:
                self.trial_folder(trial).delete_model()


def _job(folder: TrialFolder, attempt: int, verdict: Verdict) -> Job:
    experiment = verdict.experiment
    starts_ranks = is_program(experiment.trainer.kind)
    return Job(folder.path, attempt, experiment.cluster, experiment.generation, starts_ranks=starts_ranks)


def _record_crash(folder: TrialFolder, end: End) -> None:
    """An attempt that could not say how it ended is recorded as failed, with its last lines.

    What the launcher knows counts more: a rank whose neighbour ran out of memory only sees a connection close.
    """
    result = folder.result
    wanted = "finished" if end.code == FINISHED else "failed"
    if result is not None and result.get("status") == wanted and not end.kind:
        return
    kind = end.kind or (f"signal {-end.code}" if end.code < 0 else f"exit code {end.code}")
    message = end.message or f"the attempt ended with {kind}"
    failure = {"kind": kind, "message": message, "last_lines": folder.last_lines()}
    step = folder.heartbeat().get("step", 0)
    folder.write_result({"status": "failed", "objective": None, "step": step, "failure": failure})
