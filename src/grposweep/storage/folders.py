"""Folders of a sweep: which file is where, and which sweep a name refers to. The layout is a
contract.
"""

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grporecipe.errors import UserError
from grporecipe.files import (
    Json,
    count_or_none,
    delete_folder,
    objects,
    parse_yaml,
    read_json,
    read_tail,
    read_text,
    write_text,
)
from grporecipe.redaction import redact
from grporecipe.terminal import first_of
from grposweep.storage import paths
from grposweep.storage.records import (
    Action,
    AttemptEvent,
    AttemptEventKind,
    ControlRequest,
    Heartbeat,
    OpenAttempt,
    TrialRecord,
    as_mapping,
    read_attempts,
    read_metrics,
    typed_values,
)
from grposweep.storage.results import (
    FailureReport,
    TrialOutcome,
    TrialResult,
    TrialStatus,
    read_runs,
)

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

# so many last lines of these bytes are shown
LOG_LINES, LOG_TAIL_BYTES = 12, 1 << 16
# of metrics.jsonl: enough for its last lines
METRICS_TAIL_BYTES = 1 << 16
# in the user's cache: the folders that hold sweeps
INDEX = "outputs.txt"
# levels of folders below the one that is searched
SEARCH_DEPTH = 4
# Ends the name of a sweep of a single trial, after the name of the trial's sweep.
RERUN = re.compile(r"-(\d+)-(rerun|continue)-[0-9a-f]{6}$")


@dataclass(frozen=True)
class Folder:
    """A folder with files of the names in `grposweep.storage.paths`."""

    path: Path

    def has(self, name: str) -> bool:
        """Return whether the folder has this file."""
        return (self.path / name).exists()


@dataclass(frozen=True)
class TrialFolder(Folder):
    """One trial's folder: ``trials/0007-3f9a1c``, its number and the head of its experiment id."""

    @property
    def number(self) -> int:
        """The trial's number in the study."""
        return int(self.path.name.split("-")[0])

    @property
    def head(self) -> str:
        """The head of its experiment id."""
        return self.path.name.split("-", 1)[1]

    @property
    def result(self) -> TrialResult:
        """Return how the last attempt ended; an empty record if there is no result."""
        return TrialResult.read(self.path).as_counted

    @property
    def is_done(self) -> bool:
        """Return whether the trial has ended finally. A stopped trial continues when its sweep
        does.
        """
        return self.result.is_final

    @property
    def failure(self) -> FailureReport:
        """Return why the trial failed or was retried; an empty report otherwise."""
        return self.result.failure or FailureReport()

    @property
    def record(self) -> TrialRecord | None:
        """Return the trial's record for the study, or its copy if trial.json is missing, damaged or
        of another trial.
        """
        for read in (TrialRecord.find, TrialRecord.read_copy):
            record = read(self.path)
            if record is not None and str(record.attributes.get("experiment"))[:6] == self.head:
                return record
        return None

    def outcome(self, metric: str) -> TrialOutcome:
        """Return the values of an ended trial for the study."""
        result = self.result
        return TrialOutcome(
            result.value, self.evaluations(metric), result.status is TrialStatus.PRUNED
        )

    def attempts(self) -> list[AttemptEvent]:
        """Return the events of attempts.jsonl: intents, starts and ends, in order."""
        return read_attempts(self.path)

    def next_attempt(self) -> int:
        """Return the number of the next attempt, from 0; a job that was restarted has used
        several.
        """
        used = [event.attempt for event in self.attempts()]
        used += [run.attempt for run in read_runs(self.path)]
        return max(used, default=-1) + 1

    def open_attempt(self) -> OpenAttempt | None:
        """Return the last attempt if its end has not been noted."""
        attempt: OpenAttempt | None = None
        for event in self.attempts():
            match event.event:
                case AttemptEventKind.INTENT | AttemptEventKind.STARTED:
                    attempt = OpenAttempt(event.attempt, event.job_id, event.time or 0.0)
                case AttemptEventKind.ENDED:
                    attempt = None
        return attempt

    def nodes_to_avoid(self) -> str:
        """Return the nodes of the last attempt if its failure should be retried on other nodes;
        empty otherwise.
        """
        for event in reversed(self.attempts()):
            if event.event == AttemptEventKind.ENDED:
                return event.nodes or "" if event.step == "elsewhere" else ""
        return ""

    def note_attempt(self, attempt: int, event: AttemptEventKind, **content: Any) -> None:
        """Append one event of an attempt."""
        AttemptEvent(attempt, event, **content).append(self.path)

    def hung(self, attempt: int) -> bool:
        """Return whether a controller found this attempt hanging, without a heartbeat."""
        return any(
            event.attempt == attempt and event.event == AttemptEventKind.HANGS
            for event in self.attempts()
        )

    def close_attempt(self) -> None:
        """Note the end of an attempt that left its result while no controller watched, or that died
        while writing it.

        No attempt of the trial may be running.
        """
        begun = self.open_attempt()
        result = self.result
        if begun is None:
            return
        has_result = result.attempt is not None and result.attempt >= begun.number
        if not (has_result or result.is_final or self.control.ends_trial):
            return
        failure = self.failure
        self.note_attempt(
            begun.number,
            AttemptEventKind.ENDED,
            killed=False,
            unseen=True,
            step=failure.step,
            again=failure.again,
            nodes=failure.nodes,
            needs_gib=failure.needs_gib,
            code=result.exit_code,
            failure=failure.name,
        )

    def evaluations(self, metric: str) -> dict[int, float]:
        """Return the metric at each evaluation, by optimizer step."""
        values = {}
        for row in read_metrics(self.path):
            value = row.number(metric)
            if row.kind == "eval" and row.step >= 0 and value is not None:
                values[row.step] = value
        return values

    def heartbeat(self) -> Heartbeat:
        """Return the progress of the attempt; empty before its first step."""
        last = Heartbeat.read(self.path)
        # The last line of metrics is a step ahead of the heartbeat if the attempt was killed: that
        # is written once a second.
        tail = read_tail(self.path / paths.METRICS, METRICS_TAIL_BYTES).split(b"\n")
        for line in objects(reversed(tail)):
            step = count_or_none(line.get("step"))
            if step:
                return replace(last, step=max(step, last.step or 0))
        return last

    @property
    def control(self) -> ControlRequest:
        """Return the request in control.json. `pause` and `prune` stay in force across attempts."""
        return ControlRequest.read(self.path)

    def request(self, action: Action, reason: str = "", guard: str = "") -> ControlRequest:
        """Ask the attempt to do this at its next rollout boundary. The request is on disk when this
        returns.
        """
        request = ControlRequest(action, reason, guard)
        request.write(self.path)
        return request

    def last_lines(self) -> list[str]:
        """Return the end of the first rank's log, or of the job's log if no rank wrote one; secrets
        are redacted.
        """
        for name in ("rank-0.log", "job.log"):
            text = read_tail(self.path / paths.LOGS / name, LOG_TAIL_BYTES).decode(
                "utf-8", "replace"
            )
            if text.strip():
                return redact("\n".join(text.splitlines()[-LOG_LINES:])).split("\n")
        return []

    def delete_model(self) -> None:
        """Delete the trained model."""
        delete_folder(self.path / paths.MODEL, self.sweep.path)

    def delete_checkpoints(self) -> None:
        """Delete the checkpoints of a trial that will not continue."""
        delete_folder(self.path / paths.CHECKPOINTS, self.sweep.path)

    def delete_resumable(self) -> None:
        """Delete the checkpoints of a finished trial; logged completions, which are in the same
        folder, stay.
        """
        for path in (self.path / paths.CHECKPOINTS).glob("checkpoint-*"):
            delete_folder(path, self.sweep.path)

    @property
    def sweep(self) -> "SweepFolder":
        """Its sweep, whose folder trials/ is in."""
        return SweepFolder(self.path.parent.parent)


