"""Classify failed attempts and choose what comes next: evidence -> ``classify`` -> ``next_step``.

The evidence is what an attempt left in its trial folder. The class is the root cause: what other ranks report after it
does not count. The next step is to retry (here, on other nodes, in smaller micro-batches), to fail the trial, or to stop
the sweep. Only reading the evidence touches files.
"""

import re
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

from grposweep.errors import ExitCode
from grposweep.files import read_lines
from grposweep.launchers.base import End, EndState
from grposweep.storage import paths
from grposweep.storage.results import Failure, TrialResult
from grposweep.sweep.failure_patterns import FAILURE_OF_END, read_log

TAIL_BYTES = 65_536  # of each log: tracebacks of several threads fit
METRICS = 5  # last lines of metrics.jsonl


@dataclass(frozen=True)
class Evidence:
    """Everything that speaks about an attempt's end."""

    code: int = 0
    """Its exit code; negative: the signal that ended it."""
    state: str = ""
    """What the launcher knows beyond the exit code (an `EndState`)."""
    error: str = ""
    """``kind: message`` of the failure in result.json."""
    progress: bool | None = None
    """Whether the heartbeat still moved shortly before the end; None: unknown."""
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The last lines of every rank's log, the job's and, where it can be had, the kernel's."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """The last lines of metrics.jsonl."""


def log_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each log before an attempt starts: what stands there already is an earlier attempt's."""
    return {path.name: path.stat().st_size for path in sorted((folder / paths.LOGS).glob("*.log"))}


def read_evidence(
    folder: Path, end: End, progress: bool | None = None, before: Mapping[str, int] | None = None
) -> Evidence:
    """The evidence in a trial folder; ``before`` are the ``log_sizes`` from when the attempt began."""
    sizes = before or {}
    logs = {path.name: _tail(path, sizes.get(path.name, 0)) for path in sorted((folder / paths.LOGS).glob("*.log"))}
    metrics = tuple(deque(read_lines(folder / paths.METRICS), maxlen=METRICS))
    return Evidence(end.code, end.kind, _error(folder), progress, logs, metrics)


def _error(folder: Path) -> str:
    """Return the error text in result.json, or an empty string."""
    failure = TrialResult.read(folder).failure
    return "" if failure is None else f"{failure.kind}: {failure.message}"


def _tail(path: Path, start: int) -> list[str]:
    """The last lines of a file from byte ``start`` on, the first of them whole where the file is longer than a tail."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = start if start <= size else 0  # it was cut: all of it is new
        begin = max(start, size - TAIL_BYTES)
        file.seek(begin)
        text = file.read().decode("utf-8", errors="replace")
    lines = chain.from_iterable(
        line.split("\r") for line in text.split("\n")
    )  # progress bars return to the line's start
    return list(lines)[1 if begin > start else 0 :]


# Causes that outrank whatever ended the job afterwards: a rank that ran out of memory leaves the others waiting until
# the time limit, and a connection closed.
_ROOTS = (
    Failure.REWARD, Failure.GPU_MEMORY, Failure.HOST_MEMORY, Failure.DISK_FULL, Failure.COLLAPSE, Failure.NON_FINITE,
    Failure.BAD_CONFIGURATION,
)  # fmt: skip
_TAKEN = (Failure.NODE_FAILURE, Failure.PREEMPTED)
_BY_HAND = {code for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for code in (-number, 128 + number)}


def classify(evidence: Evidence) -> Failure:
    """The class of a failed attempt."""
    said = {failure for log in (*evidence.logs.values(), [evidence.error]) for failure in read_log(log)}
    said |= {FAILURE_OF_END[evidence.state]} if evidence.state in FAILURE_OF_END else set()
    for failure in (*_ROOTS, *_TAKEN):
        if failure in said:
            return failure
    if evidence.code == ExitCode.DISK_FULL:
        return Failure.DISK_FULL
    if evidence.code == ExitCode.BAD_INPUT:
        return Failure.BAD_CONFIGURATION
    if Failure.TIME_LIMIT in said and evidence.progress is not False:
        return Failure.TIME_LIMIT
    if Failure.CRASH in said:
        return _crash(evidence)
    return _quiet_end(evidence, said)


def _quiet_end(evidence: Evidence, said: set[Failure]) -> Failure:
    """The class of an end that no rank's exception explains."""
    if said & {Failure.TIME_LIMIT, Failure.HANG}:  # nothing moved any more
        return Failure.COMMUNICATION if Failure.COMMUNICATION in said else Failure.HANG
    if Failure.KILLED in said or evidence.code in _BY_HAND:
        return Failure.KILLED
    if Failure.COMMUNICATION in said:
        return Failure.COMMUNICATION
    # The scheduler forgot the job and no log says why: its node or its daemon died.
    return Failure.NODE_FAILURE if evidence.state == EndState.VANISHED else _crash(evidence)


