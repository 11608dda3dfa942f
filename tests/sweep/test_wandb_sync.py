"""``grposweep sync``: W&B's own client sends what it kept offline to a stand-in for W&B's server; one run a trial."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import Ended, grposweep, lines, trials, wait_for
from wandb_stub import Server, wandb_server

pytestmark = pytest.mark.slow
Run = Callable[..., Ended]
TRACKED = ("trainer=fake", "name=s", "tracker=wandb", "schedule=steps", "schedule.max_steps=8")
KEY = "a" * 40


@pytest.fixture
def server() -> Iterator[Server]:
    """A W&B server."""
    with wandb_server() as server:
        yield server


def sync(here: Path, url: str, **extra: str) -> Ended:
    """The command with a login of its own, and no other."""
    return grposweep(here, "sync", WANDB_BASE_URL=url, HOME=str(here), **{"WANDB_API_KEY": KEY, **extra})


def test_every_trial_becomes_one_run_of_the_sweeps_group(run: Run, here: Path, server: Server) -> None:
    """Named after the trial, parameters as columns, every line of metrics as a row."""
    done = trials(run(*TRACKED, "-m", "lr=1e-3,3e-3", "batch=small,medium").sweep)
    ended = sync(here, server.url)
    assert ended.code == 0, ended.err
    assert "4 of 4" in ended.out
    assert sorted(run["displayName"] for run in server.runs.values()) == [folder.name for folder in done]
    assert {run["groupName"] for run in server.runs.values()} == {"s"}
    for name, found in server.runs.items():
        columns = json.loads(found["config"])
        folder = next(folder for folder in done if name.startswith(folder.name))
        assert columns["batch"]["value"] in ("small", "medium")
        assert [row["step"] for _, row in sorted(server.rows[name].items())] == [
            line["step"] for line in lines(folder / "metrics.jsonl")
        ]


def test_what_was_sent_is_not_sent_again(run: Run, here: Path, server: Server) -> None:
    """A second call sends only the rest."""
    run(*TRACKED, "-m", "lr=1e-3,3e-3,1e-2", "search.trials=1")
    assert "1 of 1" in sync(here, server.url).out
    run(*TRACKED, "-m", "lr=1e-3,3e-3,1e-2")
    ended = sync(here, server.url)
    assert "sent before: 1 trial" in ended.out
    assert "2 of 2" in ended.out
    assert len(server.runs) == 3


def test_a_trial_under_way_waits_and_its_attempts_are_one_run(
    run: Run, start: Callable, here: Path, server: Server
) -> None:
    """Stopped in the middle nothing is sent; resumed, every step once."""
    slow = (*TRACKED[:3], "trainer.fake.step_seconds=0.05", "schedule=steps", "schedule.max_steps=60")
    process = start(*slow)
    wait_for(lambda: any(len(lines(path)) > 5 for path in here.glob("outputs/s/trials/*/metrics.jsonl")))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    assert "not finished yet: 1 trial" in sync(here, server.url).out
    assert not server.runs
    (folder,) = trials(run(*slow).sweep)
    assert sync(here, server.url).code == 0
    ((_, rows),) = server.rows.items()
    assert [row["step"] for _, row in sorted(rows.items())] == [
        line["step"] for line in lines(folder / "metrics.jsonl")
    ]


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://nowhere.invalid"])
def test_without_a_network_nothing_is_sent_and_nothing_is_lost(run: Run, here: Path, address: str) -> None:
    """One message and exit code 1, at once."""
    run(*TRACKED)
    before = sorted(here.glob("outputs/s/trials/*/wandb/**/*"))
    ended = sync(here, address)
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "cannot be reached" in ended.err
    assert sorted(here.glob("outputs/s/trials/*/wandb/**/*")) == before


def test_without_a_login_it_says_how_to_log_in(run: Run, here: Path, server: Server) -> None:
    """Bad input, one message."""
    run(*TRACKED)
    ended = sync(here, server.url, WANDB_API_KEY="")
    assert ended.code == 2
    assert "wandb login" in ended.err
    assert not server.rows


def test_a_sweep_without_offline_runs_is_bad_input(run: Run, here: Path, server: Server) -> None:
    """And says which key makes them."""
    run("trainer=fake", "name=s")
    ended = sync(here, server.url)
    assert ended.code == 2
    assert "tracker=wandb" in ended.err
