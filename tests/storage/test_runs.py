"""What trials cost: their runs, under one controller or several."""

import os
from pathlib import Path

import pytest

from grposweep.storage import results
from grposweep.storage.records import AttemptEvent
from grposweep.storage.results import end_run, read_runs, run_cost, start_run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of day, in a list that a test moves."""
    now = [1000.0]
    monkeypatch.setattr(results.time, "time", lambda: now[0])
    return now


def test_a_trial_costs_its_seconds_times_its_devices(tmp_path: Path, clock: list[float]) -> None:
    """A minute and a half on eight GPUs; what comes after costs nothing."""
    start_run(tmp_path, attempt=0, devices=8)
    clock[0] += 90
    end_run(tmp_path, attempt=0)
    clock[0] += 1000
    assert run_cost(tmp_path) == (90, 720)


def test_every_run_of_a_restarted_job_counts_and_the_wait_between_them_does_not(
    tmp_path: Path, clock: list[float]
) -> None:
    """A run that could not note its own end has ended when its heartbeat last moved."""
    start_run(tmp_path, attempt=0, devices=2)
    clock[0] += 60
    (tmp_path / "heartbeat").write_text("{}")
    os.utime(tmp_path / "heartbeat", (clock[0], clock[0]))
    # killed, and waiting in the queue
    clock[0] += 500
    start_run(tmp_path, attempt=1, devices=2, restarts=1)
    clock[0] += 40
    end_run(tmp_path, attempt=1)
    assert run_cost(tmp_path)[0] == 100
    assert [run.restarts for run in read_runs(tmp_path)] == [0, 1]


def test_a_run_under_way_costs_up_to_now_and_a_dead_one_up_to_its_last_sign(
    tmp_path: Path, clock: list[float]
) -> None:
    """This one has never moved its heartbeat."""
    start_run(tmp_path, attempt=0, devices=1)
    clock[0] += 30
    assert run_cost(tmp_path, is_running=True)[0] == 30
    assert run_cost(tmp_path)[0] == 0


def test_a_trial_that_never_ran_costs_nothing(tmp_path: Path) -> None:
    """A job may have died in the queue."""
    assert run_cost(tmp_path)[1] == 0


@pytest.mark.parametrize("jump", [7200, -7200])
def test_a_clock_that_jumps_costs_nothing(tmp_path: Path, clock: list[float], jump: int) -> None:
    """By two hours, forward or back: a minute's run is a minute's, under way and when it has
    ended.
    """
    start_run(tmp_path, attempt=0, devices=8)
    clock[0] += 60 + jump
    assert run_cost(tmp_path, is_running=True, most=60.0)[0] <= 60
    assert run_cost(tmp_path, is_running=True, most=60.0, least=60.0)[0] == 60
    end_run(tmp_path, attempt=0, seconds=60.0)
    assert run_cost(tmp_path) == (60, 480)


def test_a_dead_run_is_no_longer_than_its_controller_watched_it(
    tmp_path: Path, clock: list[float]
) -> None:
    """Its last sign of life is dated by the clock that jumped."""
    start_run(tmp_path, attempt=0, devices=1)
    (tmp_path / "heartbeat").write_text("{}")
    os.utime(tmp_path / "heartbeat", (clock[0] + 7200, clock[0] + 7200))
    AttemptEvent(0, "ended", seconds=90.0).append(tmp_path)
    assert run_cost(tmp_path)[0] == 90
