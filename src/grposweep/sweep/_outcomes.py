"""Record how attempts end, in the trial's folder first and then in the study, and decide what
follows.
"""

import logging
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from optuna.trial import TrialState

from grporecipe.errors import ExitCode, UnknownMetricError
from grporecipe.files import Json
from grposweep.launchers.base import End, EndState, Launcher
from grposweep.schema import Search
from grposweep.schema.registries import is_external
from grposweep.schema.running import KEEPS_MODEL
from grposweep.search.study import SweepStudy
from grposweep.search.validity import ValidationResult, Validator
from grposweep.storage import paths
from grposweep.storage.checkpoints import find_resume
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.records import Action, AttemptEventKind, ControlRequest, OomFix
from grposweep.storage.results import Failure, FailureReport, TrialResult, TrialStatus, same_words
from grposweep.sweep._attempts import RunningAttempt
from grposweep.sweep._failures import (
    Evidence,
    Step,
    classify_failure,
    is_epidemic,
    next_step,
    read_evidence,
)
from grposweep.sweep._log import about
from grposweep.sweep._neighbours import Shortage, find_shortage, find_shortage_of_engine
from grposweep.sweep._oom import halve_batch, record_oom, record_peak

logger = logging.getLogger(__name__)
# times the GPU memory that was too little is waited for next
MORE = 1.1
# steps after which a trial continues, now or later
UNFINISHED = (Step.RETRY, Step.ELSEWHERE, Step.HEAL, Step.STOP)


def decide_retry(
    running: RunningAttempt, verdict: ValidationResult, end: End, launcher: Launcher
) -> tuple[Failure, FailureReport]:
    """Classify a failed attempt and choose: retry, heal or fail.

    With ``again`` the launcher took the attempt away, or others held the GPU memory that it needed.
    This is not a failure of the trial. The launcher counts the former. Before an attempt after the
    latter it waits if it sees the memory; else their number is limited. The report holds all of the
    decision: a controller that dies before it notes the end leaves it to the next one.
    """
    folder = running.folder
    events = folder.attempts()
    intents = [event for event in events if event.event == AttemptEventKind.INTENT]
    logs, attempt = None, 0
    if intents:
        logs, attempt = intents[-1].logs, intents[-1].attempt
    evidence = read_evidence(folder.path, end, not running.hangs, logs)
    failure = classify_failure(evidence)
    report = _report(folder, end)
    reopened = max(
        (n for n, event in enumerate(events) if event.event == AttemptEventKind.REOPENED), default=0
    )
    recent = events[reopened:]
    past = [Failure(event.failure) for event in recent if event.failure and not event.again]
    shortage = None
    if failure in (Failure.GPU_MEMORY, Failure.BAD_CONFIGURATION):
        shortage = _find_shortage(running, verdict, evidence, launcher, failure)
        failure = Failure.GPU_MEMORY if shortage is not None else failure
    if failure is Failure.GPU_MEMORY:
        message = report.message.partition("\n")[0]
        if shortage is not None and shortage.text:
            message = shortage.text
        report = replace(report, message=message)
    if end.again:
        step = Step.RETRY
    elif shortage is not None and shortage.is_others:
        taken = sum(bool(event.again) for event in recent)
        step = Step.FAIL
        if launcher.gpus.sees_memory:
            step = Step.RETRY
        elif taken < verdict.experiment.cluster.requeue_limit:
            step = Step.ELSEWHERE
        before = max((event.needs_gib or 0.0 for event in recent), default=0.0)
        # it did not suffice
        needs = max(shortage.needs_gib or 0.0, MORE * before)
        report = replace(report, needs_gib=round(needs, 3), again=step is not Step.FAIL)
    elif failure in (Failure.PREEMPTED, Failure.TIME_LIMIT) or end.kind == EndState.CANCELLED:
        # The launcher has given it up, or the user has cancelled its job.
        step = Step.FAIL
    else:
        step = next_step([*past, failure], verdict.experiment.cluster.requeue_limit)
        if step is Step.HEAL and not _apply_heal(folder, verdict, failure, attempt):
            step = Step.FAIL
    return failure, replace(
        report,
        name=failure.value,
        step=step.value,
        again=end.again or report.again,
        nodes=end.nodes or report.nodes,
    )


