"""The end of a trial (``result.json``), its value for the study, and its cost (``runs.jsonl``).

Readers tolerate damage, as in ``records``.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from grporecipe.errors import ExitCode
from grporecipe.files import (
    Json,
    append_line,
    as_number,
    count_or_none,
    finite_or_none,
    read_lines,
    whole_or_none,
    write_json,
)
from grposweep.storage import paths
from grposweep.storage.records import Record, as_list, as_mapping, known, read_fields


class Failure(StrEnum):
    """The class of a failure: the root cause of a failed attempt, as in result.json and, by its
    ``label``, in reports.
    """

    label: str

    def __new__(cls, value: str, label: str = "") -> Self:
        """Keep the label with the value."""
        failure = str.__new__(cls, value)
        failure._value_ = value
        failure.label = label
        return failure

    GPU_MEMORY = "gpu_memory", "out of GPU memory"
    HOST_MEMORY = "host_memory", "out of host memory"
    PREEMPTED = "preempted", "preempted"
    TIME_LIMIT = "time_limit", "time limit reached"
    NODE_FAILURE = "node_failure", "a node or GPU failed"
    COMMUNICATION = "communication", "the ranks lost touch"
    HANG = "hang", "no sign of life"
    BAD_CONFIGURATION = "bad_configuration", "a configuration that cannot work"
    REWARD = "reward", "a reward function failed"
    NON_FINITE = "non_finite", "the training diverged"
    COLLAPSE = "collapse", "the policy collapsed"
    KILLED = "killed", "killed by a signal"
    DISK_FULL = "disk_full", "the disk is full"
    # any other failure
    CRASH = "crash", "crashed"


def failure_label(name: str) -> str:
    """Return the display name of a failure class; unknown names are returned unchanged."""
    return Failure(name).label if name in set(Failure) else name


def same_words(failure: str, message: str) -> str:
    """Return a failure's message without numbers, addresses, paths and values, so that equal
    failures compare equal.
    """
    first = next(iter(message.splitlines()), "")
    text = re.sub(r"(?<==)[\w.+-]+|0x[0-9a-fA-F]+|(?:/[\w.@+-]+)+|\d[\d.,:e+-]*", "#", first)
    return f"{failure}: {' '.join(text.split())[:200]}"


class TrialStatus(StrEnum):
    """The state in which the last attempt left a trial."""

    FINISHED = "finished"
    # stopped early, finally
    PRUNED = "pruned"
    FAILED = "failed"
    # failed, with another attempt to follow
    RETRIED = "retried"
    # stopped on request; continues with its sweep
    STOPPED = "stopped"


@dataclass(frozen=True)
class FailureReport:
    """Why an attempt failed. ``name`` is the failure class; empty until a controller has classified
    it.

    ``step`` is what the controller does next (retry, heal, fail, ...); ``again``: the launcher took
    the attempt away;
    ``nodes``: where it ran; ``needs_gib``: GPU memory that others held when the attempt needed it.
    """

    kind: str = ""
    message: str = ""
    last_lines: tuple[str, ...] = ()
    name: str | None = None
    step: str | None = None
    again: bool | None = None
    nodes: str | None = None
    needs_gib: float | None = None

    @classmethod
    def parse(cls, content: Any) -> Self | None:
        """Return the report in a result's ``failure``; None if there is none."""
        if not isinstance(content, Mapping):
            return None
        lines = tuple(map(str, as_list(content.get("last_lines"))))
        named = {**content, "name": content.get("class"), "step": content.get("then")}
        return cls(**read_fields(cls, named), last_lines=lines)

    def as_dict(self) -> Json:
        """Return the known fields under the names of result.json."""
        content = {
            "kind": self.kind,
            "message": self.message,
            "last_lines": list(self.last_lines),
            "class": self.name,
            "then": self.step,
            "again": self.again,
            "nodes": self.nodes,
            "needs_gib": self.needs_gib,
        }
        return known(content)


