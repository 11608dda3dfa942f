"""Copies of the sweep's study for other programs: its journal, and a database that a team shares.

The sweep works from its trial folders and never reads a copy, so a full disk or a server that is
away costs nothing.
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from grporecipe.errors import UserError
from grporecipe.files import Json, no_link
from grposweep.search.space import Direction

# between two attempts to reach a server that is away
PAUSE_SECONDS = 5.0
# for what is left to tell at the end
LAST_SECONDS = 10.0
BEHIND = "search.storage is behind ({}); trying again"


class Mirror:
    """A copy of the sweep's study in an Optuna storage: trials are added, and ended, in the order
    of their numbers.
    """

    def __init__(self, name: str, direction: Direction) -> None:
        self._name = name
        self._direction = direction
        self._study: optuna.Study | None = None
        # of the trials that were shown
        self._states: list[TrialState] = []
        # why the copy is behind; empty if it is not
        self.problem = ""

    def open_storage(self) -> BaseStorage:
        """Open the storage. It is called again after every failure."""
        raise NotImplementedError

    def show(self, trials: Sequence[FrozenTrial]) -> None:
        """Set the present trials of the sweep."""
        raise NotImplementedError

    def close(self) -> bool:
        """Return whether all was written; if not, ``problem`` says why."""
        return not self.problem

    def update(self, trials: Sequence[FrozenTrial]) -> None:
        """Write what changed. Raises what the storage raises, and ValueError for another sweep's
        study.
        """
        # a dead connection is replaced
        study = self._study or optuna.create_study(
            storage=self.open_storage(),
            study_name=self._name,
            direction=self._direction,
            load_if_exists=True,
        )
        self._study = None
        there = study.get_trials(deepcopy=False)
        pairs = list(zip(trials, there, strict=False))
        for mine, theirs in pairs:
            if mine.user_attrs.get("experiment") != theirs.user_attrs.get("experiment"):
                raise ValueError(
                    f"its study {self._name!r} is another sweep's; give this one another name=..."
                )
        for mine, theirs in pairs:
            if mine.state.is_finished() and not theirs.state.is_finished():
                _end(study, theirs, mine)
        for mine in trials[len(there) :]:
            study.add_trial(mine)
        self._study = study


class _UnsyncedJournal(JournalFileBackend):
    """A journal without lock and fsync, which take milliseconds per trial: it has one writer, and
    each start rewrites it.
    """

    def append_logs(self, logs: list[Json]) -> None:
        """Append one line per log."""
        with open(self._file_path, "ab", opener=no_link) as file:
            file.write("".join(f"{json.dumps(log)}\n" for log in logs).encode())


class JournalMirror(Mirror):
    """Writes the sweep's study to ``study.journal``, for optuna-dashboard and notebooks. It is
    never read back.
    """

    def __init__(self, path: Path, direction: Direction) -> None:
        super().__init__(path.parent.name, direction)
        self._path = path

    def open_storage(self) -> BaseStorage:
        """Begin an empty journal."""
        self._path.unlink(missing_ok=True)
        return JournalStorage(_UnsyncedJournal(str(self._path)))

    def show(self, trials: Sequence[FrozenTrial]) -> None:
        """Write what changed in the trials of the sweep. A failure is noted, and the next change
        writes the whole file.
        """
        states = [trial.state for trial in trials]
        if states == self._states:
            return
        try:
            self.update(trials)
        except Exception as error:  # noqa: BLE001 - Optuna raises many kinds, and a sweep needs no journal
            self.problem = f"study.journal is behind ({_first_line(error)}); trying again"
        else:
            self._states = states
            self.problem = ""


class RdbMirror(Mirror):
    """Copies the sweep's study to an Optuna storage whenever it changed and the server answers."""

    def __init__(self, url: str, name: str, direction: Direction) -> None:
        """``url`` is any that Optuna's RDBStorage takes. Raises UserError if it is none."""
        super().__init__(name, direction)
        try:
            import sqlalchemy

            # reads the URL and imports the driver; connects to nothing
            sqlalchemy.create_engine(url)
        except Exception as error:
            # sqlalchemy raises its own ArgumentError, or ImportError for a missing driver
            raise UserError(
                f"search.storage={url}: this is no database that can be used here "
                f"({_first_line(error)}). Set an Optuna "
                "RDB URL such as postgresql://host/database, and install its driver (pip "
                "install 'psycopg[binary]')."
            ) from error
        self._url = url
        self._trials: Sequence[FrozenTrial] = ()
        self._news = threading.Event()
        self._copied = threading.Event()
        self._ends = threading.Event()
        threading.Thread(target=self._work, daemon=True, name="mirror").start()

    def open_storage(self) -> BaseStorage:
        """Connect to the server."""
        return optuna.storages.RDBStorage(self._url, engine_kwargs={"pool_pre_ping": True})

    def show(self, trials: Sequence[FrozenTrial]) -> None:
        """Set the present trials of the sweep."""
        states = [trial.state for trial in trials]
        if states != self._states:
            self._states = states
            self._trials = list(trials)
            self._copied.clear()
            self._news.set()

    def close(self) -> bool:
        """Wait a while until the rest is copied, and return whether it was; if not, ``problem``
        says why.
        """
        copied = not self._trials or self._copied.wait(LAST_SECONDS)
        if not copied:
            self.problem = self.problem or BEHIND.format("the server does not answer")
        self._ends.set()
        self._news.set()
        return copied

    def _work(self) -> None:
        while not self._ends.is_set():
            self._news.wait()
            self._news.clear()
            try:
                self.update(self._trials)
            except Exception as error:  # noqa: BLE001 - a database and its driver raise many kinds: it is tried again
                self.problem = BEHIND.format(_first_line(error))
                self._ends.wait(PAUSE_SECONDS)
                self._news.set()
            else:
                self.problem = ""
                if not self._news.is_set():
                    self._copied.set()


def _end(study: optuna.Study, theirs: FrozenTrial, mine: FrozenTrial) -> None:
    # no public way from a number to a live trial
    live = optuna.trial.Trial(study, theirs._trial_id)
    for step, value in mine.intermediate_values.items():
        if step not in theirs.intermediate_values:
            live.report(value, step)
    if mine.state == TrialState.COMPLETE:
        study.tell(theirs.number, mine.values)
    else:
        study.tell(theirs.number, state=mine.state)


def _first_line(error: Exception) -> str:
    return [*str(error).strip().splitlines(), type(error).__name__][0]