def _crash(evidence: Evidence) -> Failure:
    """An error of no known kind; after a step without numbers, that is its cause."""
    trained = [line for line in evidence.metrics if line.get("kind") == "train"]
    return Failure.NON_FINITE if trained and _is_broken(trained[-1]) else Failure.CRASH


def _is_broken(line: Mapping[str, Any]) -> bool:
    """Whether a step's loss or gradient was not a number (metrics.jsonl holds null for that)."""
    return any(name in line and line[name] is None for name in ("loss", "grad_norm"))


EPIDEMIC = 3  # trials in a row that fail in the same words, before the sweep stops


class Step(StrEnum):
    """What the controller does next with a trial whose attempt failed."""

    RETRY = "retry"
    ELSEWHERE = "elsewhere"  # on other nodes
    HEAL = "heal"  # with what ``heal`` changes, where it can; otherwise FAIL, and a recorded memory constraint
    FAIL = "fail"
    STOP = "stop"  # the trial stays unfinished, and nothing new is submitted


@dataclass(frozen=True)
class Policy:
    """``retries`` counts further attempts of one trial after failures of this class; None: cluster.requeue_limit."""

    retries: int | None
    again: Step
    then: Step = Step.FAIL
    spreads: bool = False
    """Whether the same words in several trials mean that the next trial will fail as well: not where the point decides."""


POLICIES = {
    Failure.PREEMPTED: Policy(None, Step.RETRY),
    Failure.TIME_LIMIT: Policy(None, Step.RETRY),
    Failure.NODE_FAILURE: Policy(3, Step.ELSEWHERE),
    Failure.COMMUNICATION: Policy(2, Step.ELSEWHERE, spreads=True),
    Failure.HANG: Policy(1, Step.ELSEWHERE, spreads=True),
    Failure.GPU_MEMORY: Policy(1, Step.HEAL),
    Failure.HOST_MEMORY: Policy(1, Step.ELSEWHERE, spreads=True),  # a shared node's other jobs may have been the cause
    Failure.DISK_FULL: Policy(0, Step.STOP, Step.STOP),
    Failure.KILLED: Policy(0, Step.FAIL),  # the user ended it
    Failure.BAD_CONFIGURATION: Policy(0, Step.FAIL, spreads=True),
    Failure.REWARD: Policy(0, Step.FAIL, spreads=True),
    Failure.CRASH: Policy(0, Step.FAIL, spreads=True),
    Failure.NON_FINITE: Policy(0, Step.FAIL),
    Failure.COLLAPSE: Policy(0, Step.FAIL),
}


def next_step(past: Sequence[Failure], requeue_limit: int) -> Step:
    """The step after a trial's failures so far, the newest last.

    ``requeue_limit`` bounds the failures of all classes together, so that no mixture of them goes on for ever.
    """
    newest = past[-1]
    policy = POLICIES[newest]
    limit = requeue_limit if policy.retries is None else policy.retries
    if past.count(newest) <= limit and len(past) <= max(requeue_limit, limit):
        return policy.again
    return policy.then


def same_words(failure: Failure, message: str) -> str:
    """What two failures have in common where they are the same one: no numbers, addresses, paths or quotes."""
    text = re.sub(r"0x[0-9a-fA-F]+|(?:/[\w.@+-]+)+|\d[\d.,:e+-]*", "#", message.splitlines()[0] if message else "")
    return f"{failure}: {' '.join(text.split())[:200]}"


def is_epidemic(endings: Sequence[tuple[Failure, str] | None], count: int = EPIDEMIC) -> bool:
    """Whether the last ``count`` trials to end failed in the same words.

    ``endings`` are in order of time: None for a trial that finished, else its class and ``same_words``.
    """
    last = endings[-count:]
    failed = [ending for ending in last if ending is not None and POLICIES[ending[0]].spreads]
    return len(failed) == count and len(set(failed)) == 1