NO_NUMBER = FailureReport("no_number", "it finished without a number as its objective")


@dataclass(frozen=True)
class TrialResult(Record):
    """result.json: how the last attempt of a trial ended. An empty record stands for a missing
    file.

    ``step`` and ``total_steps`` are optimizer steps; ``seconds`` and ``gpu_seconds`` count all runs
    of the trial; ``model`` and ``checkpoint`` are paths in the trial's folder; ``guard`` names the
    guard that stopped the trial. Under ``search.at=best``, ``best_step`` is the optimizer step of
    the evaluation that the objective comes from, and ``optimism`` what was subtracted from it
    because it is a maximum (None: the noise is not known). ``evaluated`` are the optimizer steps of
    the evaluations whose mean is the objective, if that is known by prompt.
    """

    FILE = paths.RESULT

    status: TrialStatus | None = None
    attempt: int | None = None
    objective: float | None = None
    objective_se: float | None = None
    start: float | None = None
    start_se: float | None = None
    step: int | None = None
    total_steps: int | None = None
    completions: int | None = None
    seconds: float | None = None
    gpu_seconds: float | None = None
    failure: FailureReport | None = None
    model: str | None = None
    checkpoint: str | None = None
    reason: str | None = None
    guard: str | None = None
    best_step: int | None = None
    optimism: float | None = None
    evaluated: Sequence[int] = ()

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Return the result of a JSON object; values of the wrong type are left out."""
        content = as_mapping(content)
        fields = read_fields(cls, content)
        status = content.get("status")
        if isinstance(status, str) and status in set(TrialStatus):
            fields["status"] = TrialStatus(status)
        evaluated = tuple(filter(None, map(count_or_none, as_list(content.get("evaluated")))))
        failure = FailureReport.parse(content.get("failure"))
        return cls(**fields, failure=failure, evaluated=evaluated)

    def as_dict(self) -> Json:
        """Return all fields as JSON."""
        return {**asdict(self), "failure": self.failure and self.failure.as_dict()}

    def write(self, trial: Path) -> None:
        """Replace result.json in a trial's folder: for each status the keys that the format
        names.
        """
        content = self.as_dict()
        if self.status is not TrialStatus.PRUNED:
            del content["reason"], content["guard"]
        if self.best_step is None:
            del content["best_step"], content["optimism"]
        if self.status in (TrialStatus.FAILED, TrialStatus.RETRIED):
            content = {
                name: content[name]
                for name in ("attempt", "status", "objective", "step", "failure")
            }
        write_json(trial / paths.RESULT, content)

    @property
    def value(self) -> float | None:
        """Return the study's value of the trial: the objective if it finished and is finite,
        otherwise None.
        """
        return finite_or_none(self.objective) if self.status is TrialStatus.FINISHED else None

    @property
    def as_counted(self) -> Self:
        """Return the result as a sweep counts it: a trial that finished without a number has
        failed.
        """
        if self.status is not TrialStatus.FINISHED or self.value is not None:
            return self
        return replace(self, status=TrialStatus.FAILED, failure=NO_NUMBER)

    @property
    def awaits_classification(self) -> bool:
        """Return whether the last attempt failed while no controller was running, so the failure
        has no class yet.
        """
        return self.status is TrialStatus.FAILED and (
            self.failure is None or self.failure.name is None
        )

    @property
    def is_final(self) -> bool:
        """Return whether the trial has ended finally."""
        over = (TrialStatus.FINISHED, TrialStatus.FAILED, TrialStatus.PRUNED)
        return self.status in over and not self.awaits_classification

    @property
    def is_recorded(self) -> bool:
        """Return whether a controller has recorded this end, or need not decide about it."""
        return self.is_final or self.status is TrialStatus.RETRIED

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of an attempt that left this result."""
        if self.status in (TrialStatus.STOPPED, TrialStatus.PRUNED):
            return ExitCode.STOPPED
        return ExitCode.FINISHED if self.status is TrialStatus.FINISHED else ExitCode.FAILED