@dataclass(frozen=True)
class SweepFolder(Folder):
    """One sweep's folder under outputs/."""

    @property
    def lease(self) -> Path:
        """The controller's lease."""
        return self.path / paths.LEASE

    def settings(self) -> Json | None:
        """Return the content of ``sweep.yaml``; None for a folder that holds no sweep.

        Raises UserError if it is damaged, because the sweep cannot be identified without it.
        """
        path = self.path / paths.SWEEP
        try:
            content = parse_yaml(read_text(path))
        except FileNotFoundError:
            return None
        except ValueError as error:
            why = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path} is damaged ({why}). Restore it, or give the sweep another name=..."
            ) from error
        return dict(content) if isinstance(content, dict) else {}

    @property
    def is_fake(self) -> bool:
        """Return whether the fake trainer makes its results."""
        return self._kind("trainer") == "fake"

    @property
    def is_only_written(self) -> bool:
        """Return whether a dry run wrote it, and nothing has trained."""
        is_dry = self._kind("cluster") == "dry_run"
        return is_dry and not any(trial.attempts() for trial in self.trials())

    def _kind(self, section: str) -> str:
        try:
            baseline = as_mapping(as_mapping(self.settings()).get("baseline"))
        except UserError:
            # damaged: what opens it says so
            return ""
        return str(as_mapping(baseline.get(section)).get("kind"))

    def prepared(self) -> Json:
        """Return the counts of preparation by model and task; empty before preparation."""
        content = read_json(self.path / paths.PREPARED) or {}
        return typed_values(content.get("entries"), dict) or {}

    def trial(self, number: int, experiment: str) -> TrialFolder:
        """Return the folder of a trial, which need not exist."""
        return TrialFolder(self.path / paths.TRIALS / f"{number:04d}-{experiment[:6]}")

    def of(self, trial: "FrozenTrial") -> TrialFolder:
        """Return the folder of a trial of the study."""
        return self.trial(trial.number, trial.user_attrs["experiment"])

    def trials(self) -> Iterator[TrialFolder]:
        """Yield the trial folders that exist, by number."""
        for path in sorted((self.path / paths.TRIALS).glob("[0-9]*-*")):
            if path.name.split("-")[0].isdecimal() and path.is_dir():
                yield TrialFolder(path)


