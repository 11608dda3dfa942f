"""Whether an attempt still moves: its heartbeat is watched for change, by this machine's clock alone.

What becomes of a trial whose attempt ended badly: its failure's class, and by that class's policy what comes next.

The end of an attempt written down: in the trial's folder first, then in the study; and what follows from it for the sweep.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from grposweep.launchers.base import End
from grposweep.schema import Search, is_external
from grposweep.search.space import Point
from grposweep.search.study import SweepStudy
from grposweep.search.validity import Judge, Verdict
from grposweep.storage.exit_code import ExitCode
from grposweep.storage.folders import Asked, SweepFolder, TrialFolder
from grposweep.storage.oom_fix import is_healed, write_healed
from grposweep.sweep.failures import Failure, Step, classify, is_epidemic, next_step, read_evidence, same_words
from grposweep.sweep.oom import heal, record_oom, record_peak


@dataclass
class HeartbeatMonitor:
    """One attempt's heartbeat as a controller sees it."""

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


AGAIN = (Step.RETRY, Step.ELSEWHERE, Step.HEAL)


@dataclass(frozen=True)
class RetryDecision:
    """A failed attempt's class, what to do with its trial, and the failure as result.json holds it.

    The record holds all of the ruling: a controller that dies before it notes the end leaves it to the next one.
    """

    failure: Failure
    step: Step
    record: Mapping[str, Any]


def decide_retry(folder: TrialFolder, verdict: Verdict, end: End, moved: bool | None = None) -> RetryDecision:
    """The ruling on the last attempt; ``moved``: whether its heartbeat did, shortly before the end.

    A launcher that says ``again`` took the attempt away, which is no failure of the trial's; it counts these itself.
    """
    lines = folder.attempts()
    last: Mapping[str, Any] = next((line for line in reversed(lines) if line.get("event") == "intent"), {})
    failure = classify(read_evidence(folder.path, end, moved, last.get("logs")))
    past = [Failure(line["failure"]) for line in lines if line.get("failure") and not line.get("again")]
    record = _record(folder, end, failure)
    if end.again:
        step = Step.RETRY
    elif failure in (Failure.PREEMPTED, Failure.TIME_LIMIT):
        step = Step.FAIL  # the launcher has given it up
    else:
        step = next_step([*past, failure], verdict.experiment.cluster.requeue_limit)
        if step is Step.HEAL and not _heal(folder, verdict, failure, last.get("attempt", 0)):
            step = Step.FAIL
    taken = {"again": True} if end.again else {}
    where = {"nodes": end.nodes} if end.nodes else {}
    return RetryDecision(failure, step, {**record, "then": step.value, **taken, **where})


def _record(folder: TrialFolder, end: End, failure: Failure) -> dict[str, Any]:
    """What the attempt said of its own failure, or what its launcher and its last lines say.

    What the launcher knows counts more: a rank whose neighbour ran out of memory only sees a connection close.
    """
    result = folder.result or {}
    said = result.get("failure") if result.get("status") in ("failed", "retried") else None
    if said and not end.kind:
        return {**said, "class": failure.value}
    kind = end.kind or (f"signal {-end.code}" if end.code < 0 else f"exit code {end.code}")
    message = end.message or f"the attempt ended with {kind}"
    return {"kind": kind, "class": failure.value, "message": message, "last_lines": folder.last_lines()}


def _heal(folder: TrialFolder, verdict: Verdict, failure: Failure, attempt: int) -> bool:
    """Write down smaller micro-batches for the attempts to come; False where there are none that change no number."""
    changes = heal(verdict.setting, verdict.experiment.rules.ignore)
    if changes is None or is_healed(folder.path, attempt) or is_external(verdict.experiment.trainer.kind):
        return False
    write_healed(folder.path, changes, failure.words, attempt)
    return True


def write_pruned(folder: TrialFolder, asked: Asked) -> None:
    """result.json of a trial that was stopped early: all that its last attempt left, and the reason.

    A collapsed training is ``pruned`` as well, not ``failed``: its attempt ended in order, nothing is to be mended, and only
    pruned trials teach a sampler which points are bad. Its failure's class says what it was.
    """
    before = folder.result or {}
    if before.get("status") not in ("stopped", "pruned"):
        attempt = max((line["attempt"] for line in folder.attempts()), default=0)
        before = {"attempt": attempt, "objective": None, "step": folder.heartbeat().get("step", 0)}
    failure: dict[str, Any] | None = None
    if asked.guard:
        kind = Failure.NON_FINITE if asked.guard == "non_finite" else Failure.COLLAPSE
        failure = {"kind": kind.value, "class": kind.value, "message": asked.reason, "last_lines": []}
    said = {"status": "pruned", "reason": asked.reason, "guard": asked.guard or None, "failure": failure}
    folder.write_result({**{name: value for name, value in before.items() if name != "v"}, **said})


def write_end(folder: TrialFolder, attempt: int, status: str, failure: Mapping[str, Any]) -> None:
    """result.json of a failed attempt: ``failed`` for good, ``retried`` where another one follows."""
    before = folder.result or {}
    step = before.get("step", folder.heartbeat().get("step", 0))
    number = before.get("attempt", attempt)  # a job that Slurm restarted has used several
    folder.write_result(
        {"attempt": number, "status": status, "objective": None, "step": step, "failure": dict(failure)}
    )


@dataclass
class RunningAttempt:
    """One attempt under way; ``end`` once its launcher has told how it ended."""

    folder: TrialFolder
    point: Point
    attempt: int
    job_id: str
    since: float
    pulse: HeartbeatMonitor
    stall_seconds: float | None
    seed: int | None = None  # a replicate's
    killed: bool = False
    hangs: bool = False  # it was found without a sign of life,
    cancelled: bool = False  # and this controller has had it ended
    asked: Asked = field(default_factory=Asked)  # what its control.json says
    end: End | None = None


