"""Classify failed attempts and choose what comes next: evidence -> ``classify_failure`` ->
``next_step``.

The evidence is what an attempt left in its trial folder. The class is the root cause: what other
ranks report after it does not count. The next step is to retry (here, on other nodes, in smaller
micro-batches), to fail the trial, or to stop the sweep. Only reading the evidence touches files.

Patterns match what torch, NCCL, gloo, the kernel, vLLM, TRL and launchers print. A pattern begins
where its line begins, after prefixes such as ``[rank0]:``. So a warning or a completion that quotes
an error does not match. The texts' origins are in tests/sweep/failures/.
"""

import re
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path

from grporecipe.errors import ExitCode
from grporecipe.files import Config, open_file, read_lines, read_own_yaml
from grposweep.launchers import launcher_class
from grposweep.launchers.base import End, EndState
from grposweep.schema.registries import LAUNCHERS
from grposweep.storage import paths
from grposweep.storage.results import Failure, TrialResult

# What stands before a line: a progress bar that was not ended, a clock, the kernel's (dmesg -T),
# torchrun's and srun's ranks, vLLM's processes and errors.
_PREFIX = (
    r"^(?: *\d+%\|[^|]{0,40}\| \d+/\d+ \[[^\]]{0,60}\](?=\S))?"
    r"(?:\d\d:\d\d:\d\d[.,\d]* |\[\w{3} \w{3} +\d+ [\d:]{8} \d{4}\] "
    r"|\[(?:[\w.-]+ )?(?:rank)?\d+\]:? ?"
    r"|\(\S+ pid=\d+(?:, ip=[\d.]+)?\) "
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+\] |ERROR \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] "
    r"|\d+: )*"
)
# A line of training metrics: the training survived what stands above it.
_PROGRESS = r"^\{'(?:loss|eval_|train_)"
_EXCEPTION = (
    r"^[\w.]*(?:[Ee]rror|Exception|Interrupt|Timeout|Expired|Exit|BrokenProcessPool)\b(?::|$)"
)
# Exceptions that only pass on that another process has failed.
_PASSED_ON = (
    r"[\w.]*(?:EngineDeadError|CalledProcessError"
    r"|ChildFailedError)\b|RuntimeError: Engine core init"
)
_OTHER_CRASHES = (
    r"^(?:double free or corruption|free\(\): invalid|malloc\(\): |Fatal Python error"
    r"|Segmentation fault|Aborted)"
)
_BEGINS = ("Traceback (most recent call last)", "ray.exceptions.RayTaskError(")
_FRAME = r'^ +File "([^"]+)", line \d+(?:, in (\S+))?'
# Where frameworks check the user's configuration: files that do nothing else, and start-up
# functions.
_CONFIGURATION = r"(?:_config|training_args|configuration_\w+|hf_argparser)\.py$"
_LIBRARY = r"/(?:trl|transformers|accelerate|peft|vllm|deepspeed|verl)/"
_BEGINNING = r"__init__|__post_init__|_?(?:check|verify|validate|parse)\w*"
_REFUSAL = r"(?:ValueError|TypeError|KeyError|AttributeError|NotImplementedError)\b"
# An exception from the user's reward function is raised below TRL's _calculate_rewards, ms-swift's
# _score_completions, or in verl's reward managers.
_REWARDS = r":(?:_calculate_rewards|_score_completions)$|/reward_(?:manager|score)/"
_CAUSE = "The above exception was the direct cause of the following exception"
# by words that a reward may use as well
_ECHOES = (Failure.COMMUNICATION, Failure.BAD_CONFIGURATION, Failure.KILLED)

_ERROR = r"[\w.]*(?:Error|Exception): .*"
# characters of a line that are looked at, so that no pattern takes long
_LONGEST = 1000

# What a launcher or the sweep itself knows of an attempt's end.
FAILURE_OF_END: dict[str, Failure] = {
    EndState.OUT_OF_MEMORY: Failure.HOST_MEMORY,
    EndState.NODE_FAILED: Failure.NODE_FAILURE,
    EndState.PREEMPTED: Failure.PREEMPTED,
    EndState.STOPPED: Failure.PREEMPTED,
    EndState.TIMEOUT: Failure.TIME_LIMIT,
    EndState.CANCELLED: Failure.KILLED,
    EndState.HANG: Failure.HANG,
    EndState.FORK_SERVER_DIED: Failure.KILLED,
}


@cache
def _all_patterns(kinds: tuple[str, ...]) -> tuple[tuple[Failure, re.Pattern[str]], ...]:
    """Return the launchers' patterns before the general ones."""
    patterns = []
    for kind in kinds:
        for state, text in launcher_class(kind).log_patterns:
            patterns.append((FAILURE_OF_END[state], re.compile(text)))
    for name, texts in read_own_yaml(__file__, "failures.yaml").items():
        for text in texts:
            patterns.append((Failure(name), re.compile(text.replace("<error>", _ERROR))))
    return tuple(patterns)


