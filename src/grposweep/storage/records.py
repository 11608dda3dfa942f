"""The records in a sweep's files: typed, frozen, each with its reader and writer.

Readers tolerate damage: a missing or damaged file reads as None or as an empty record, a value of
the wrong type as the field's default, and unknown keys are ignored. ``damage`` tells missing and
damaged files apart.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from grporecipe.files import (
    Config,
    Json,
    append_line,
    as_number,
    count_or_none,
    read_json,
    read_lines,
    text_or,
    whole_or_none,
    write_json,
)
from grposweep.storage import paths

if TYPE_CHECKING:
    from grposweep.schema import Experiment

_READ: dict[Any, Callable[[Any], Any]] = {
    int: count_or_none,
    int | None: count_or_none,
    float: as_number,
    float | None: as_number,
    str: lambda value: text_or(value) or None,
    str | None: lambda value: _typed(value, str),
    **dict.fromkeys((bool, bool | None), lambda value: _typed(value, bool)),
    **dict.fromkeys((Json, Config), lambda value: typed_values(value, object)),
    **dict.fromkeys(
        (Mapping[str, str], Mapping[str, str] | None), lambda value: typed_values(value, str)
    ),
    **dict.fromkeys(
        (Mapping[str, int], Mapping[str, int] | None), lambda value: typed_values(value, int)
    ),
}


def _typed(value: Any, kind: type) -> Any:
    """Return a value of a type; None for any other value."""
    return value if isinstance(value, kind) else None


def typed_values(value: Any, kind: type) -> Json | None:
    """Return a JSON object with those of its values that have a type; None for any other value."""
    if not isinstance(value, dict):
        return None
    return {name: inner for name, inner in value.items() if isinstance(inner, kind)}


@cache
def _readers(record: Any) -> dict[str, Callable[[Any], Any]]:
    return {field.name: _READ[field.type] for field in fields(record) if field.type in _READ}


def read_fields(record: Any, content: Config) -> Json:
    """Return the plain fields of a record class that a JSON object holds with their type; the
    others keep their defaults.
    """
    return known({name: read(content.get(name)) for name, read in _readers(record).items()})


def known(values: Config) -> Json:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def as_mapping(value: Any) -> Config:
    """Return a JSON object as it is, and an empty one instead of anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a JSON list as it is, and an empty one instead of anything else."""
    return value if isinstance(value, list) else []


def objects_in(value: Any) -> list[Config]:
    """Return the objects of a JSON list; none of anything else."""
    return [each for each in as_list(value) if isinstance(each, dict)]


@dataclass(frozen=True)
class Record:
    """A file of one JSON object. None and empty texts are not written."""

    FILE: ClassVar[str]

    @classmethod
    def parse(cls, content: Any) -> Self | None:
        """Return the record in a JSON object; None without a field that has no default."""
        try:
            return cls(**read_fields(cls, as_mapping(content)))
        except TypeError:
            return None

    @classmethod
    def find(cls, folder: Path) -> Self | None:
        """Return the record in a folder; None without a field that has no default."""
        return cls.parse(read_json(folder / cls.FILE))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the record in a folder; an empty one if it is missing or damaged."""
        return cls.find(folder) or cls()

    def write(self, folder: Path) -> None:
        """Replace the record in a folder."""
        values = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        write_json(folder / self.FILE, values)


class AttemptEventKind(StrEnum):
    """What happened to an attempt."""

    # written before it is submitted
    INTENT = "intent"
    STARTED = "started"
    # written before it is cancelled because its heartbeat stopped
    HANGS = "hangs"
    ENDED = "ended"
    # the failed trial is tried again, and earlier failures no longer count
    REOPENED = "reopened"


@dataclass(frozen=True)
class AttemptEvent:
    """One line of attempts.jsonl; only the controller writes them. Fields that an event does not
    have are None.

    ``time``: clock time in seconds. ``logs``: bytes of each log before the attempt. ``code``: exit
    code, negative for a
    signal. ``unseen``: no controller was running at its end. ``seconds``: how long the attempt was
    observed. ``needs_gib``: GPU memory that others held when it needed it.
    """

    attempt: int
    event: str = ""
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
    needs_gib: float | None = None

    @classmethod
    def parse(cls, line: Config) -> Self:
        """Return the event of a line that has an integer ``attempt``."""
        fields = read_fields(cls, line)
        fields |= {"attempt": line["attempt"], "code": whole_or_none(line.get("code"))}
        return cls(**fields)

    def append(self, trial: Path) -> None:
        """Append the event to a trial's attempts.jsonl."""
        append_line(trial / paths.ATTEMPTS, known(vars(self)))


def read_attempts(trial: Path) -> list[AttemptEvent]:
    """Return the events of a trial's attempts, in order."""
    return list(map(AttemptEvent.parse, read_lines(trial / paths.ATTEMPTS, attempt=int)))


@dataclass(frozen=True)
class OpenAttempt:
    """An attempt without a noted end. Without a ``job_id``, its controller died while submitting
    it.
    """

    number: int
    job_id: str | None
    time: float


class Action(StrEnum):
    """What a controller requests of an attempt at its next rollout boundary."""

    RUN = "run"
    PAUSE = "pause"
    PRUNE = "prune"
    STOP = "stop"


