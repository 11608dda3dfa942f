"""A trial as its folder tells it: what was asked, how far it is, what it is worth, what it cost; its curves when asked for."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from grposweep.files import objects, read_json, read_lines, yaml_loader
from grposweep.storage import paths, runs
from grposweep.storage.folders import TrialFolder
from grposweep.storage.records import (
    Action,
    AttemptEvent,
    FailureReport,
    Heartbeat,
    TrialResult,
    TrialStatus,
    finite_or_none,
)

SILENT_SECONDS = 600.0  # a running trial without a sign of life for so long costs nothing more until it shows one
Direction = Literal["maximize", "minimize"]

TAIL_BYTES = 64 * 1024  # of metrics.jsonl, which is enough for its last lines


class State(StrEnum):
    """Where a trial is; ``stopped`` goes on with its sweep's command, ``paused`` when the search wants it to."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        return self in (State.FINISHED, State.PRUNED, State.FAILED)


class CurvePoint(NamedTuple):
    """One measurement: after how many optimizer steps and generated completions, its value and standard error."""

    step: int
    completions: int
    value: float
    error: float | None
    time: float  # clock time in seconds


@dataclass(frozen=True)
class TrialView:
    """One trial at one moment. ``point`` maps dials to labels; ``attributes`` are what the search noted of it."""

    path: Path
    number: int
    experiment: str  # its id; the head of it where trial.json is missing
    point: Mapping[str, Any]
    attributes: Mapping[str, Any]
    state: State
    result: TrialResult  # empty before it has ended
    step: int  # optimizer steps behind it
    total: int  # and of how many; 0: unknown
    seconds: float  # that it ran, in all its attempts
    gpu_seconds: float  # times the devices it held; a rank without a GPU counts as one
    silent: float = 0.0  # seconds since a running one showed a sign of life

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.path.name

    @property
    def role(self) -> str:
        """``search``; ``confirm`` for a replicate of a leader on another seed; whatever else the search calls it."""
        return str(self.attributes.get("role") or "search")

    @property
    def objective(self) -> float | None:
        """What it is worth; None unless it has finished with a number."""
        return self.result.value

    def further(self, names: Iterable[str]) -> tuple[float, ...] | None:
        """What it is worth in these objectives beside the first; None where one is missing."""
        return self.result.extra_values(names)

    @property
    def error(self) -> float | None:
        """The objective's standard error, of its evaluations' prompts only."""
        return None if self.objective is None else finite_or_none(self.result.objective_se)

    @property
    def reached(self) -> float | None:
        """Where a trial that was stopped early had come to; None for any other."""
        return finite_or_none(self.result.objective) if self.state is State.PRUNED else None

    @property
    def start(self) -> float | None:
        """The metric before training."""
        return finite_or_none(self.result.start)

    @property
    def start_error(self) -> float | None:
        """And its standard error."""
        return finite_or_none(self.result.start_se)

    @property
    def gpu_hours(self) -> float:
        """What it has cost."""
        return self.gpu_seconds / 3600

    @property
    def failure(self) -> FailureReport:
        """Why a trial failed or was retried; an empty report for any other."""
        return self.result.failure or FailureReport()

    @property
    def failure_class(self) -> str:
        """Its failure's class, as `Failure` names them; empty where it has not failed."""
        return self.failure.name or "unclassified" if self.state is State.FAILED else ""

    @property
    def reason(self) -> str:
        """Why it failed or was stopped early, in words; empty for any other."""
        if self.state not in (State.FAILED, State.PRUNED):
            return ""
        return self.failure.message or self.result.reason or "no reason was written down"

    @cached_property
    def attempts(self) -> Sequence[AttemptEvent]:
        """The lines of attempts.jsonl: intents, starts and ends, in order."""
        return TrialFolder(self.path).attempts()

    @property
    def ended(self) -> float | None:
        """When its last attempt ended: clock time in seconds; None while one is under way."""
        ends = [run.end for run in runs.read_runs(self.path)]
        return ends[-1] if ends else None

    @cached_property
    def lines(self) -> Sequence[Mapping[str, Any]]:
        """All lines of metrics.jsonl, read when they are first asked for."""
        return list(read_lines(self.path / paths.METRICS, step=int))

    def curve(self, metric: str) -> list[CurvePoint]:
        """A metric over the trial's steps; without the moments at which it was no number."""
        return [point for line in self.lines if (point := _curve_point(line, metric)) is not None]

    def last_value(self, metric: str) -> float | None:
        """The latest value of a metric, from the end of the file alone."""
        values = (finite_or_none(line.get(metric)) for line in _last_lines(self.path / paths.METRICS))
        return next((value for value in values if value is not None), None)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Its resolved configuration; empty where config.yaml cannot be read."""
        import yaml

        try:
            found = yaml.load((self.path / paths.CONFIG).read_text(encoding="utf-8"), yaml_loader())
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def plan(self) -> Mapping[str, Any]:
        """What followed from its configuration: sizes, steps, evaluations."""
        return read_json(self.path / paths.PLAN) or {}

    @property
    def command(self) -> str:
        """What repeats it as a run of its own: command.sh without its comments; empty where there is none."""
        try:
            lines = (self.path / paths.COMMAND).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(line for line in lines if line and not line.startswith("#"))

    def last_log_lines(self, count: int = 12) -> list[str]:
        """The end of its first rank's log, or of its job's; secrets blacked out."""
        return TrialFolder(self.path).last_lines(count)


def read_trial(folder: TrialFolder, controller_lives: bool) -> TrialView:
    """One trial now; ``controller_lives``: whether attempts on this machine can still be under way."""
    record, result = folder.record, folder.result
    state = _state(folder, result, controller_lives)
    beat = Heartbeat() if state.is_over else folder.heartbeat()
    silent = _silence(folder.path) if state is State.RUNNING else 0.0
    seconds, gpu_seconds = runs.cost(folder.path, state is State.RUNNING and silent < SILENT_SECONDS)
    return TrialView(
        path=folder.path,
        number=folder.number,
        experiment=folder.head if record is None else str(record.attributes.get("experiment", folder.head)),
        point={} if record is None else record.point,
        attributes={} if record is None else record.attributes,
        state=state,
        result=result,
        step=(result.step if beat.step is None else beat.step) or 0,
        total=(result.total_steps if beat.total is None else beat.total) or 0,
        seconds=finite_or_none(seconds) or 0.0,
        gpu_seconds=finite_or_none(gpu_seconds) or 0.0,
        silent=silent,
    )


def _silence(folder: Path) -> float:
    """Seconds since the heartbeat moved, by this machine's clock; 0 before the first one."""
    try:
        return max(time.time() - (folder / paths.HEARTBEAT).stat().st_mtime, 0.0)
    except FileNotFoundError:
        return 0.0


