"""Run one attempt: read the trial folder, make the plan, train, write result.json, and return the
exit code.

No torch here: the trainer is imported only when it is needed, so the fake trainer starts in a
fraction of a second.
"""

import os
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import FrameType

from grporecipe.errors import ExitCode, ProgramFailed, UserError, refuse_mistakes
from grporecipe.redaction import redact
from grposweep.process import STOP_SIGNALS
from grposweep.process.variables import leave_job, refused_variables
from grposweep.schema.registries import (
    OWN_TRAINERS,
    TRAIN_PROGRAM,
    is_external,
    is_opaque,
    runs_trl,
)
from grposweep.storage import paths
from grposweep.storage.records import read_metrics
from grposweep.storage.results import (
    FailureReport,
    TrialResult,
    TrialStatus,
    end_run,
    run_cost,
    start_run,
)
from grposweep.train import process as watchdog
from grposweep.train.attempt import Attempt, Outcome, attempt_number, load_attempt
from grposweep.train.records import (
    check_objective,
    find_objective,
)
from grposweep.train.tracker import with_intervals

# of a traceback, kept in result.json
LAST_LINES = 15


def run_attempt(folder: Path) -> int:
    """Run one rank of an attempt to its end; the exit code. Failures are written down, not
    raised.
    """
    folder = folder.resolve()
    if not (folder / paths.CONFIG).is_file():
        print(
            f"{folder} is no trial folder: it has no {paths.CONFIG}. Name a folder under a "
            "sweep's trials/.",
            file=sys.stderr,
        )
        return ExitCode.BAD_INPUT
    # an earlier attempt's result is not this one's; one of this attempt is another rank's failure
    present = TrialResult.read(folder)
    if present.status is not None and present.attempt != attempt_number(folder):
        (folder / paths.RESULT).unlink(missing_ok=True)
    try:
        return _train(load_attempt(folder))
    except UserError as error:
        print(error, file=sys.stderr)
        _write_failure(folder, error.kind, str(error), [])
        return ExitCode.BAD_INPUT
    except ProgramFailed as error:
        print(error, file=sys.stderr)
        _write_failure(folder, error.kind, str(error), error.last_lines)
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - the last handler of a training's errors: they are written down
        text = traceback.format_exc()
        print(text, file=sys.stderr)
        _write_failure(
            folder, type(error).__name__, str(error), text.strip().splitlines()[-LAST_LINES:]
        )
        return ExitCode.FAILED


def _train(attempt: Attempt) -> int:
    """Train with the tracker open and signals turned into requests to stop; SIGUSR2 is a job's
    warning.
    """
    sys.path[:] = attempt.inputs.search_path(sys.path, attempt.experiment.task)
    # a warning at the import of TRL's asynchronous trainer
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    trains_ours = runs_trl(attempt.experiment.trainer)
    leave_job(os.environ, trains_ours)
    if trains_ours:
        refuse_mistakes(refused_variables(os.environ))
        if attempt.rank > 0:
            watchdog.reach_first_rank()
    trainer = OWN_TRAINERS.get(attempt.experiment.trainer.kind, TRAIN_PROGRAM)

    def on_terminate(_signal: int, _frame: FrameType | None) -> None:
        attempt.terminated = True

    requests = (*STOP_SIGNALS, signal.SIGUSR2)
    before = {number: signal.signal(number, on_terminate) for number in requests}
    # The start of this process and take_rank_place() have blocked them.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, requests)
    if attempt.is_main:
        start_run(
            attempt.folder, attempt.number, attempt.devices, watchdog.restarts(), watchdog.has_gpu()
        )
    try:
        # Before the watchdog's time begins: an import may take minutes. The controller ends an
        # attempt whose import hangs.
        train = trainer.load()
        watchdog.feed(attempt.experiment.cluster.stall_min)
        attempt.tracker.start(attempt.experiment, attempt.plan)
        if not is_external(attempt.experiment.trainer):
            watchdog.name_process(attempt.rank, os.getpid())
        outcome = train(attempt)
        # Rank 0 speaks for all: srun would take another rank's STOPPED for a failure, and end rank
        # 0 while it still writes.
        if not attempt.is_main:
            return ExitCode.FINISHED
        return _write_outcome(attempt, outcome)
    finally:
        watchdog.release()
        attempt.tracker.finish()
        if attempt.is_main:
            end_run(attempt.folder, attempt.number, attempt.seconds)
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_outcome(attempt: Attempt, outcome: Outcome) -> int:
    """result.json of an attempt that ended as it should; not over the failure of another node,
    which ended this one.
    """
    present = TrialResult.read(attempt.folder)
    if (
        outcome.stopped
        and present.attempt == attempt.number
        and present.status is TrialStatus.FAILED
    ):
        return ExitCode.FAILED
    search = attempt.experiment.search
    lines = attempt.metrics.lines()
    objective = find_objective(lines, search)
    if is_opaque(attempt.experiment.trainer):
        # its step 0 may be its first step
        objective = replace(objective, start=None, start_se=None)
    if not outcome.stopped:
        check_objective(lines, search.metric, objective)
    took = attempt.seconds
    seconds, gpu_seconds = (
        round(cost, 3) for cost in run_cost(attempt.folder, True, most=took, least=took)
    )
    status = TrialStatus.STOPPED if outcome.stopped else TrialStatus.FINISHED
    result = TrialResult(
        status=status,
        attempt=attempt.number,
        step=outcome.step,
        total_steps=attempt.total,
        completions=attempt.completions_at(outcome.step),
        # of all its runs
        seconds=seconds,
        gpu_seconds=gpu_seconds,
        model=outcome.model,
        checkpoint=outcome.checkpoint,
        **vars(objective),
    )
    attempt.beat(outcome.step, force=True)
    result.write(attempt.folder)
    shown = {
        name: getattr(result, name)
        for name in (*objective.as_dict(), "step", "completions", "seconds")
    }
    # of an enumeration W&B would show the name
    attempt.tracker.summarise({"status": str(result.status), **with_intervals(shown)})
    return result.exit_code


def _write_failure(folder: Path, kind: str, message: str, last_lines: list[str]) -> None:
    """result.json of a failure. The first rank to fail is the cause; the others only lose touch
    with it.
    """
    number = attempt_number(folder)
    present = TrialResult.read(folder)
    if present.attempt == number and present.status is TrialStatus.FAILED:
        return
    last = max((row.step for row in read_metrics(folder)), default=0)
    failure = FailureReport(kind, redact(message), tuple(map(redact, last_lines)))
    TrialResult(TrialStatus.FAILED, number, step=last, failure=failure).write(folder)
