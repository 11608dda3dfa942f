"""The study once more in a database that a team shares: kept up to date from a thread, never waited for.

The journal stays what the sweep works from, so a server that is away costs nothing; it is told the rest when it is back.
"""

import threading
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from grposweep.errors import BadInput
from grposweep.search.journal import Direction

PAUSE_SECONDS = 5.0  # between two attempts to reach a server that is away
LAST_SECONDS = 10.0  # for what is left to tell at the end


class Mirror:
    """One study in an Optuna storage, made equal to the sweep's own whenever there is news and the server answers."""

    def __init__(self, url: str, name: str, direction: Direction) -> None:
        """``url`` is any that Optuna's RDBStorage takes. Raises BadInput where it is none."""
        try:
            import sqlalchemy

            sqlalchemy.create_engine(url)  # reads the URL and imports the driver; connects to nothing
        except Exception as error:  # sqlalchemy raises its own ArgumentError, or ImportError for a missing driver
            raise BadInput(
                f"search.storage={url}: this is no database that can be used here ({str(error).splitlines()[0]}). Set an Optuna "
                "RDB URL such as postgresql://host/database, and install its driver (pip install 'psycopg[binary]')."
            ) from error
        self._url, self._name, self._direction = url, name, direction
        self._trials: Sequence[FrozenTrial] = ()
        self._states: list[TrialState] = []  # of these
        self._news, self._told, self._ends = threading.Event(), threading.Event(), threading.Event()
        self._study: optuna.Study | None = None
        self.problem = ""  # why the database is behind; empty where it is not
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
        self._thread.start()

    def show(self, trials: Sequence[FrozenTrial]) -> None:
        """These are the sweep's trials now."""
        states = [trial.state for trial in trials]
        if states != self._states:
            self._states, self._trials = states, list(trials)
            self._told.clear()
            self._news.set()

    def close(self) -> bool:
        """Wait a while for the rest to be told; whether it was."""
        told = not self._trials or self._told.wait(LAST_SECONDS)
        self._ends.set()
        self._news.set()
        return told

    def _work(self) -> None:
        while not self._ends.is_set():
            self._news.wait()
            self._news.clear()
            try:
                self._update(self._trials)
            except Exception as error:  # noqa: BLE001 - whatever a database and its driver raise: it is tried again
                self._study = None  # a dead connection is made anew
                self.problem = f"search.storage is behind ({_first_line(error)}); trying again"
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
    """Raise ValueError where a database holds another sweep's study under this name."""
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
