"""From the evidence an attempt left to the root cause of its end; the cause counts, not the neighbours' echo of it."""

import signal
from collections.abc import Mapping
from typing import Any

from grposweep.errors import DISK_FULL
from grposweep.sweep.failures.evidence import Evidence
from grposweep.sweep.failures.kinds import Failure
from grposweep.sweep.failures.patterns import read_log

# Causes that outrank whatever ended the job afterwards: a rank that ran out of memory leaves the others waiting until
# the time limit, and a connection closed.
_ROOTS = (
    Failure.REWARD, Failure.GPU_MEMORY, Failure.HOST_MEMORY, Failure.DISK_FULL, Failure.COLLAPSE, Failure.NON_FINITE,
    Failure.BAD_CONFIGURATION,
)  # fmt: skip
# The launcher's word for an end (launch/states.py); ``hang`` is the sweep's own watchdog.
_STATES = {
    "out_of_memory": Failure.HOST_MEMORY, "node_fail": Failure.NODE_FAILURE, "preempted": Failure.PREEMPTED,
    "stopped": Failure.PREEMPTED, "timeout": Failure.TIME_LIMIT, "cancelled": Failure.KILLED, "hang": Failure.HANG,
}  # fmt: skip
_TAKEN = (Failure.NODE_FAILURE, Failure.PREEMPTED)
_BAD_INPUT = 2  # the exit code of an attempt that found its configuration wrong
_BY_HAND = {code for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for code in (-number, 128 + number)}


def classify(evidence: Evidence) -> Failure:
    """The class of a failed attempt."""
    said = {failure for log in (*evidence.logs.values(), [evidence.error]) for failure in read_log(log)}
    said |= {_STATES[evidence.state]} if evidence.state in _STATES else set()
    for failure in (*_ROOTS, *_TAKEN):
        if failure in said:
            return failure
    if evidence.code == DISK_FULL:
        return Failure.DISK_FULL
    if evidence.code == _BAD_INPUT:
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
    # Slurm forgot the job and no log says why: its node or its daemon died.
    return Failure.NODE_FAILURE if evidence.state == "vanished" else _crash(evidence)


def _crash(evidence: Evidence) -> Failure:
    """An error of no known kind; after a step without numbers, that is its cause."""
    trained = [line for line in evidence.metrics if line.get("kind") == "train"]
    return Failure.NON_FINITE if trained and _is_broken(trained[-1]) else Failure.CRASH


def _is_broken(line: Mapping[str, Any]) -> bool:
    """Whether a step's loss or gradient was not a number (metrics.jsonl holds null for that)."""
    return any(name in line and line[name] is None for name in ("loss", "grad_norm"))