class TrialOutcome(NamedTuple):
    """A trial's values for the study: its value (None: failed), the metric by optimizer step, and
    whether it was pruned.
    """

    value: float | None
    evaluations: Mapping[int, float]
    is_pruned: bool


@dataclass(frozen=True)
class RunRecord:
    """A pair of lines in runs.jsonl. Clock times in seconds; without an ``end`` the run continues
    or died.

    ``restarts`` counts restarts of the job before this run.
    """

    attempt: int
    # a fraction if several trials share one
    devices: float
    restarts: int
    start: float
    end: float | None = None


def start_run(
    folder: Path, attempt: int, devices: float, restarts: int = 0, gpu: bool | None = None
) -> None:
    """Note that a run begins now, and whether it has a GPU if that is known.

    An earlier run without an end is closed at its last sign of life.
    """
    before = read_runs(folder)
    if before and before[-1].end is None:
        _note_run(folder, "end", before[-1].attempt, _last_sign(folder, before[-1]))
    more = {"devices": devices, "restarts": restarts, "gpu": gpu}
    _note_run(folder, "start", attempt, time.time(), **more)


def end_run(folder: Path, attempt: int, seconds: float | None = None) -> None:
    """Note that a run ends now, and its seconds by a monotonic clock, if known."""
    if seconds is not None:
        seconds = round(seconds, 3)
    _note_run(folder, "end", attempt, time.time(), seconds=seconds)


def _note_run(folder: Path, event: str, attempt: int, at: float, **more: float | None) -> None:
    line = {"event": event, "attempt": attempt, "time": at, **more}
    append_line(folder / paths.RUNS, known(line))


def read_runs(folder: Path) -> list[RunRecord]:
    """Return all runs of a trial, in order."""
    runs: list[RunRecord] = []
    for line in read_lines(folder / paths.RUNS, attempt=int, time=int | float):
        if line.get("event") == "start":
            devices = as_number(line.get("devices"))
            restarts = whole_or_none(line.get("restarts"))
            runs.append(RunRecord(line["attempt"], devices or 0, restarts or 0, line["time"]))
        elif runs and runs[-1].end is None:
            end = line["time"]
            seconds = as_number(line.get("seconds"))
            if seconds is not None:
                end = runs[-1].start + seconds
            runs[-1] = replace(runs[-1], end=end)
    return runs


def run_cost(
    folder: Path, is_running: bool = False, most: float = math.inf, least: float = 0.0
) -> tuple[float, float]:
    """Return the seconds that a trial ran in all its runs, and the device seconds.

    ``least`` and ``most`` bound the seconds of a run under way. They come from a monotonic clock,
    because the time of day can be changed.
    """
    seconds = 0.0
    device_seconds = 0.0
    for run in read_runs(folder):
        if run.end is not None:
            length = max(run.end - run.start, 0.0)
        elif is_running:
            length = min(max(time.time() - run.start, least), most)
        else:
            length = _length_of_dead(folder, run)
        seconds += length
        device_seconds += run.devices * length
    return seconds, device_seconds


def _length_of_dead(folder: Path, run: RunRecord) -> float:
    """Return the seconds of a run that died: until its last sign of life."""
    ends = read_lines(folder / paths.ATTEMPTS, attempt=int, seconds=int | float)
    # for which a controller did
    watched = (line["seconds"] for line in ends if line["attempt"] == run.attempt)
    return min(max(_last_sign(folder, run) - run.start, 0.0), max(watched, default=math.inf))


def _last_sign(folder: Path, run: RunRecord) -> float:
    """Return when an unfinished run last moved its heartbeat, or its start if it never did."""
    try:
        return max((folder / paths.HEARTBEAT).stat().st_mtime, run.start)
    except FileNotFoundError:
        return run.start