def _find_shortage(
    running: RunningAttempt,
    verdict: ValidationResult,
    evidence: Evidence,
    launcher: Launcher,
    failure: Failure,
) -> Shortage | None:
    """Return what is known of an attempt that ran out of GPU memory: by its messages, else by its
    GPUs as they are now.

    That vLLM does not start is a mistake of the configuration, unless others hold the memory.
    """
    # Processes of an external program end with it, those of an earlier controller's trials with
    # that controller.
    is_program = is_external(verdict.experiment.trainer)
    owns = partial(launcher.gpus.owns, ended=running.end is None or is_program)
    texts = [evidence.error]
    for log in evidence.logs.values():
        texts += reversed(log)
    read_now = partial(launcher.gpus.memory, running.job_id)
    if failure is not Failure.GPU_MEMORY:
        return find_shortage_of_engine(texts, read_now, owns)
    return find_shortage(texts, read_now, owns, is_alone=not is_program)


def _report(folder: TrialFolder, end: End) -> FailureReport:
    """Return the failure that the attempt reported, or the message of its launcher and its last
    lines.

    What the launcher knows counts more: a rank whose neighbour ran out of memory only sees a
    connection close.
    """
    result = folder.result
    if (
        result.failure
        and result.status in (TrialStatus.FAILED, TrialStatus.RETRIED)
        and not end.kind
    ):
        return result.failure
    by_itself = f"signal {-end.code}" if end.code < 0 else f"exit code {end.code}"
    kind = end.kind or by_itself
    message = end.message or f"the attempt ended with {kind}"
    if end.code == -signal.SIGKILL and not end.message:
        message = (
            "killed (signal 9), usually by the kernel when memory ran out (dmesg names "
            "it), or by kill -9"
        )
    return FailureReport(kind, message, tuple(folder.last_lines()))


def _apply_heal(
    folder: TrialFolder, verdict: ValidationResult, failure: Failure, attempt: int
) -> bool:
    """Write smaller micro-batches for further attempts; False if there are none that change no
    number.
    """
    changes = halve_batch(verdict.setting, verdict.experiment.rules.ignore)
    before = OomFix.find(folder.path)
    # A fix for this very attempt was written by a controller that died at it.
    is_healed = before is not None and before.attempt != attempt
    if changes is None or is_healed or is_external(verdict.experiment.trainer):
        return False
    OomFix(changes, failure.label, attempt).write(folder.path)
    sizes = ", ".join(f"{name}={size}" for name, size in changes.items())
    logger.info("healed: further attempts use %s", sizes, extra=about(folder.number, attempt))
    return True


def describe_resume(folder: TrialFolder, verdict: ValidationResult) -> str:
    """Return where a trial's next attempt begins. Only an external program knows its own
    checkpoints.
    """
    trainer = verdict.experiment.trainer
    checkpoints = paths.MODEL if is_external(trainer) else paths.CHECKPOINTS
    step, why = find_resume(folder.path / checkpoints, verdict.experiment.cluster.processes)
    if step:
        reason = f", because {why}" if why else ""
        return f"it continues from its last checkpoint (step {step}){reason}"
    # it may resume from files that we do not know
    if is_external(trainer) or trainer.fork:
        if why:
            return f"it continues from an earlier checkpoint or starts over, because {why}"
        return "it continues from its last checkpoint"
    return f"it starts over, because {why}" if why else "it has no checkpoint yet and starts over"


