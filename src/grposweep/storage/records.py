"""The records in a sweep's files: typed, frozen, each with its reader and writer.

Readers tolerate damage: a missing or damaged file reads as None or as an empty record, a value of the wrong type as the
field's default, and unknown keys are ignored. ``grposweep doctor`` tells missing and damaged files apart.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from grposweep.files import append_line, as_number, read_json, read_lines, write_json
from grposweep.schema import Experiment
from grposweep.storage import paths
from grposweep.storage.exit_code import ExitCode


def text_or(value: Any, default: str = "") -> str:
    """Return a JSON string, or the default for any other value."""
    return value if isinstance(value, str) else default


def whole_or_none(value: Any) -> int | None:
    """Return a JSON integer; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def count_or_none(value: Any) -> int | None:
    """Return a finite JSON number as an integer; None for any other value."""
    number = finite_or_none(value)
    return None if number is None else int(number)


def finite_or_none(value: Any) -> float | None:
    """Return a finite JSON number; None for any other value."""
    number = as_number(value)
    return number if number is not None and math.isfinite(number) else None


class Failure(StrEnum):
    """The class of a failure: the root cause of a failed attempt, as result.json and reports name it."""

    GPU_MEMORY = "gpu_memory"
    HOST_MEMORY = "host_memory"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    NODE_FAILURE = "node_failure"
    COMMUNICATION = "communication"
    HANG = "hang"
    BAD_CONFIGURATION = "bad_configuration"
    REWARD = "reward"
    NON_FINITE = "non_finite"
    COLLAPSE = "collapse"
    KILLED = "killed"
    DISK_FULL = "disk_full"
    CRASH = "crash"  # anything else

    @property
    def label(self) -> str:
        """The class in words."""
        return _LABELS[self]


_LABELS = {
    Failure.GPU_MEMORY: "out of GPU memory",
    Failure.HOST_MEMORY: "out of host memory",
    Failure.PREEMPTED: "preempted",
    Failure.TIME_LIMIT: "time limit reached",
    Failure.NODE_FAILURE: "a node or GPU failed",
    Failure.COMMUNICATION: "the ranks lost touch",
    Failure.HANG: "no sign of life",
    Failure.BAD_CONFIGURATION: "a configuration that cannot work",
    Failure.REWARD: "a reward function failed",
    Failure.NON_FINITE: "the training diverged",
    Failure.COLLAPSE: "the policy collapsed",
    Failure.KILLED: "ended by hand",
    Failure.DISK_FULL: "the disk is full",
    Failure.CRASH: "crashed",
}


def failure_label(name: str) -> str:
    """Return the display name of a failure class; unknown names are returned unchanged."""
    return Failure(name).label if name in set(Failure) else name


class TrialStatus(StrEnum):
    """How the last attempt left a trial."""

    FINISHED = "finished"
    PRUNED = "pruned"  # stopped early, for good
    FAILED = "failed"
    RETRIED = "retried"  # it failed, and another attempt follows
    STOPPED = "stopped"  # it stopped when asked, and goes on with its sweep
    PAUSED = "paused"  # only in folders of older versions