def find_sweep(named: str | None, outputs: Path) -> SweepFolder:
    """Return a sweep's folder by path, or by name under ``outputs``; the newest one there if
    ``named`` is None.

    Raises UserError if there is no such sweep.
    """
    if named is None:
        return newest_sweep(outputs, written=True)
    for path in (Path(named), outputs / named):
        if is_sweep(path):
            return SweepFolder(path.resolve())
    raise UserError(
        f"{named} is no sweep: neither it nor {outputs / named} has a {paths.SWEEP}. "
        f"{_instead(outputs, named)}"
    )


def newest_sweep(outputs: Path, reruns: bool = True, written: bool = False) -> SweepFolder:
    """Return the sweep under ``outputs`` that changed last. With ``reruns``, reruns and
    continuations of single trials count too, with ``written`` dry runs.

    Others, and sweeps of the fake trainer, count only if there is nothing else.

    Raises UserError if there is none.
    """
    sweeps = [one for one in latest_sweeps(outputs) if reruns or not RERUN.search(one.path.name)]
    if not sweeps:
        raise UserError(f"no sweep in {outputs.resolve()}. {_instead(outputs)}")
    for sweep in sweeps:
        if not (sweep.is_fake or (sweep.is_only_written and not written)):
            return sweep
    return sweeps[0]


SET_CACHE = "Set GRPOSWEEP_CACHE=... in the environment to a folder of your own."


def cache_folder() -> Path:
    """Return the user's folder for created models and the index of sweeps: $GRPOSWEEP_CACHE,
    $XDG_CACHE_HOME or ~/.cache.

    Raises UserError for a user without a home, as in a container that is run under any number.
    """
    own = os.environ.get("GRPOSWEEP_CACHE")
    if own:
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grposweep"
    except RuntimeError as error:
        raise UserError(f"this user has no home folder. {SET_CACHE}") from error


def remember(outputs: Path) -> None:
    """Note a folder of sweeps in the user's index, where they are found from any other folder."""
    folders = remembered()
    outputs = outputs.resolve()
    if outputs not in folders:
        # a convenience only
        with suppress(OSError, UserError):
            cache_folder().mkdir(parents=True, exist_ok=True)
            write_text(cache_folder() / INDEX, "".join(f"{path}\n" for path in [*folders, outputs]))


def remembered() -> list[Path]:
    """Return the folders in the user's index that still exist."""
    try:
        lines = (cache_folder() / INDEX).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, UserError):
        return []
    return [path for path in map(Path, lines) if path.is_dir()]


def find_sweeps(folder: Path) -> Iterator[SweepFolder]:
    """Yield the sweeps in and below a folder, a few levels deep. The inside of a sweep is not
    searched.

    Folders below it that cannot be read are left out. Raises UserError if the folder itself cannot
    be read.
    """
    root = folder.resolve()

    def refuse(error: OSError) -> None:
        if isinstance(error, PermissionError) and error.filename == str(root):
            raise UserError(_unreadable(root)) from error

    for parent, folders, files in os.walk(root, onerror=refuse):
        here = Path(parent)
        if paths.SWEEP in files:
            folders.clear()
            yield SweepFolder(here)
        elif len(here.relative_to(root).parts) >= SEARCH_DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def latest_sweeps(*folders: Path) -> list[SweepFolder]:
    """Return the sweeps in and below these folders, the one that changed last first."""
    sweeps = chain.from_iterable(map(find_sweeps, folders))
    return sorted(sweeps, key=lambda sweep: -last_change(sweep.path))


def last_change(sweep: Path) -> float:
    """Return when a sweep began or its study last changed: clock time in seconds, from the dates of
    files.
    """
    files = (sweep / paths.SWEEP, sweep / paths.JOURNAL)
    return max((path.stat().st_mtime for path in files if path.exists()), default=0)


def is_sweep(path: Path) -> bool:
    """Return whether a folder holds a sweep. Raises UserError if the user may not look into it."""
    try:
        return (path / paths.SWEEP).is_file()
    except PermissionError as error:
        raise UserError(_unreadable(path)) from error
    except (OSError, ValueError):
        # not a valid file name
        return False


def _unreadable(path: Path) -> str:
    return (
        f"{path} cannot be read (Permission denied). Ask its owner for it: chmod -R go+rX "
        f"{shlex.quote(str(path))}"
    )


def _instead(outputs: Path, named: str = "") -> str:
    names = [sweep.path.name for sweep in latest_sweeps(outputs)]
    for near in get_close_matches(named, names, n=1, cutoff=0.5):
        return f"Did you mean {near}?"
    if names:
        return f"Name one of {first_of(names, 5)}, or a path."
    for folder in remembered():
        if named and is_sweep(folder / named):
            return f"Name it by its path: {folder / named}"
    return "Name a sweep's folder by its path, or see 'grposweep list'."