def write_pruned(folder: TrialFolder, request: ControlRequest) -> None:
    """Write result.json of a trial that was stopped early: its last attempt's results, and the
    reason.

    A collapsed training is ``pruned`` as well, not ``failed``: its attempt ended in order, and only
    pruned trials teach a sampler which points are bad. Its failure class says what it was.
    """
    result = folder.result
    if result.status not in (TrialStatus.STOPPED, TrialStatus.PRUNED):
        attempt = max((event.attempt for event in folder.attempts()), default=0)
        result = TrialResult(attempt=attempt, step=folder.heartbeat().step or 0)
    failure: FailureReport | None = None
    if request.guard:
        name = Failure.NON_FINITE if request.guard == "non_finite" else Failure.COLLAPSE
        failure = FailureReport(name.value, request.reason, name=name.value)
    guard = request.guard or None
    replace(
        result, status=TrialStatus.PRUNED, reason=request.reason, guard=guard, failure=failure
    ).write(folder.path)


@dataclass
class OutcomeRecorder:
    """Records the ends of one sweep's attempts; what it knows beyond the files lasts as long as
    this controller.
    """

    folder: SweepFolder
    study: SweepStudy
    validator: Validator
    search: Search
    # which knows the sweep's processes
    launcher: Launcher
    # trainer.keep
    keep: str = "best"
    # of trials, in time
    endings: list[tuple[Failure, str] | None] = field(default_factory=list)
    # lines for the display
    news: list[str] = field(default_factory=list)
    # trials whose models were wanted at the last look
    _kept: set[int] = field(default_factory=set)
    # why nothing more is to be started, though there is more to do
    halted: str = ""

    def record(self, running: RunningAttempt, end: End) -> None:
        """Record how an attempt ended, and whether its trial has ended."""
        where = running.where
        if running.hangs:
            end = replace(
                end,
                kind=EndState.HANG,
                message="it showed no sign of life for cluster.stall_min minutes",
                again=False,
            )
        # it was asked to
        stopped = end.code == ExitCode.STOPPED and not end.kind
        if stopped and running.request.action == Action.PRUNE:
            write_pruned(running.folder, running.request)
            self._note_end(running, end)
            logger.info("stopped early: %s", running.request.reason, extra=where)
            self._close(running.folder)
        elif stopped or running.killed:
            self._note_end(running, end)
            how = "stopped at a rollout boundary" if stopped else "ended by this controller"
            logger.info(how, extra=where)
        elif end.code == ExitCode.FINISHED and (value := running.folder.result.value) is not None:
            self._note_end(running, end)
            logger.info("finished: %s %.6g", self.search.metric, value, extra=where)
            record_peak(
                self.folder, running.folder, self.validator.validate(running.point, running.seed)
            )
            self._close(running.folder)
        else:
            self._record_failure(running, end)

    def prune(self, folder: TrialFolder, request: ControlRequest) -> None:
        """End a paused or unfinished trial finally. Its last attempt may have died before it read
        the request.
        """
        write_pruned(folder, request)
        folder.close_attempt()
        logger.info("stopped early: %s", request.reason, extra=about(folder.number))
        self._close(folder)

    def report_to_study(self, folder: TrialFolder) -> None:
        """Tell the study how a trial ended, and delete what a loser kept."""
        outcome = folder.outcome(self.search.metric)
        if outcome.is_pruned:
            self._delete_resumable([folder])
        self.study.tell(folder.number, *outcome)
        if outcome.value is not None and self.keep in KEEPS_MODEL:
            self._delete_models([folder.number])

    def keep_best(self) -> None:
        """Delete what ``trainer.keep`` does not keep of finished trials, those of earlier
        controllers too.
        """
        started = self.study.started
        finished = [trial.number for trial in started if trial.state == TrialState.COMPLETE]
        pruned = [trial for trial in started if trial.state == TrialState.PRUNED]
        self._delete_resumable(self._trial(trial.number) for trial in pruned)
        if self.keep in KEEPS_MODEL:
            self._delete_models(finished)

    def _record_failure(self, running: RunningAttempt, end: End) -> None:
        verdict = self.validator.validate(running.point, running.seed)
        folder = running.folder
        failure, report = decide_retry(running, verdict, end, self.launcher)
        continues = report.step in UNFINISHED
        if not continues and failure is Failure.GPU_MEMORY and report.needs_gib is None:
            # before the result says that the trial is over
            record_oom(self.folder, folder, verdict)
        status = TrialStatus.RETRIED if continues else TrialStatus.FAILED
        before = folder.result
        step = before.step if before.step is not None else folder.heartbeat().step or 0
        # a restarted job has used several
        number = running.attempt if before.attempt is None else before.attempt
        TrialResult(status, number, step=step, failure=report).write(folder.path)
        if report.step == Step.STOP:
            self._halt(f"trial {folder.number}: {failure.label}")
        elif continues:
            how = "it continues in smaller micro-batches"
            if report.step != Step.HEAL:
                how = describe_resume(folder, verdict)
            if report.needs_gib is not None and report.step == Step.RETRY:
                how += " when it fits"
            what = report.message if failure is Failure.GPU_MEMORY else failure.label
            self.news.append(f"trial {folder.number}: {what}; {how}")
        self._note_end(running, end, report)
        text = "failed (%s): %s; next: %s"
        logger.warning(text, failure.label, report.message, report.step, extra=running.where)
        if not continues:
            self._close(folder, failure, report.message, report.kind)

    def _note_end(
        self, running: RunningAttempt, end: End, report: FailureReport | None = None
    ) -> None:
        content: Json = {"kind": end.kind, "again": end.again} if end.kind else {}
        if report is not None:
            content |= {
                "failure": report.name,
                "step": report.step,
                "nodes": end.nodes,
                "needs_gib": report.needs_gib,
            }
            if report.again:
                content["again"] = True
        seconds = round(time.monotonic() - running.since, 3)
        running.folder.note_attempt(
            running.attempt,
            AttemptEventKind.ENDED,
            code=end.code,
            killed=running.killed,
            seconds=seconds,
            **content,
        )

    def _close(
        self, folder: TrialFolder, failure: Failure | None = None, message: str = "", kind: str = ""
    ) -> None:
        """End a trial finally. The same failure in several trials in a row also stops the sweep."""
        self.report_to_study(folder)
        ending = None if failure is None else (failure, same_words(failure, message))
        self.endings.append(ending)
        if is_epidemic(self.endings):
            self._halt(f"the last trials all failed alike ({message})")
        elif kind == UnknownMetricError.kind and self.study.best is None:
            self._halt(
                f"trial {folder.number} does not report search.metric={self.search.metric}, and no "
                "other trial has (with another metric the sweep needs another name)"
            )

    def _halt(self, reason: str) -> None:
        """Start no further trial. Running trials continue."""
        if not self.halted:
            logger.error("the sweep stops itself: %s", reason)
        self.halted = self.halted or reason

    def _delete_resumable(self, pruned: Iterable[TrialFolder]) -> None:
        """Delete the checkpoints of trials that were stopped early."""
        if self.keep in (*KEEPS_MODEL, "none"):
            for folder in pruned:
                folder.delete_checkpoints()
                # where another program keeps its checkpoints
                folder.delete_model()

    def _delete_models(self, finished: Iterable[int]) -> None:
        """Delete the models and last checkpoints of these and earlier trials, except those to keep
        now.
        """
        kept = set(map(self._model_of, self.study.kept))
        for number in {*finished, *self._kept} - kept:
            self._trial(number).delete_model()
            if self.keep == "best_checkpoint":
                self._trial(number).delete_resumable()
        self._kept = kept

    def _model_of(self, number: int) -> int:
        """Return the trial, or its first repeat that has a model if its own was deleted before
        seeds were set.
        """
        replicates = (
            number,
            *(t.number for t in self.study.started if t.user_attrs.get("of") == number),
        )
        return next(
            (one for one in replicates if (self._trial(one).path / paths.MODEL).is_dir()), number
        )

    def _trial(self, number: int) -> TrialFolder:
        return self.folder.of(self.study.trials[number])
