"""``wandb sync`` sends what W&B kept offline to a stand-in for its server; one run a trial."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support import Run, lines, trials, wait_for
from wandb_stub import Server, wandb_server

pytestmark = pytest.mark.slow
TRACKED = ("trainer=fake", "name=s", "tracker=wandb", "schedule=steps", "schedule.max_steps=8")


@pytest.fixture
def server() -> Iterator[Server]:
    """A W&B server."""
    with wandb_server() as server:
        yield server


def sync(sweep: Path, url: str) -> None:
    """``wandb sync`` of all offline runs of a sweep, as the guide has it."""
    runs = map(str, sorted(sweep.glob("trials/*/wandb/offline-run-*")))
    login = {"WANDB_BASE_URL": url, "HOME": str(sweep), "WANDB_API_KEY": "a" * 40}
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", *runs],
        cwd=sweep,
        env={**os.environ, **login},
        check=True,
    )


def test_every_trial_becomes_one_run_of_the_sweeps_group(run: Run, server: Server) -> None:
    """Named after the trial, parameters as columns, every line of metrics as a row."""
    sweep = run(*TRACKED, "-m", "lr=1e-3,3e-3", "batch=small,medium").sweep
    done = trials(sweep)
    sync(sweep, server.url)
    assert sorted(run["displayName"] for run in server.runs.values()) == [
        folder.name for folder in done
    ]
    assert {run["groupName"] for run in server.runs.values()} == {"s"}
    for name, found in server.runs.items():
        columns = json.loads(found["config"])
        folder = next(folder for folder in done if name.startswith(folder.name))
        assert columns["batch"]["value"] in ("small", "medium")
        assert [row["step"] for _, row in sorted(server.rows[name].items())] == [
            line["step"] for line in lines(folder / "metrics.jsonl")
        ]


def test_the_attempts_of_a_trial_are_one_run(
    run: Run, start: Callable, here: Path, server: Server
) -> None:
    """Stopped in the middle and resumed: every step once."""
    slow = (
        *TRACKED[:3],
        "trainer.args.step_seconds=0.05",
        "schedule=steps",
        "schedule.max_steps=60",
    )
    process = start(*slow)
    wait_for(
        lambda: any(len(lines(path)) > 5 for path in here.glob("outputs/s/trials/*/metrics.jsonl"))
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    sweep = run(*slow).sweep
    (folder,) = trials(sweep)
    sync(sweep, server.url)
    ((_, rows),) = server.rows.items()
    assert [row["step"] for _, row in sorted(rows.items())] == [
        line["step"] for line in lines(folder / "metrics.jsonl")
    ]