@dataclass(frozen=True)
class FailureReport:
    """Why an attempt failed. ``name`` is the failure class; empty until a controller has classified it.

    ``step`` is what the controller does next (retry, heal, fail, ...); ``again``: the launcher took the attempt away;
    ``nodes``: where it ran.
    """

    kind: str = ""
    message: str = ""
    last_lines: tuple[str, ...] = ()
    name: str | None = None
    step: str | None = None
    again: bool | None = None
    nodes: str | None = None

    @classmethod
    def parse(cls, content: Any) -> Self | None:
        """Return the report in a result's ``failure``; None if there is none."""
        if not isinstance(content, Mapping):
            return None
        lines, again = content.get("last_lines"), content.get("again")
        name = content.get("class")
        return cls(
            kind=text_or(content.get("kind")),
            message=text_or(content.get("message")),
            last_lines=tuple(str(line) for line in lines) if isinstance(lines, list) else (),
            name=None if name is None else str(name),
            step=None if content.get("then") is None else str(content["then"]),
            again=again if isinstance(again, bool) else None,
            nodes=content.get("nodes") if isinstance(content.get("nodes"), str) else None,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as result.json names them, without those that are not known."""
        known = {"class": self.name, "then": self.step, "again": self.again, "nodes": self.nodes}
        head = {"kind": self.kind, "message": self.message, "last_lines": list(self.last_lines)}
        return {**head, **{name: value for name, value in known.items() if value is not None}}


@dataclass(frozen=True)
class TrialResult:
    """result.json: how the last attempt of a trial ended. An empty record stands for a missing file.

    ``step`` and ``total_steps`` are optimizer steps; ``seconds`` and ``gpu_seconds`` count all runs of the trial;
    ``model`` and ``checkpoint`` are paths in the trial's folder; ``guard`` names the guard that stopped the trial.
    """

    status: TrialStatus | None = None
    attempt: int | None = None
    objective: float | None = None
    objective_se: float | None = None
    start: float | None = None
    start_se: float | None = None
    further: Mapping[str, float | None] = field(default_factory=dict)
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

    @classmethod
    def read(cls, trial: Path) -> Self:
        """Return the result in a trial's folder."""
        content = read_json(trial / paths.RESULT) or {}
        status, further = content.get("status"), content.get("further")
        numbers = ("objective", "objective_se", "start", "start_se", "seconds", "gpu_seconds")
        counts = ("step", "total_steps", "completions", "attempt")
        texts = ("model", "checkpoint", "reason", "guard")
        known: dict[str, Any] = {name: as_number(content.get(name)) for name in numbers}
        known |= {name: count_or_none(content.get(name)) for name in counts}
        known |= {name: content[name] if isinstance(content.get(name), str) else None for name in texts}
        return cls(
            status=TrialStatus(status) if isinstance(status, str) and status in set(TrialStatus) else None,
            further={str(k): as_number(v) for k, v in further.items()} if isinstance(further, dict) else {},
            failure=FailureReport.parse(content.get("failure")),
            **known,
        )

    def write(self, trial: Path) -> None:
        """Replace result.json in a trial's folder: for each status the keys that the format names."""
        content = {**asdict(self), "further": dict(self.further)}
        content["failure"] = None if self.failure is None else self.failure.as_dict()
        if self.status is not TrialStatus.PRUNED:
            del content["reason"], content["guard"]
        if self.status in (TrialStatus.FAILED, TrialStatus.RETRIED):
            content = {name: content[name] for name in ("attempt", "status", "objective", "step", "failure")}
        write_json(trial / paths.RESULT, content)

    @property
    def value(self) -> float | None:
        """The study's value of the trial: the objective of a finished one; None otherwise, or if it is not finite."""
        return finite_or_none(self.objective) if self.status is TrialStatus.FINISHED else None

    def extra_values(self, names: Iterable[str]) -> tuple[float, ...] | None:
        """Return the study's values of these further objectives; None if one is missing or not finite."""
        values = [finite_or_none(self.further.get(name)) for name in names]
        found = tuple(value for value in values if value is not None)
        return found if len(found) == len(values) else None

    @property
    def awaits_classification(self) -> bool:
        """Whether the last attempt failed while no controller watched, so that its failure has no class yet."""
        return self.status is TrialStatus.FAILED and (self.failure is None or self.failure.name is None)

    @property
    def is_final(self) -> bool:
        """Whether the trial has ended for good."""
        over = (TrialStatus.FINISHED, TrialStatus.FAILED, TrialStatus.PRUNED)
        return self.status in over and not self.awaits_classification

    @property
    def is_recorded(self) -> bool:
        """Whether a controller has recorded this end, or has nothing to decide about it."""
        return self.is_final or self.status is TrialStatus.RETRIED

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of an attempt that left this result."""
        stopped = (TrialStatus.STOPPED, TrialStatus.PRUNED)
        return {TrialStatus.FINISHED: ExitCode.FINISHED, **dict.fromkeys(stopped, ExitCode.STOPPED)}.get(
            self.status or TrialStatus.FAILED, ExitCode.FAILED
        )


@dataclass(frozen=True)
class TrialOutcome:
    """What the study is told of a trial: its value (None: failed), the metric by optimizer step, whether it was pruned."""

    value: float | None
    evaluations: Mapping[int, float]
    is_pruned: bool


class AttemptEventKind(StrEnum):
    """What happened to an attempt."""

    INTENT = "intent"  # written before it is submitted
    STARTED = "started"
    HANGS = "hangs"  # written before it is cancelled for want of a heartbeat
    ENDED = "ended"


@dataclass(frozen=True)
class AttemptEvent:
    """One line of attempts.jsonl; only the controller writes them. Fields that an event does not have are None.

    ``time``: clock time in seconds. ``logs``: bytes of each log before the attempt. ``code``: exit code, negative for a
    signal. ``unseen``: no controller watched the end. ``seconds``: how long the attempt was observed.
    """

    attempt: int
    event: str
    time: float | None = None
    packages: Mapping[str, str] | None = None
    logs: Mapping[str, int] | None = None
    job_id: str | None = None
    code: int | None = None
    killed: bool | None = None
    unseen: bool | None = None
    seconds: float | None = None
    kind: str | None = None
    failure: str | None = None
    step: str | None = None
    again: bool | None = None
    nodes: str | None = None

    @classmethod
    def parse(cls, line: Mapping[str, Any]) -> Self:
        """Return the event of a line that has an integer ``attempt``."""
        texts = ("job_id", "kind", "failure", "step", "nodes")
        flags = ("killed", "unseen", "again")
        logs, packages = line.get("logs"), line.get("packages")
        known: dict[str, Any] = {name: line[name] if isinstance(line.get(name), str) else None for name in texts}
        known |= {name: bool(line[name]) if name in line else None for name in flags}
        return cls(
            attempt=line["attempt"],
            event=text_or(line.get("event")),
            time=as_number(line.get("time")),
            packages=packages if isinstance(packages, dict) else None,
            logs={k: v for k, v in logs.items() if isinstance(v, int)} if isinstance(logs, dict) else None,
            code=whole_or_none(line.get("code")),
            seconds=as_number(line.get("seconds")),
            **known,
        )

    def append(self, trial: Path) -> None:
        """Append the event to a trial's attempts.jsonl."""
        append_line(trial / paths.ATTEMPTS, {name: v for name, v in vars(self).items() if v is not None})


def read_attempts(trial: Path) -> list[AttemptEvent]:
    """Return the events of a trial's attempts, in order."""
    return [AttemptEvent.parse(line) for line in read_lines(trial / paths.ATTEMPTS, attempt=int)]


@dataclass(frozen=True)
class OpenAttempt:
    """An attempt whose end nothing has noted; without a ``job_id`` its controller died while submitting it."""

    number: int
    job_id: str | None
    time: float


class Action(StrEnum):
    """What a controller asks of an attempt at its next rollout boundary."""

    RUN = "run"
    PAUSE = "pause"
    PRUNE = "prune"
    STOP = "stop"


@dataclass(frozen=True)
class ControlRequest:
    """control.json: what a controller asks; ``guard`` names the guard that decided it. ``until_step``: from which step."""

    action: str = Action.RUN
    reason: str = ""
    guard: str = ""
    until_step: float | None = None

    @classmethod
    def read(cls, trial: Path) -> Self:
        """Return the current request; `pause` and `prune` stay in force across attempts."""
        content = read_json(trial / paths.CONTROL) or {}
        action = text_or(content.get("action")) or Action.RUN
        until = as_number(content.get("until_step"))
        return cls(action, text_or(content.get("reason")), text_or(content.get("guard")), until)

    def write(self, trial: Path) -> None:
        """Replace control.json in a trial's folder."""
        texts = {name: text for name, text in (("reason", self.reason), ("guard", self.guard)) if text}
        write_json(trial / paths.CONTROL, {"action": str(self.action), "until_step": self.until_step, **texts})

    @property
    def ends_trial(self) -> bool:
        """Whether the decision is about the trial, and not about one attempt only."""
        return self.action in (Action.PAUSE, Action.PRUNE)

    def stops_at(self, step: int) -> bool:
        """Whether to end at this step: every action but `run` from ``until_step`` on, `run` only up to it."""
        if self.action == Action.RUN:
            return self.until_step is not None and step >= self.until_step
        return self.until_step is None or step >= self.until_step


@dataclass(frozen=True)
class Heartbeat:
    """heartbeat: how far an attempt is, in optimizer steps; the counter moves while it lives. None: not known yet."""

    step: int | None = None
    total: int | None = None
    counter: int | None = None
    best: float | None = None

    @classmethod
    def read(cls, trial: Path) -> Self:
        """Return the last heartbeat in a trial's folder; empty before the first step."""
        content = read_json(trial / paths.HEARTBEAT) or {}
        step, total = (count_or_none(content.get(name)) for name in ("step", "total"))
        return cls(step, total, whole_or_none(content.get("counter")), as_number(content.get("best")))


@dataclass(frozen=True)
class MetricRow:
    """One line of metrics.jsonl; ``line`` holds all of it, metrics under the trainer's names.

    ``step``: optimizer steps. ``completions``: training completions generated so far. ``time``: clock time in seconds.
    """

    kind: str  # train or eval
    step: int
    completions: float | None
    attempt: int
    time: float | None
    line: Mapping[str, Any]

    @classmethod
    def parse(cls, line: Mapping[str, Any]) -> Self:
        """Return the row of a line that has an integer ``step``."""
        attempt = whole_or_none(line.get("attempt")) or 0
        completions, time = as_number(line.get("completions")), as_number(line.get("time"))
        return cls(text_or(line.get("kind")), line["step"], completions, attempt, time, line)

    def number(self, name: str) -> float | None:
        """Return a metric; None if it was not logged, or was NaN (null in the file)."""
        return as_number(self.line.get(name))


def read_metrics(trial: Path) -> Iterator[MetricRow]:
    """Yield the rows of a trial's metrics.jsonl, those of earlier attempts included."""
    return map(MetricRow.parse, read_lines(trial / paths.METRICS, step=int))


@dataclass(frozen=True)
class TrialRecord:
    """trial.json: the trial's number, point and attributes as the study holds them; and a hash of its ``config.yaml``."""

    point: dict[str, Any]
    attributes: dict[str, Any]
    config_sha256: str = ""
    number: int | None = None

    @classmethod
    def read(cls, trial: Path) -> Self | None:
        """Return the record; None if trial.json is missing or damaged."""
        content = read_json(trial / paths.TRIAL) or {}
        try:
            point, attributes = dict(content["point"]), dict(content["attributes"])
        except (ValueError, KeyError, TypeError):
            return None
        return cls(point, attributes, str(content.get("config_sha256", "")), whole_or_none(content.get("number")))

    def write(self, trial: Path) -> None:
        """Replace trial.json in a trial's folder."""
        content = {"number": self.number, "point": self.point, "attributes": self.attributes}
        write_json(trial / paths.TRIAL, {**content, "config_sha256": self.config_sha256})


@dataclass(frozen=True)
class OomFix:
    """healed.json: batch sizes for the attempts after one that ran out of GPU memory. The trial stays the same."""

    batch: Mapping[str, int]
    why: str
    attempt: int

    @classmethod
    def read(cls, trial: Path) -> Self | None:
        """Return the fix; None if there is none."""
        content = read_json(trial / paths.OOM_FIX)
        batch = content.get("batch") if content else None
        if content is None or not isinstance(batch, dict):
            return None
        return cls(batch, text_or(content.get("why")), whole_or_none(content.get("attempt")) or 0)

    def write(self, trial: Path) -> None:
        """Replace healed.json in a trial's folder."""
        write_json(trial / paths.OOM_FIX, {"batch": dict(self.batch), "why": self.why, "attempt": self.attempt})


def apply_oom_fix(trial: Path, experiment: Experiment) -> Experiment:
    """Return the experiment as the trial's next attempt runs it."""
    fix = OomFix.read(trial)
    return experiment if fix is None else replace(experiment, batch=replace(experiment.batch, **fix.batch))


@dataclass(frozen=True)
class SweepProgress:
    """outlook.json: what only the controller knows; None for what is unknown (older sweeps have no such file).

    ``target``: trials in all. ``at_once``: parallel trials. ``points`` and ``valid`` count combinations of the finite
    parameters. ``seeds`` and ``leaders`` are those of the last command. ``waiting``: why queued trials wait, by number.
    ``notice``: why nothing is started.
    """

    target: int | None = None
    at_once: int | None = None
    sampler: str = ""
    budget_gpu_hours: float | None = None
    points: int | None = None
    valid: int | None = None
    seeds: int | None = None
    leaders: int | None = None
    waiting: Mapping[str, str] = field(default_factory=dict)
    notice: str = ""

    @classmethod
    def read(cls, sweep: Path) -> Self:
        """Return what was written last; an empty record if that is nothing, or damaged."""
        content = read_json(sweep / paths.PROGRESS) or {}
        waiting, counts = content.get("waiting"), ("target", "at_once", "points", "valid", "seeds", "leaders")
        known = {name: whole_or_none(content.get(name)) for name in counts}
        return cls(
            sampler=text_or(content.get("sampler")),
            budget_gpu_hours=as_number(content.get("budget_gpu_hours")),
            waiting={str(number): str(why) for number, why in waiting.items()} if isinstance(waiting, dict) else {},
            notice=text_or(content.get("notice")),
            **{name: count if count is not None and count >= 0 else None for name, count in known.items()},
        )

    def write(self, sweep: Path) -> None:
        """Replace outlook.json in a sweep's folder."""
        write_json(sweep / paths.PROGRESS, asdict(self))


@dataclass(frozen=True)
class CallbackState:
    """callback.json: what our Callback inside another program reports; ``refused``: why it would not train."""

    attempt: int = 0
    step: int = 0
    total: int | None = None
    stopped: bool = False
    refused: str | None = None

    @classmethod
    def read(cls, trial: Path, attempt: int) -> Self | None:
        """Return the state of this attempt's Callback; None if it has not reported."""
        content = read_json(trial / paths.CALLBACK) or {}
        if content.get("attempt") != attempt:
            return None
        refused = content.get("refused")
        return cls(
            attempt=attempt,
            step=whole_or_none(content.get("step")) or 0,
            total=whole_or_none(content.get("total")),
            stopped=bool(content.get("stopped")),
            refused=None if refused is None else str(refused),
        )

    def write(self, trial: Path) -> None:
        """Replace callback.json in a trial's folder."""
        write_json(trial / paths.CALLBACK, {name: value for name, value in vars(self).items() if value is not None})
