"""The controller: an idempotent tick that collects what ended, tells the study, asks for valid points and submits them."""

import contextlib
import errno
import time
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial

from grposweep.launchers.base import End, Launcher, LauncherBusy
from grposweep.search.validity import Verdict
from grposweep.storage.exit_code import ExitCode
from grposweep.storage.folders import Asked, SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.sweep.attempts import Attempts, running_of
from grposweep.sweep.budget import Budget, CostModel, Spending
from grposweep.sweep.early_stopping import NEVER_PROMOTED, EarlyStoppingMonitor
from grposweep.sweep.outcomes import OutcomeRecorder, RunningAttempt
from grposweep.sweep.trial_queue import TrialQueue
from grposweep.sweep.write_trial import write_trial

BUSY_SECONDS = 30.0  # until a launcher that took nothing more is asked again
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass
class Controller:
    """Owns one sweep while its lease is held; everything it knows is also in files."""

    folder: SweepFolder
    proposals: TrialQueue
    settler: OutcomeRecorder
    launcher: Launcher
    lease: Lease
    overrides: list[str]  # those that every trial shares
    provenance: dict[str, Any]
    overseer: EarlyStoppingMonitor
    is_dry: bool = False  # nothing is submitted, so no attempt is noted
    running: dict[int, RunningAttempt] = field(default_factory=dict)
    stopping: bool = False
    unwritable: str = ""  # what the last tick could not write; it tries again as long as something runs
    _refused: tuple[int, int] | None = None  # trials started and running when the budget held no other
    busy: str = ""  # why the launcher takes nothing more for now
    busy_until: float = 0.0  # time.monotonic()

    def __post_init__(self) -> None:
        self.study, self.judge, self.search = self.proposals.study, self.proposals.judge, self.proposals.search
        budget = Budget(self.search.budget_gpu_hours, CostModel(self.judge))
        self.spending = Spending(self.folder, self.study, budget, self.running)
        self.attempts = Attempts(self.launcher, self.provenance, self.is_dry)
        self.proposals.at_once, self.proposals.seconds = self.launcher.slots, self.spending.seconds

    def tick(self) -> bool:
        """Collect, then fill free slots; returns whether the sweep has nothing left to do."""
        self.lease.check()
        try:
            self.unwritable = ""
            self.collect()
            if not self.stopping and not self.settler.halted:
                self.fill()
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            # Nothing is lost: what could not be written is still to be done, at the next tick or by the next controller.
            self.unwritable = f"{error.filename or self.folder.path} cannot be written ({error.strerror})"
        nothing_moves = all(running.end is not None for running in self.running.values())
        waits = self.busy and not (self.stopping or self.settler.halted)  # for a place that is to take more
        return nothing_moves and bool(self.unwritable or not (self.running or waits))

    @property
    def trouble(self) -> str:
        """Why nothing is started, though there may be more to do."""
        return self.unwritable or self.settler.halted or self.busy

    @property
    def stopped_itself(self) -> bool:
        """Whether something has to be mended before the sweep can go on."""
        return bool(self.settler.halted or self.unwritable)

    @property
    def started(self) -> list[FrozenTrial]:
        """All trials that were started, now or by an earlier controller."""
        return self.study.started

    @property
    def ended(self) -> int:
        """How many trials have ended for good, now or under an earlier controller."""
        return sum(trial.state.is_finished() for trial in self.started)

    def collect(self) -> None:
        """Record what ended: in the trial folder first, then in the study."""
        for number, running in list(self.running.items()):
            running.end = running.end or self.launcher.poll(running.job_id)
            if running.end is None:
                self._watch(running)
            else:
                self.settler.settle(running, running.end)
                del self.running[number]
                if news := self.spending.look_back(self.study.trials[number], self.proposals.planned):
                    self.settler.news.append(news)
                if running.asked.action == "pause" and not running.folder.is_done:
                    self.overseer.pause(number)
                self.busy_until = 0.0  # there may be room now

    def fill(self) -> None:
        """Submit until the slots are full, the budget is spent, or the launcher takes no more for now."""
        if time.monotonic() < self.busy_until:
            return
        try:
            self._fill()
            self.busy = ""
        except LauncherBusy as why:
            self.busy, self.busy_until = str(why), time.monotonic() + BUSY_SECONDS

    def _fill(self) -> None:
        """One after the other; what was paused and never promoted ends with the sweep."""
        while len(self.running) < self.launcher.slots:
            if self.settler.halted:
                return
            if self.spending.is_over() or not self._start_one():
                break
        if not self.running:
            self._end_paused()

    def _start_one(self) -> bool:
        """Unfinished trials first, an earlier controller's among them, then promoted ones, then new points; False: nothing."""
        again = next((trial for trial in self._unfinished()), None)
        if again is not None:
            self._resume(again)
            return True
        if self._refused == (now := (len(self.started), len(self.running))):  # nothing has ended since
            self.spending.overspent = True
            return False
        if self._start_or_promote():
            return True
        self._refused = now if self.spending.overspent else None
        return False

    def _start_or_promote(self) -> bool:
        """Paused trials that are worth it before new points, as far as the budget holds them; False: neither."""
        more = self.proposals.has_points
        promoted = self.overseer.promote(more)
        if promoted is None:
            return self._start_new() or more > self.proposals.has_points  # no point was left: who goes on instead?
        trial = self.study.trials[promoted]
        if not self.spending.affords(dict(trial.params), self.overseer.share(trial)):
            return False
        self.overseer.go_on(promoted)
        verdict = self.judge.verdict(dict(trial.params))
        self._submit(self._write(promoted, verdict, trial.user_attrs), verdict)
        return True

    def _end_paused(self) -> None:
        """Nothing will be started any more: what waits for its promotion waits in vain."""
        for number in sorted(self.overseer.paused):
            folder = self.trial_folder(self.study.trials[number])
            self.settler.prune(folder, Asked("prune", f"{NEVER_PROMOTED} ({folder.asked.reason})"))
            self.overseer.go_on(number)

    def stop(self) -> None:
        """Ask every attempt to stop at its next rollout boundary; nothing new is started."""
        self.stopping = True
        for running in self.running.values():
            if running.asked.is_last:
                continue  # it stops there anyway, for another reason
            with contextlib.suppress(OSError):  # a full disk: only ending them now is left
                running.folder.control("stop")

    def kill(self) -> None:
        """End every attempt now, and start none; their last checkpoints remain."""
        self.stopping = True
        for running in self.running.values():
            running.killed = True
            self.launcher.cancel(running.job_id)

    def trial_folder(self, trial: FrozenTrial) -> TrialFolder:
        """The folder of a started trial."""
        return self.folder.trial(trial.number, trial.user_attrs["experiment"])

    def _watch(self, running: RunningAttempt) -> None:
        """Judge what it has learned so far; end an attempt that shows no sign of life, of which the disk knows first."""
        if running.cancelled:
            return
        if not self.stopping:
            self.overseer.watch(running)
        running.pulse.look(waits=bool(self.launcher.waiting(running.job_id)))
        limit = running.stall_seconds
        if not running.hangs and limit is not None and running.pulse.still_seconds > limit:
            running.folder.note_attempt(running.attempt, "hangs", time=time.time())
            running.hangs = True
        if running.hangs:
            running.cancelled = True
            self.launcher.cancel(running.job_id)

    def _unfinished(self) -> list[FrozenTrial]:
        """Trials that are running by the study, but not under this controller, and not paused."""
        known = self.running.keys() | self.overseer.paused
        return [trial for trial in self.started if not trial.state.is_finished() and trial.number not in known]

    def _resume(self, trial: FrozenTrial) -> None:
        """Bring a trial to its end: follow its attempt, tell what it left, leave it paused, or run it again."""
        if self._is_paused(self.trial_folder(trial)):
            self.overseer.pause(trial.number)
            return
        verdict = self.judge.verdict(dict(trial.params), trial.user_attrs.get("seed"))
        folder = self._write(trial.number, verdict, trial.user_attrs)
        begun = folder.open_attempt()
        if begun is not None and (running := self.attempts.find(folder, verdict, begun)):
            self.running[trial.number] = running
            return
        if begun is not None and folder.awaits_ruling:
            self.settler.settle(running_of(folder, verdict, begun), End(ExitCode.FAILED))
            return
        if folder.has_ruling:
            folder.close_attempt()
        asked = folder.asked
        if folder.is_done:
            self.settler.tell(trial.number, folder)
        elif asked.action == "prune":
            self.settler.prune(folder, asked)
        elif asked.action == "pause":
            folder.close_attempt()
            self.overseer.pause(trial.number)
        else:
            self._submit(folder, verdict)

    def _is_paused(self, folder: TrialFolder) -> bool:
        """Whether it is plain that a trial waits for its promotion; a look at two files."""
        return folder.asked.action == "pause" and not folder.is_done and folder.open_attempt() is None

    def _start_new(self) -> bool:
        """Start the next trial; False where none is to follow, for now at least."""
        proposal = self.proposals.next()
        if proposal is None or not self.spending.affords(proposal.verdict.point):
            return False
        number = self.study.add(proposal.verdict.point, proposal.attributes)
        self._submit(self._write(number, proposal.verdict, proposal.attributes), proposal.verdict)
        return True

    def _write(self, number: int, verdict: Verdict, attributes: dict[str, Any]) -> TrialFolder:
        return write_trial(self.folder, number, verdict, self.overrides, verdict.values, self.provenance, attributes)

    def _submit(self, folder: TrialFolder, verdict: Verdict) -> None:
        self.running[folder.number] = self.attempts.submit(folder, verdict)