@dataclass
class OutcomeRecorder:
    """Settles attempts of one sweep; what it knows beyond the files is for this controller's life only."""

    folder: SweepFolder
    study: SweepStudy
    judge: Judge
    search: Search
    keep: str = "best"  # trainer.keep
    endings: list[tuple[Failure, str] | None] = field(default_factory=list)  # of trials, in time
    news: list[str] = field(default_factory=list)  # for whoever shows them
    _kept: set[int] = field(default_factory=set)  # trials whose models were wanted when we last looked
    halted: str = ""  # why nothing more is to be started, though there is more to do

    def settle(self, running: RunningAttempt, end: End) -> None:
        """Write down how an attempt ended, and whether its trial has."""
        if running.hangs:
            end = replace(
                end, kind="hang", message="it showed no sign of life for cluster.stall_min minutes", again=False
            )
        taken = end.code == ExitCode.STOPPED and not end.kind  # it was asked to stop
        if taken and running.asked.action == "prune":
            write_pruned(running.folder, running.asked)
            self._note_end(running, end)
            self._close(running.folder, None)
            return
        if taken or running.killed or (end.code == ExitCode.FINISHED and running.folder.objective is not None):
            self._note_end(running, end)
            if not (taken or running.killed):
                record_peak(self.folder, running.folder, self.judge.verdict(running.point, running.seed))
                self._close(running.folder, None)
            return
        verdict = self.judge.verdict(running.point, running.seed)
        ruling = decide_retry(running.folder, verdict, end, moved=not running.hangs)
        for_good = ruling.step not in (*AGAIN, Step.STOP)
        if for_good and ruling.failure is Failure.GPU_MEMORY:
            record_oom(self.folder, running.folder, verdict)  # before the result says that all is settled
        self._carry_out(running.folder, running.attempt, ruling)
        self._note_end(running, end, ruling)
        if for_good:
            self._close(running.folder, ruling)

    def prune(self, folder: TrialFolder, asked: Asked) -> None:
        """End a trial for good that does not run; its last attempt may have died before it could heed that."""
        write_pruned(folder, asked)
        folder.close_attempt()
        self._close(folder, None)

    def _note_end(self, running: RunningAttempt, end: End, ruling: RetryDecision | None = None) -> None:
        said: dict[str, Any] = {"kind": end.kind, "again": end.again} if end.kind else {}
        if ruling is not None:
            said |= {"failure": ruling.failure.value, "step": ruling.step.value, "nodes": end.nodes}
        seconds = round(time.time() - running.since, 3)
        running.folder.note_attempt(
            running.attempt, "ended", code=end.code, killed=running.killed, seconds=seconds, **said
        )

    def _carry_out(self, folder: TrialFolder, attempt: int, ruling: RetryDecision) -> None:
        """What a ruling means for the trial's result, and for the sweep."""
        goes_on = ruling.step in (*AGAIN, Step.STOP)
        write_end(folder, attempt, "retried" if goes_on else "failed", ruling.record)
        if ruling.step is Step.STOP:
            self._halt(f"trial {folder.number}: {ruling.failure.words}")
        elif goes_on:
            how = "in smaller micro-batches" if ruling.step is Step.HEAL else "from its last checkpoint"
            self.news.append(f"trial {folder.number}: {ruling.failure.words}; it goes on {how}")

    def _close(self, folder: TrialFolder, ruling: RetryDecision | None) -> None:
        """A trial has ended for good; the same failure again and again ends the sweep as well."""
        self.tell(folder.number, folder)
        message = str(ruling.record.get("message", "")) if ruling is not None else ""
        self.endings.append(None if ruling is None else (ruling.failure, same_words(ruling.failure, message)))
        if is_epidemic(self.endings):
            self._halt(f"the last trials all failed alike ({message})")

    def _halt(self, why: str) -> None:
        """Start nothing more; what runs goes on."""
        self.halted = self.halted or why

    def tell(self, number: int, folder: TrialFolder) -> None:
        """Tell the study how a trial ended, and give back what a loser kept."""
        value = folder.objective
        if folder.is_pruned:
            self._forget([folder])
        self.study.tell(number, value, folder.evaluations(self.search.metric), pruned=folder.is_pruned)
        if value is not None and self.keep == "best":
            self._give_back([number])

    def keep_best(self) -> None:
        """With ``trainer.keep=best`` no model stays but the winner's, whatever an earlier controller left."""
        started = self.study.started
        finished = [trial.number for trial in started if trial.state == TrialState.COMPLETE]
        pruned = [trial for trial in started if trial.state == TrialState.PRUNED]
        self._forget(self.folder.trial(trial.number, trial.user_attrs["experiment"]) for trial in pruned)
        if self.keep == "best":
            self._give_back(finished)

    def _forget(self, pruned: Iterable[TrialFolder]) -> None:
        """Delete what trials that were stopped early would have gone on from."""
        if self.keep in ("best", "none"):
            for folder in pruned:
                folder.delete_checkpoints()
                folder.delete_model()  # where a program keeps its checkpoints

    def _give_back(self, finished: Iterable[int]) -> None:
        """Delete the models of these trials and of those wanted so far, but what is wanted now."""
        kept, trials = self.study.kept, self.study.trials
        for number in {*finished, *self._kept} - kept:
            self.folder.trial(number, trials[number].user_attrs["experiment"]).delete_model()
        self._kept = kept
