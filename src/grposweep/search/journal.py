"""The journal file under an Optuna study: opened after any crash; damaged parts are set aside and reported.

Records name trials by their position, so the records after a damaged one may mean another trial. The journal is therefore
cut where its damage begins; what it lacks then is in the trial folders.

The study once more in a database that a team shares: kept up to date from a thread, never waited for.

The journal stays what the sweep works from, so a server that is away costs nothing; it is told the rest when it is back.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna import Study
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock  # the documented base class, exported nowhere else
from optuna.trial import FrozenTrial, TrialState

from grporecipe.errors import UserError
from grporecipe.files import LARGEST, age_seconds, parse_json, read_bytes, set_aside

Direction = Literal["maximize", "minimize"]

LOCK_SECONDS = 60.0  # a writer of Optuna's holds its lock for milliseconds, and gives another's up after 30 s


class _LeaseHeld(BaseJournalFileLock):
    """No lock: the sweep's lease already keeps other writers out, and a dead writer's lock would block us forever."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def open_journal(path: Path, direction: Direction) -> tuple[JournalStorage, list[str]]:
    """Open the storage in a journal, new or existing, and describe the repairs that were needed."""
    said = remove_stale_lock(path)
    if os.path.lexists(path) and not _ends_well(path):
        said += cut(path, sound_bytes(path, direction))
    try:
        storage = _open(path)
        if _is_ours(storage, direction):
            return storage, said
    except Exception:  # noqa: BLE001 - a damaged record makes Optuna raise any exception
        pass
    said += cut(path, sound_bytes(path, direction))
    return _open(path), said


def _open(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path), lock_obj=_LeaseHeld()))


def damaged_path(path: Path) -> Path:
    """Return the path of a journal's damaged parts."""
    return path.with_name(f"{path.name}.damaged")


def cut(path: Path, keep: int) -> list[str]:
    """Move all but the first ``keep`` bytes into the file of damaged parts, and describe it."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        return [f"{path.name} was no journal: it is {set_aside(path).name} now"]
    with path.open("r+b") as file:
        file.seek(keep)
        rest = file.read()
        if not rest:
            return []
        with damaged_path(path).open("ab") as scrap:
            scrap.write(rest if rest.endswith(b"\n") else rest + b"\n")
            scrap.flush()
            os.fsync(scrap.fileno())
        file.truncate(keep)
        os.fsync(file.fileno())
    lines = len(rest.splitlines())
    return [f"{path.name} was damaged: its last {lines} lines ({len(rest)} bytes) are in {damaged_path(path).name} now"]


def sound_bytes(path: Path, direction: Direction) -> int:
    """Return the length of the journal's start that Optuna replays into the sweep's study."""
    backend = _Replay(_content(path))
    try:
        storage = JournalStorage(backend)
    except Exception:  # noqa: BLE001 - as in open_journal; the backend knows how far it came
        return backend.sound
    return backend.sound if _is_ours(storage, direction) else 0


def _content(path: Path) -> bytes:
    """Return the journal's bytes; none if there is no such file, or a folder in its place."""
    try:
        return read_bytes(path)
    except (FileNotFoundError, ValueError):
        return b""


def _ends_well(path: Path) -> bool:
    """Return whether the last line is complete: Optuna ignores a torn one until another follows (optuna#5138, #5921).

    A file that is too large to be a journal does not: Optuna would read it into memory.
    """
    data = _content(path)
    if not data:
        return path.is_file() and not path.stat().st_size
    last = data[data.rfind(b"\n", 0, -1) + 1 :]
    return last.endswith(b"\n") and _is_json(last)


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _is_ours(storage: JournalStorage, direction: Direction) -> bool:
    """Return whether it holds a single study of this direction, or nothing yet.

    Its name may be another: a sweep's folder can be renamed, and earlier releases called every study ``grposweep``.
    """
    found = [[d.name.lower() for d in study.directions] for study in storage.get_all_studies()]
    return found in ([], [[direction]])