def read_log(lines: Iterable[str]) -> Iterator[Failure]:
    """Return the failure classes in a log's lines after its last sign of progress; CRASH for an
    unknown error.

    An error of no known kind that says that a known one was its cause only passes that one on; and
    what ends in errors after a watchdog has spoken is what hung.
    """
    frames: list[tuple[str, str]] = []
    is_named, wraps, hung = False, False, False
    for line in _since_progress(lines):
        if line.startswith(_BEGINS):
            frames = []
        elif frame := re.match(_FRAME, line):
            frames.append((frame[1], frame[2] or ""))
        elif line.startswith(_CAUSE):
            wraps = is_named
        elif (failure := _read_line(line, frames)) is not None:
            if not (failure is Failure.CRASH and (wraps or hung)):
                yield failure
            is_named, wraps, hung = (
                failure is not Failure.CRASH,
                False,
                hung or failure is Failure.HANG,
            )


def _since_progress(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for raw in lines:
        line = re.sub(_PREFIX, "", raw[:_LONGEST].rstrip())
        if re.match(_PROGRESS, line):
            kept.clear()
        else:
            kept.append(line)
    return kept


def _read_line(line: str, frames: Sequence[tuple[str, str]]) -> Failure | None:
    """``frames`` are the files and functions of the traceback above, the place where it was raised
    last.
    """
    known = next(
        (failure for failure, pattern in _all_patterns(tuple(LAUNCHERS)) if pattern.match(line)),
        None,
    )
    is_exception = re.match(_EXCEPTION, line) is not None
    if (
        is_exception
        and known in (None, *_ECHOES)
        and any(re.search(_REWARDS, f"{file}:{name}") for file, name in frames)
    ):
        return Failure.REWARD
    if known is not None:
        return known
    if is_exception and not re.match(_PASSED_ON, line):
        file, function = frames[-1] if frames else ("", "")
        is_early = (
            re.match(_REFUSAL, line)
            and re.search(_LIBRARY, file)
            and re.fullmatch(_BEGINNING, function)
        )
        if re.search(_CONFIGURATION, file) or is_early:
            return Failure.BAD_CONFIGURATION
        return Failure.CRASH
    return Failure.CRASH if re.match(_OTHER_CRASHES, line) else None


# of each log: tracebacks of several threads fit
TAIL_BYTES = 65_536
# last lines of metrics.jsonl
METRICS = 5


@dataclass(frozen=True)
class Evidence:
    """The evidence about an attempt's end."""

    # its exit code; negative: the signal that ended it
    code: int = 0
    # what the launcher knows beyond the exit code (an `EndState`)
    state: str = ""
    # ``kind: message`` of the failure in result.json
    error: str = ""
    # whether the heartbeat still moved shortly before the end; None: unknown
    progress: bool | None = None
    # The last lines of every rank's log, the job's and, if readable, the kernel's; and those of
    # metrics.jsonl.
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    metrics: Sequence[Config] = ()


def log_sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each log before an attempt starts, because these belong to earlier
    attempts.
    """
    return {path.name: path.stat().st_size for path in sorted((folder / paths.LOGS).glob("*.log"))}


def read_evidence(
    folder: Path, end: End, progress: bool | None = None, before: Mapping[str, int] | None = None
) -> Evidence:
    """Read the evidence in a trial folder; ``before`` are the ``log_sizes`` at the attempt's
    start.
    """
    sizes = before or {}
    logs = {
        path.name: _tail(path, sizes.get(path.name, 0))
        for path in sorted((folder / paths.LOGS).glob("*.log"))
    }
    metrics = tuple(deque(read_lines(folder / paths.METRICS), maxlen=METRICS))
    failure = TrialResult.read(folder).failure
    error = "" if failure is None else f"{failure.kind}: {failure.message}"
    return Evidence(end.code, end.kind, error, progress, logs, metrics)


def _tail(path: Path, start: int) -> list[str]:
    """Return the last complete lines of a file from byte ``start`` on."""
    try:
        opened = open_file(path)
    except (FileNotFoundError, ValueError):
        return []
    with opened as file:
        size = file.seek(0, 2)
        if start > size:
            # it was cut: all of it is new
            start = 0
        begin = max(start, size - TAIL_BYTES)
        file.seek(begin)
        text = file.read().decode("utf-8", errors="replace")
    # progress bars return to the line's start
    lines = re.split("[\r\n]", text)
    return lines[1:] if begin > start else lines


# Causes that outrank what ended the job afterwards: a rank that ran out of memory leaves the others
# waiting until the time limit, and a connection closed.
_ROOTS = (
    Failure.REWARD,
    Failure.GPU_MEMORY,
    Failure.HOST_MEMORY,
    Failure.DISK_FULL,
    Failure.COLLAPSE,
    Failure.NON_FINITE,
    Failure.BAD_CONFIGURATION,
)
_TAKEN = (Failure.NODE_FAILURE, Failure.PREEMPTED)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
_KILLED = {-number for number in _ENDING} | {128 + number for number in _ENDING}


def classify_failure(evidence: Evidence) -> Failure:
    """Return the class of a failed attempt."""
    named = set[Failure]().union(*map(read_log, (*evidence.logs.values(), [evidence.error])))
    if evidence.state in FAILURE_OF_END:
        named.add(FAILURE_OF_END[evidence.state])
    for failure in (*_ROOTS, *_TAKEN):
        if failure in named:
            return failure
    if evidence.code == ExitCode.DISK_FULL:
        return Failure.DISK_FULL
    if evidence.code == ExitCode.BAD_INPUT:
        return Failure.BAD_CONFIGURATION
    if Failure.TIME_LIMIT in named and evidence.progress is not False:
        return Failure.TIME_LIMIT
    if Failure.CRASH in named:
        return _crash(evidence)
    return _quiet_end(evidence, named)


def _quiet_end(evidence: Evidence, named: set[Failure]) -> Failure:
    """Return the class of an end that no rank's exception explains."""
    # nothing moved any more
    if named & {Failure.TIME_LIMIT, Failure.HANG}:
        return Failure.COMMUNICATION if Failure.COMMUNICATION in named else Failure.HANG
    if Failure.KILLED in named or evidence.code in _KILLED:
        return Failure.KILLED
    if Failure.COMMUNICATION in named:
        return Failure.COMMUNICATION
    # The scheduler forgot the job and no log says why: its node or its daemon died.
    return Failure.NODE_FAILURE if evidence.state == EndState.VANISHED else _crash(evidence)


def _crash(evidence: Evidence) -> Failure:
    """Return the class of an unknown error: divergence if a step before it was NaN, otherwise a
    crash.
    """
    last: Config = next(
        (line for line in reversed(evidence.metrics) if line.get("kind") == "train"), {}
    )
    # NaN is null in metrics.jsonl
    is_broken = any(name in last and last[name] is None for name in ("loss", "grad_norm"))
    return Failure.NON_FINITE if is_broken else Failure.CRASH


# trials in a row that fail in the same words, before the sweep stops
EPIDEMIC = 3


class Step(StrEnum):
    """What the controller does next with a trial whose attempt failed."""

    RETRY = "retry"
    # on other nodes
    ELSEWHERE = "elsewhere"
    # with the changes of ``halve_batch``, if there are any; otherwise FAIL, with a recorded memory
    # constraint
    HEAL = "heal"
    FAIL = "fail"
    # the trial stays unfinished, and nothing new is submitted
    STOP = "stop"


@dataclass(frozen=True)
class Policy:
    """``retries`` counts further attempts of one trial after failures of this class; None:
    cluster.requeue_limit.
    """

    retries: int | None
    again: Step
    then: Step
    # Whether the same words in several trials mean that the next trial will fail as well: not where
    # the point decides.
    spreads: bool = False


@cache
def policies() -> dict[str, Policy]:
    """Return the policies by the name of a failure's class, from ``failure_steps.yaml``."""
    rows = read_own_yaml(__file__, "failure_steps.yaml")
    return {
        name: Policy(**{**row, "again": Step(row["again"]), "then": Step(row["then"])})
        for name, row in rows.items()
    }


def next_step(past: Sequence[Failure], requeue_limit: int) -> Step:
    """Return the next step after a trial's failures so far, the newest last.

    ``requeue_limit`` bounds the failures of all classes together, so that no mixture of them
    continues forever.
    """
    newest = past[-1]
    policy = policies()[newest]
    limit = requeue_limit if policy.retries is None else policy.retries
    if past.count(newest) <= limit and len(past) <= max(requeue_limit, limit):
        return policy.again
    return policy.then


def is_epidemic(endings: Sequence[tuple[Failure, str] | None]) -> bool:
    """Return whether the last ``EPIDEMIC`` ended trials failed with the same message.

    ``endings`` are in order of time: None for a trial that finished, else its class and
    ``same_words``.
    """
    last = endings[-EPIDEMIC:]
    failed = [ending for ending in last if ending is not None and policies()[ending[0]].spreads]
    return len(failed) == EPIDEMIC and len(set(failed)) == 1
