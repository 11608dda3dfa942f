"""Control a sweep: a tick collects ended attempts, updates the study, asks for valid points and
submits them. Idempotent.
"""

import contextlib
import errno
import logging
import math
import time
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import Json
from grporecipe.model.planning import boundary_steps
from grporecipe.terminal import count
from grposweep.launchers.base import End, GpuBusy, Launcher, LauncherBusy
from grposweep.search.validity import ValidationResult
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.storage.records import Action, AttemptEventKind
from grposweep.storage.results import TrialStatus
from grposweep.sweep._attempts import (
    Attempts,
    RunningAttempt,
    rollout_seconds,
    running_attempt,
    write_trial,
)
from grposweep.sweep._early_stopping import EarlyStoppingMonitor
from grposweep.sweep._log import about
from grposweep.sweep._outcomes import OutcomeRecorder, describe_resume
from grposweep.sweep._shared_server import SharedServer
from grposweep.sweep._spending import Spending
from grposweep.sweep._trial_queue import TrialQueue

# until the log says again that a trial waits for GPU memory
REPEAT_SECONDS = 1_800.0
logger = logging.getLogger(__name__)
# Temporary errors: a full disk, a withdrawn mount or permission, a stalled shared file system.
UNWRITABLE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
)


@dataclass
class Controller:
    """Runs one sweep while it holds the lease. All of its state is also in files."""

    folder: SweepFolder
    queue: TrialQueue
    outcomes: OutcomeRecorder
    launcher: Launcher
    lease: Lease
    # shared by all trials
    overrides: list[str]
    provenance: Json
    early_stopping: EarlyStoppingMonitor
    spending: Spending
    server: SharedServer | None = None
    stopping: bool = False
    # what the last tick could not write; it is retried while anything runs
    unwritable: str = ""
    # the hours of search.budget are
    is_spent: bool = False
    # why the launcher accepts no more attempts for now
    busy: str = ""
    # time.monotonic()
    busy_until: float = 0.0
    # trials whose GPU memory others hold
    waiting: dict[int, GpuBusy] = field(default_factory=dict)
    # what was logged last of that, and when
    _said: tuple[str, float] = ("", 0.0)
    # whether jobs are warned early enough
    _warning_checked: bool = False

    def __post_init__(self) -> None:
        self.study, self.validator, self.search = (
            self.queue.study,
            self.queue.validator,
            self.queue.search,
        )
        self.running = self.spending.running
        self.attempts = Attempts(self.launcher, self.provenance)

    def tick(self) -> bool:
        """Collect, then fill free slots. Return whether the sweep has nothing left to do."""
        before = self.unwritable
        self.unwritable = ""
        try:
            self.lease.check()
            self.collect()
            if not self.is_spent and self.spending.is_over:
                self._end_budget()
            if not self.stopping and not self.outcomes.halted:
                self.fill()
                if self.rests:
                    self.early_stopping.restate()
        except FileNotFoundError as error:
            self.lease.check()
            raise UserError(
                f"{error.filename or self.folder.path} was removed while its sweep ran. Run the "
                "same command again: it makes the study again from the trial folders, and "
                "unfinished trials resume from their last checkpoints."
            ) from error
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise UserError(
                    f"{error.filename or self.folder.path} cannot be used ({error.strerror}). "
                    "Make it readable and writable, then run the same command again."
                ) from error
            # Nothing is lost: the next tick or the next controller writes what could not be
            # written.
            self.unwritable = (
                f"{error.filename or self.folder.path} cannot be written ({error.strerror})"
            )
            if self.unwritable != before:
                logger.error("%s; trying again", self.unwritable)
        nothing_moves = all(running.end is not None for running in self.running.values())
        # until the launcher accepts more
        waits = self.busy and not (self.stopping or self.outcomes.halted)
        return nothing_moves and bool(self.unwritable or not (self.running or waits))

    @property
    def trouble(self) -> str:
        """Return why nothing is started although more may be left; empty otherwise."""
        return self.unwritable or self.outcomes.halted or self.busy

    @property
    def rests(self) -> bool:
        """Return whether the effort is spent, so that paused trials stay as they are."""
        return bool(
            self.early_stopping.paused and not (self.running or self.stopping or self.trouble)
        )

    @property
    def stopped_itself(self) -> bool:
        """Return whether the user must correct something before the sweep can continue."""
        return bool(self.outcomes.halted or self.unwritable)

    @property
    def is_out_of_budget(self) -> bool:
        """Return whether trials are left and the hours of the budget are spent."""
        return self.is_spent and self.ended < self.queue.planned

    @property
    def started(self) -> list[FrozenTrial]:
        """Return all trials that this or an earlier controller started."""
        return self.study.started

    @property
    def ended(self) -> int:
        """Return the number of trials that have ended finally, under this or an earlier
        controller.
        """
        return sum(trial.state.is_finished() for trial in self.started)

    def collect(self) -> None:
        """Record ended attempts: in the trial folder first, then in the study."""
        if self.server is not None:
            self.server.watch(is_used=bool(self.running))
        for number, running in list(self.running.items()):
            running.end = running.end or self.launcher.poll(running.job_id)
            if not running.folder.path.is_dir():
                self._drop(running)
            elif running.end is None:
                self._watch(running)
            else:
                self.outcomes.record(running, running.end)
                self.spending.end(number)
                if running.request.action == Action.PAUSE and not running.folder.is_done:
                    reason = running.request.reason
                    logger.info("paused: %s", reason, extra=running.where)
                    self.outcomes.news.append(f"trial {number} paused: {reason}")
                    self.early_stopping.pause(number)
                # there may be room now
                self.busy_until = 0.0

    def _drop(self, running: RunningAttempt) -> None:
        """End an attempt whose folder was removed. Its trial is unfinished in the study, so it
        starts from the beginning.
        """
        number = running.folder.number
        if running.end is not None:
            self.spending.end(number)
        elif not running.cancelled:
            running.cancelled = True
            self.launcher.cancel(running.job_id)
            self.outcomes.news.append(
                f"trial {number}: {running.folder.path} was removed; the trial starts from the "
                "beginning"
            )
            logger.warning(
                "its folder was removed: it starts from the beginning",
                extra=running.where,
            )

    def fill(self) -> None:
        """Submit until the slots are full, nothing is left, or the launcher accepts no more for
        now.
        """
        if time.monotonic() < self.busy_until:
            return
        self.waiting.clear()
        try:
            while len(self.running) < self.launcher.slots and not self.outcomes.halted:
                if not self._start_one():
                    break
            self.busy = ""
        except LauncherBusy as why:
            if isinstance(why, GpuBusy):
                self._report_waiting(why)
            elif str(why) != self.busy:
                logger.warning("the launcher takes no attempt now: %s", why)
                # nothing else would be printed while it waits
                if not self.running:
                    self.outcomes.news.append(f"no trial can start now: {why}")
            self.busy, self.busy_until = str(why), time.monotonic() + why.seconds

    def _report_waiting(self, busy: GpuBusy) -> None:
        """Say once which trial waits for memory and who holds it; the log repeats that rarely."""
        number = next(number for number, reason in self.waiting.items() if reason is busy)
        key = f"{number} {busy.holders}"
        now = time.monotonic()
        before, when = self._said
        if key != before:
            self.outcomes.news.append(f"trial {number} waits. {busy}")
        if key != before or now - when > REPEAT_SECONDS:
            self._said = key, now
            logger.warning("waits. %s", busy, extra=about(number))

    def _start_one(self) -> bool:
        """Start the next trial: unfinished, then promoted, then new. Return False if there is
        none.
        """
        started = self.running.keys() | self.early_stopping.paused | self.waiting.keys()
        for trial in self.started:
            if trial.state.is_finished() or trial.number in started:
                continue
            folder = self.folder.of(trial)
            if (
                folder.control.action != Action.PAUSE
                or folder.is_done
                or folder.open_attempt() is not None
            ):
                try:
                    self._resume(trial)
                except GpuBusy:
                    # another one may need less
                    continue
                return True
            self.early_stopping.pause(trial.number)
        if self.waiting:
            raise next(iter(self.waiting.values()))
        return self._start_or_promote()

    def _start_or_promote(self) -> bool:
        """Promote a paused trial, or start a new point. Return False if neither."""
        more = self.queue.has_points
        promoted = self.early_stopping.promote(more)
        if promoted is None and more:
            if self._start_new():
                return True
            # No point was left.
            promoted = self.early_stopping.promote(False)
        if promoted is None:
            return self._start_new()
        trial = self.study.trials[promoted]
        self.early_stopping.resume(promoted)
        verdict = self.validator.validate(dict(trial.params))
        self._submit(self._write(promoted, verdict, trial.user_attrs), verdict)
        logger.info("promoted: it resumes from its last checkpoint", extra=about(promoted))
        return True

    def _end_budget(self) -> None:
        """Stop every attempt, also those that an earlier controller has left, because the hours of
        the budget are spent.
        """
        self.is_spent = True
        for trial in self.started:
            if not trial.state.is_finished() and trial.number not in self.running:
                verdict = self.validator.validate(dict(trial.params), trial.user_attrs.get("seed"))
                self._follow(self.folder.of(trial), verdict)
        self.stop(f"search.budget={self.search.budget} is spent")
        if self.running:
            self.outcomes.news.append(
                f"search.budget={self.search.budget} is spent: "
                f"{count(len(self.running), 'running trial')} will stop at the next "
                "rollout boundary"
            )

    def stop(self, reason: str = "interrupted") -> None:
        """Ask every attempt to stop at its next rollout boundary; nothing new is started."""
        self.stopping = True
        logger.info(
            "%s: %d attempts will stop at their next rollout boundary", reason, len(self.running)
        )
        for running in self.running.values():
            if running.request.ends_trial:
                # it stops there anyway, for another reason
                continue
            # a full disk: only ending them now is left
            with contextlib.suppress(OSError):
                running.folder.request(Action.STOP)

    def kill(self) -> None:
        """End every attempt at once and start none. Their last checkpoints remain."""
        self.stopping = True
        logger.info("interrupted again: %d attempts are ended now", len(self.running))
        for running in self.running.values():
            running.killed = True
            self.launcher.cancel(running.job_id)

    def _watch(self, running: RunningAttempt) -> None:
        """Read an attempt's learning curve. End the attempt if its heartbeat stopped, which is
        noted on disk first.
        """
        if running.cancelled:
            return
        if not self.stopping:
            self.early_stopping.watch(running, lambda: self.queue.has_points)
        moved = running.heartbeat.look(waits=bool(self.launcher.waiting(running.job_id)))
        if moved and not self._warning_checked:
            self._check_warning(running)
        limit = running.stall_seconds
        if not running.hangs and limit is not None and running.heartbeat.still_seconds > limit:
            running.folder.note_attempt(running.attempt, AttemptEventKind.HANGS, time=time.time())
            running.hangs = True
            text = "no heartbeat for %.0f s: the attempt is cancelled"
            logger.warning(text, limit, extra=running.where)
        if running.hangs:
            running.cancelled = True
            self.launcher.cancel(running.job_id)

    def _check_warning(self, running: RunningAttempt) -> None:
        """Warn once if a job's warning comes too late for a rollout, which then ends without a
        checkpoint.
        """
        verdict = self.validator.validate(running.point, running.seed)
        lead = self.launcher.describe(verdict.experiment.cluster).warning_seconds
        seconds: float | None = 0.0
        if lead is not None:
            seconds = rollout_seconds(running.folder, boundary_steps(verdict.setting))
        if seconds is None:
            # known later
            return
        self._warning_checked = True
        if lead is not None and seconds > lead:
            # a checkpoint takes time as well
            enough = math.ceil(1.5 * seconds / 60) * 60
            news = (
                f"trial {running.folder.number}: a rollout with its optimizer steps takes "
                f"{seconds:.0f} s, and a job is warned {lead} s before its end: what it trained "
                f"since its last checkpoint would be lost. Set cluster.warn_seconds={enough}."
            )
            self.outcomes.news.append(news)
            logger.warning("%s", news, extra=running.where)

    def _resume(self, trial: FrozenTrial) -> None:
        """Continue an unfinished trial: follow its attempt, record its result, leave it paused, or
        run it again.
        """
        verdict = self.validator.validate(dict(trial.params), trial.user_attrs.get("seed"))
        folder = self._write(trial.number, verdict, trial.user_attrs)
        if self._follow(folder, verdict):
            return
        begun, result, request = folder.open_attempt(), folder.result, folder.control
        if begun is not None and result.awaits_classification:
            self.outcomes.record(running_attempt(folder, verdict, begun), End(ExitCode.FAILED))
            return
        if result.is_recorded:
            folder.close_attempt()
        if result.is_final:
            logger.info(
                "resume: it had ended (%s); the study is updated",
                result.status,
                extra=about(trial.number),
            )
            self.outcomes.report_to_study(folder)
        elif request.action == Action.PRUNE:
            self.outcomes.prune(folder, request)
        elif request.action == Action.PAUSE:
            folder.close_attempt()
            self.early_stopping.pause(trial.number)
        else:
            # After a failure its line has told it. A heartbeat may be older than the last step, so
            # it states none.
            is_news = bool(folder.heartbeat().step) and result.status is not TrialStatus.RETRIED
            start = describe_resume(folder, verdict) if is_news else ""
            self._submit(folder, verdict)
            if start:
                logger.info("resume: %s", start, extra=about(trial.number))
                self.outcomes.news.append(f"trial {trial.number}: {start}")

    def _follow(self, folder: TrialFolder, verdict: ValidationResult) -> bool:
        """Follow a trial's attempt that still runs. Return False if there is none."""
        begun = folder.open_attempt()
        running = None if begun is None else self.attempts.find(folder, verdict, begun)
        if running is None:
            return False
        self.running[folder.number] = running
        logger.info(
            "resume: the attempt %s still runs",
            running.job_id,
            extra=running.where,
        )
        return True

    def _start_new(self) -> bool:
        """Start the next trial of the queue. Return False if there is none for now."""
        proposal = self.queue.next()
        if proposal is None:
            return False
        number = self.study.add(proposal.verdict.point, proposal.attributes)
        values = " ".join(f"{name}={label}" for name, label in proposal.verdict.point.items())
        of, seed = map(proposal.attributes.get, ("of", "seed"))
        origin = "" if of is None else f" (trial {of} again on seed {seed})"
        logger.info(
            "new trial: %s%s", values or "the configuration as it is", origin, extra=about(number)
        )
        self._submit(self._write(number, proposal.verdict, proposal.attributes), proposal.verdict)
        return True

    def _write(self, number: int, verdict: ValidationResult, attributes: Json) -> TrialFolder:
        return write_trial(
            self.folder,
            number,
            verdict,
            self.overrides,
            self.provenance,
            attributes,
        )

    def _submit(self, folder: TrialFolder, verdict: ValidationResult) -> None:
        # again: writing the folder may have stalled until another controller took over
        self.lease.check()
        if self.server is not None:
            self.server.start()
        try:
            self.running[folder.number] = running = self.attempts.submit(folder, verdict)
        except GpuBusy as why:
            self.waiting[folder.number] = why
            raise
        logger.info("started as %s", running.job_id, extra=running.where)