class _Replay(BaseJournalBackend):
    """Shows Optuna a journal line by line and remembers how much of it was taken."""

    def __init__(self, data: bytes) -> None:
        self.sound = 0
        self._lines = list(BytesIO(data))  # as Optuna splits a file: splitlines() also cuts at a carriage return

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        for line in self._lines[log_number_from:]:
            if not line.endswith(b"\n"):
                return
            yield parse_json(line)
            self.sound += len(line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise NotImplementedError


def remove_stale_lock(path: Path) -> list[str]:
    """Remove the lock of a writer (a notebook, optuna-dashboard) that died holding it, and describe it."""
    age = lock_age(path)
    if age > LOCK_SECONDS:
        remove_lock(path)
        return [f"{_lock(path).name}, left by a program that died, was removed"]
    return [f"{_lock(path).name}: another program seems to write this study"] if age >= 0 else []


def lock_age(path: Path) -> float:
    """Return the seconds since the journal was locked; negative if it is not locked."""
    try:
        return age_seconds(_lock(path)) if os.path.lexists(_lock(path)) else -1.0
    except FileNotFoundError:  # given back meanwhile
        return -1.0


def remove_lock(path: Path) -> None:
    """Remove a journal's lock; of two that do so at once, one succeeds and neither takes a new one."""
    gone = _lock(path).with_name(f".{_lock(path).name}.stale")
    try:
        _lock(path).rename(gone)
        gone.unlink()
    except FileNotFoundError:
        return


def _lock(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def open_study(storage: BaseStorage, name: str, direction: Direction) -> Study:
    """Open the single study in a storage, or create it under the sweep's name."""
    return _single_study(storage) or optuna.create_study(storage=storage, study_name=name, direction=direction)


def read_study(path: Path, direction: Direction) -> Study | None:
    """Read the study in a journal without changing it; None if nothing can be read."""
    return _single_study(JournalStorage(_Replay(_content(path)[: sound_bytes(path, direction)])))


def _single_study(storage: BaseStorage) -> Study | None:
    names = [study.study_name for study in storage.get_all_studies()]
    return optuna.load_study(study_name=names[0], storage=storage) if names else None


PAUSE_SECONDS = 5.0  # between two attempts to reach a server that is away
LAST_SECONDS = 10.0  # for what is left to tell at the end
BEHIND = "search.storage is behind ({}); trying again"


class RdbMirror:
    """Copies the sweep's study to an Optuna storage whenever it changed and the server answers."""

    def __init__(self, url: str, name: str, direction: Direction, last_seconds: float = LAST_SECONDS) -> None:
        """``url`` is any that Optuna's RDBStorage takes. Raises UserError if it is none."""
        try:
            import sqlalchemy

            sqlalchemy.create_engine(url)  # reads the URL and imports the driver; connects to nothing
        except Exception as error:  # sqlalchemy raises its own ArgumentError, or ImportError for a missing driver
            raise UserError(
                f"search.storage={url}: this is no database that can be used here ({str(error).splitlines()[0]}). Set an Optuna "
                "RDB URL such as postgresql://host/database, and install its driver (pip install 'psycopg[binary]')."
            ) from error
        self._url, self._name, self._direction, self._last_seconds = url, name, direction, last_seconds
        self._trials: Sequence[FrozenTrial] = ()
        self._states: list[TrialState] = []  # of these
        self._news, self._told, self._ends = threading.Event(), threading.Event(), threading.Event()
        self._study: optuna.Study | None = None
        self.problem = ""  # why the database is behind; empty if it is not
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
        self._thread.start()

    def show(self, trials: Sequence[FrozenTrial]) -> None:
        """Set the present trials of the sweep."""
        states = [trial.state for trial in trials]
        if states != self._states:
            self._states, self._trials = states, list(trials)
            self._told.clear()
            self._news.set()

    def close(self) -> bool:
        """Wait a while until the rest is copied, and return whether it was; if not, ``problem`` says why."""
        told = not self._trials or self._told.wait(self._last_seconds)
        if not told:
            self.problem = self.problem or BEHIND.format("the server does not answer")
        self._ends.set()
        self._news.set()
        return told

    def _work(self) -> None:
        while not self._ends.is_set():
            self._news.wait()
            self._news.clear()
            try:
                self._update(self._trials)
            except Exception as error:  # noqa: BLE001 - a database and its driver raise many kinds: it is tried again
                self._study = None  # a dead connection is replaced
                self.problem = BEHIND.format(_first_line(error))
                self._ends.wait(PAUSE_SECONDS)
                self._news.set()
            else:
                self.problem = ""
                if not self._news.is_set():
                    self._told.set()

    def _update(self, trials: Sequence[FrozenTrial]) -> None:
        study = self._study = self._study or self._open()
        there = study.get_trials(deepcopy=False)
        check_same(self._name, there, trials)
        for mine, theirs in zip(trials, there, strict=False):
            if mine.state.is_finished() and not theirs.state.is_finished():
                _end(study, theirs, mine)
        for mine in trials[len(there) :]:
            study.add_trial(mine)

    def _open(self) -> optuna.Study:
        storage = optuna.storages.RDBStorage(self._url, engine_kwargs={"pool_pre_ping": True})
        return optuna.create_study(
            storage=storage, study_name=self._name, direction=self._direction, load_if_exists=True
        )


def check_same(name: str, there: Sequence[FrozenTrial], trials: Sequence[FrozenTrial]) -> None:
    """Raise ValueError if the database holds another sweep's study under this name."""
    for mine, theirs in zip(trials, there, strict=False):
        if mine.user_attrs.get("experiment") != theirs.user_attrs.get("experiment"):
            raise ValueError(f"its study {name!r} is another sweep's; give this one another name=...")


def _end(study: optuna.Study, theirs: FrozenTrial, mine: FrozenTrial) -> None:
    live = optuna.trial.Trial(study, theirs._trial_id)  # no public way from a number to a live trial
    for step, value in mine.intermediate_values.items():
        if step not in theirs.intermediate_values:
            live.report(value, step)
    told: dict[str, Any] = {"values": mine.values} if mine.values is not None else {"state": mine.state}
    study.tell(theirs.number, **told)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
