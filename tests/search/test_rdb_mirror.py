"""A copy of the study in a database: equal at the end even if the server dies meanwhile, and never
waited for.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from grposweep.search.mirror import JournalMirror, RdbMirror
from grposweep.search.space import Interval, Parameter, Space
from grposweep.search.study import SweepStudy
from search.postgres import Postgres, find, free_port
from support import Run, Start, trials, wait_for

SPACE = Space((Parameter("lr", Interval(1e-5, 1e-2)),))
FAKE = ("trainer=fake", "name=s")


def told(url: str) -> list[tuple[str, Any, Any]]:
    """The states, points and values in a database."""
    study = optuna.load_study(study_name="s", storage=url)
    return [(trial.state.name, trial.params, trial.values) for trial in study.trials]


def own(sweep: Path) -> list[tuple[str, Any, Any]]:
    """The same of the sweep's journal."""
    study = optuna.load_study(
        study_name="s", storage=JournalStorage(JournalFileBackend(str(sweep / "study.journal")))
    )
    return [(trial.state.name, trial.params, trial.values) for trial in study.trials]


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A server; skipped without PostgreSQL, unless $GRPOSWEEP_POSTGRES_REQUIRED says that it must
    be there.
    """
    if find("initdb") is None and not os.environ.get("GRPOSWEEP_POSTGRES_REQUIRED"):
        pytest.skip("needs PostgreSQL (apt-get install postgresql)")
    server = Postgres(tmp_path)
    server.start()
    yield server
    server.stop()


def test_a_trial_that_is_stopped_early_is_pruned_in_the_copy(here: Path) -> None:
    """Its value is that of its last evaluation; running trials and pruned ones are told apart."""
    study = SweepStudy(SPACE, "maximize")
    mirror = JournalMirror(here / "j", "maximize")
    numbers = [study.add({"lr": rate}, {}) for rate in (1e-3, 1e-4)]
    mirror.show(study.trials)
    study.tell(numbers[0], 0.2, {10: 0.3, 20: 0.2}, pruned=True)
    mirror.show(study.trials)
    copy = optuna.load_study(
        study_name=None, storage=JournalStorage(JournalFileBackend(str(here / "j")))
    )
    assert [(trial.state.name, trial.value) for trial in copy.trials] == [
        ("PRUNED", 0.2),
        ("RUNNING", None),
    ]


@pytest.mark.slow
def test_a_database_holds_the_same_study(run: Run, here: Path) -> None:
    """SQLite as the simplest one; the sweep's second run only adds what is new."""
    sweep = (
        *FAKE,
        f"search.storage=sqlite:///{here}/team.db",
        "-m",
        "lr=tag(log,interval(1e-4,1e-2))",
    )
    first = run(*sweep, "search.trials=2")
    assert first.code == 0, first.err
    then = run(*sweep, "search.trials=4")
    assert told(f"sqlite:///{here}/team.db") == own(then.sweep)
    assert len(own(then.sweep)) == 4


@pytest.mark.slow
def test_a_server_that_refuses_connections_costs_no_trial(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep says that the database lacks it, and how it gets there."""
    ended = run(
        *FAKE, f"search.storage=postgresql://team@127.0.0.1:{free_port()}/x", "-m", "lr=1e-4,1e-3"
    )
    assert ended.code == 0, ended.err
    assert len(trials(ended.sweep)) == 2
    assert "search.storage is behind" in ended.out


@pytest.mark.slow
def test_a_server_that_never_answers_is_named_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts the connection and stays silent, so the driver waits and raises nothing."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    monkeypatch.setattr("grposweep.search.mirror.LAST_SECONDS", 0.05)
    trial = optuna.trial.create_trial(state=optuna.trial.TrialState.COMPLETE, value=0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql+psycopg://team@127.0.0.1:{server.getsockname()[1]}/x"
        mirror = RdbMirror(url, "s", "maximize")
        mirror.show([trial])
        assert not mirror.close()
        assert (
            mirror.problem == "search.storage is behind (the server does not answer); trying again"
        )


@pytest.mark.slow
def test_a_sweep_outlives_its_database(start: Start, here: Path, postgres: Postgres) -> None:
    """PostgreSQL dies after the first trial and comes back before the last; nothing is missing in
    the end.
    """
    slow = (
        "trainer.args.step_seconds=0.02",
        "schedule=steps",
        "schedule.max_steps=50",
        "-m",
        "lr=1e-4,3e-4,1e-3,2e-3,3e-3,4e-3",
    )
    process = start(*FAKE, f"search.storage={postgres.url}", *slow)
    wait_for(lambda: list(here.glob("outputs/s/trials/0000-*/result.json")))
    postgres.stop()
    wait_for(lambda: list(here.glob("outputs/s/trials/0002-*/result.json")))
    postgres.start()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert told(postgres.url) == own(here / "outputs" / "s")
    assert len(told(postgres.url)) == 6