@dataclass(frozen=True)
class ControlRequest(Record):
    """control.json: a controller's request. ``guard`` names the guard that decided; ``until_step``
    is its first step.
    """

    FILE = paths.CONTROL

    action: str = Action.RUN
    reason: str = ""
    guard: str = ""
    until_step: float | None = None

    @property
    def ends_trial(self) -> bool:
        """Return whether the request ends the trial, not just this attempt."""
        return self.action in (Action.PAUSE, Action.PRUNE)

    def stops_at(self, step: int) -> bool:
        """Return whether to end at this step: every action but `run` from ``until_step`` on, `run`
        only up to it.
        """
        if self.action == Action.RUN:
            return self.until_step is not None and step >= self.until_step
        return self.until_step is None or step >= self.until_step


@dataclass(frozen=True)
class Heartbeat(Record):
    """heartbeat: progress of an attempt in optimizer steps; the counter moves while it lives. None:
    not known yet.
    """

    FILE = paths.HEARTBEAT

    step: int | None = None
    total: int | None = None
    counter: int | None = None
    best: float | None = None


# fields of a line that are no metrics
PLACE = ("attempt", "step", "completions", "kind", "time")


@dataclass(frozen=True)
class MetricRow:
    """One line of metrics.jsonl; ``line`` holds all of it, metrics under the trainer's names."""

    # train or eval
    kind: str
    # optimizer steps
    step: int
    line: Config

    @classmethod
    def parse(cls, line: Config) -> Self:
        """Return the row of a line that has an integer ``step``."""
        return cls(text_or(line.get("kind")), line["step"], line)

    def number(self, name: str) -> float | None:
        """Return a metric; None if it was not logged, or was NaN (null in the file)."""
        return as_number(self.line.get(name))

    def metrics(self) -> dict[str, int | float]:
        """Return the logged numbers by name, without the fields that say where the line belongs."""
        return {
            name: value
            for name, value in self.line.items()
            if name not in PLACE and isinstance(value, int | float) and not isinstance(value, bool)
        }


def read_metrics(trial: Path) -> Iterator[MetricRow]:
    """Yield the rows of a trial's metrics.jsonl, those of earlier attempts included."""
    return map(MetricRow.parse, read_lines(trial / paths.METRICS, step=int))


# the key of provenance.json that holds a trial's record once more
COPY = "trial"


def read_provenance(trial: Path) -> Json:
    """Return the provenance of a trial; empty if it is missing or damaged."""
    return read_json(trial / paths.PROVENANCE) or {}


@dataclass(frozen=True)
class TrialRecord(Record):
    """trial.json: the trial's number, point and attributes as the study holds them; and a hash of
    its ``config.yaml``.

    provenance.json holds it once more, because the study is built from it alone.
    """

    FILE = paths.TRIAL

    point: Json
    attributes: Json
    config_sha256: str = ""
    number: int | None = None

    @classmethod
    def read_copy(cls, trial: Path) -> Self | None:
        """Return the copy in provenance.json; None if it is missing or damaged."""
        return cls.parse(read_provenance(trial).get(COPY))


@dataclass(frozen=True)
class OomFix(Record):
    """healed.json: batch sizes for attempts after one that ran out of GPU memory. The trial's
    identity stays.
    """

    FILE = paths.OOM_FIX

    batch: Mapping[str, int]
    why: str = ""
    attempt: int = 0


def apply_oom_fix(trial: Path, experiment: "Experiment") -> "Experiment":
    """Return the experiment with the trial's out-of-memory fix applied."""
    fix = OomFix.find(trial)
    if fix is None:
        return experiment
    return replace(experiment, batch=replace(experiment.batch, **fix.batch))


@dataclass(frozen=True)
class SweepProgress(Record):
    """outlook.json: progress that only the controller knows; None for unknown.

    ``target``: trials in all. ``at_once``: parallel trials. ``points`` and ``valid`` count
    combinations of the finite
    parameters. ``budget_hours``: GPU hours that may be spent. ``seeds`` and ``leaders`` are those
    of the last command. ``waiting``: why queued trials wait, by number.
    ``notice``: why nothing is started. ``rests``: the effort is spent, and paused trials stay as
    they are. ``share``: of what
    finishing every trial costs, the part that may be spent.
    """

    FILE = paths.PROGRESS

    target: int | None = None
    at_once: int | None = None
    sampler: str = ""
    budget_hours: float | None = None
    points: int | None = None
    valid: int | None = None
    seeds: int | None = None
    leaders: int | None = None
    waiting: Mapping[str, str] = field(default_factory=dict)
    notice: str = ""
    rests: bool = False
    share: float = 1.0

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Return the progress in a JSON object; counts are not negative."""
        values = read_fields(cls, as_mapping(content))
        for name, value in [*values.items()]:
            if isinstance(value, int) and value < 0:
                del values[name]
        return cls(**values)


@dataclass(frozen=True)
class CallbackState(Record):
    """callback.json: what the grposweep Callback in another program reports.

    ``ended``: its training came to its end or stop. ``left``: after a stop its process has done all
    that it has to, and the rest of its command must not run. ``refused``: why it would not train.
    """

    FILE = paths.CALLBACK

    attempt: int
    step: int = 0
    total: int | None = None
    stopped: bool = False
    ended: bool | None = None
    refused: str | None = None
    left: bool = False
