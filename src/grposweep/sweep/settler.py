"""The end of an attempt written down: in the trial's folder first, then in the study; and what follows from it for the sweep."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.trial import TrialState

from grposweep.config.schema import Search
from grposweep.launch.base import FINISHED, STOPPED, End
from grposweep.search.judge import Judge
from grposweep.search.space import Point
from grposweep.search.study import SweepStudy
from grposweep.sweep.endings import AGAIN, Ruling, rule_on, write_end, write_pruned
from grposweep.sweep.failures import Failure, Step, is_epidemic, same_words
from grposweep.sweep.folder import Asked, SweepFolder, TrialFolder
from grposweep.sweep.memory import note_peak, note_too_large
from grposweep.sweep.pulse import Pulse


@dataclass
class Running:
    """One attempt under way; ``end`` once its launcher has told how it ended."""

    folder: TrialFolder
    point: Point
    attempt: int
    job_id: str
    since: float
    pulse: Pulse
    stall_seconds: float | None
    seed: int | None = None  # a replicate's
    killed: bool = False
    hangs: bool = False  # it was found without a sign of life,
    cancelled: bool = False  # and this controller has had it ended
    asked: Asked = field(default_factory=Asked)  # what its control.json says
    end: End | None = None


@dataclass
class Settler:
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

    def settle(self, running: Running, end: End) -> None:
        """Write down how an attempt ended, and whether its trial has."""
        if running.hangs:
            end = replace(
                end, kind="hang", message="it showed no sign of life for cluster.stall_min minutes", again=False
            )
        taken = end.code == STOPPED and not end.kind  # it was asked to stop
        if taken and running.asked.action == "prune":
            write_pruned(running.folder, running.asked)
            self._note_end(running, end)
            self._close(running.folder, None)
            return
        if taken or running.killed or (end.code == FINISHED and running.folder.objective is not None):
            self._note_end(running, end)
            if not (taken or running.killed):
                note_peak(self.folder, running.folder, self.judge.verdict(running.point, running.seed))
                self._close(running.folder, None)
            return
        verdict = self.judge.verdict(running.point, running.seed)
        ruling = rule_on(running.folder, verdict, end, moved=not running.hangs)
        for_good = ruling.step not in (*AGAIN, Step.STOP)
        if for_good and ruling.failure is Failure.GPU_MEMORY:
            note_too_large(self.folder, running.folder, verdict)  # before the result says that all is settled
        self._carry_out(running.folder, running.attempt, ruling)
        self._note_end(running, end, ruling)
        if for_good:
            self._close(running.folder, ruling)

    def prune(self, folder: TrialFolder, asked: Asked) -> None:
        """End a trial for good that does not run; its last attempt may have died before it could heed that."""
        write_pruned(folder, asked)
        folder.close_attempt()
        self._close(folder, None)

    def _note_end(self, running: Running, end: End, ruling: Ruling | None = None) -> None:
        said: dict[str, Any] = {"kind": end.kind, "again": end.again} if end.kind else {}
        if ruling is not None:
            said |= {"failure": ruling.failure.value, "step": ruling.step.value, "nodes": end.nodes}
        seconds = round(time.time() - running.since, 3)
        running.folder.note_attempt(
            running.attempt, "ended", code=end.code, killed=running.killed, seconds=seconds, **said
        )

    def _carry_out(self, folder: TrialFolder, attempt: int, ruling: Ruling) -> None:
        """What a ruling means for the trial's result, and for the sweep."""
        goes_on = ruling.step in (*AGAIN, Step.STOP)
        write_end(folder, attempt, "retried" if goes_on else "failed", ruling.record)
        if ruling.step is Step.STOP:
            self._halt(f"trial {folder.number}: {ruling.failure.words}")
        elif goes_on:
            how = "in smaller micro-batches" if ruling.step is Step.HEAL else "from its last checkpoint"
            self.news.append(f"trial {folder.number}: {ruling.failure.words}; it goes on {how}")

    def _close(self, folder: TrialFolder, ruling: Ruling | None) -> None:
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