def _state(folder: TrialFolder, result: TrialResult, controller_lives: bool) -> State:
    status = result.status
    if status in (TrialStatus.FINISHED, TrialStatus.PRUNED, TrialStatus.FAILED):
        return State(status.value)
    begun, told = folder.open_attempt(), result.attempt
    if begun is not None and (told is None or told < begun.number):
        if (begun.job_id or "local").startswith("local") and not controller_lives:
            return State.STOPPED  # it ended with its controller
        last = runs.read_runs(folder.path)[-1:]
        return State.RUNNING if last and last[0].end is None and last[0].attempt >= begun.number else State.QUEUED
    is_paused = status is TrialStatus.STOPPED and folder.control.action == Action.PAUSE
    if status is TrialStatus.PAUSED or is_paused:
        return State.PAUSED
    return State.STOPPED if status is TrialStatus.STOPPED else State.QUEUED


def _curve_point(line: Mapping[str, Any], metric: str) -> CurvePoint | None:
    value = finite_or_none(line.get(metric))
    if value is None or line["step"] < 0:
        return None
    error, when = finite_or_none(line.get(f"{metric}_se")), finite_or_none(line.get("time")) or 0.0
    return CurvePoint(line["step"], _whole(line.get("completions")), value, error, when)


def _last_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The whole lines at the end of a file of JSON lines, the last one first."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
            tail = file.read()
    except FileNotFoundError:
        return
    yield from objects(reversed(tail.split(b"\n")))


def _whole(value: Any) -> int:
    return int(finite_or_none(value) or 0)
