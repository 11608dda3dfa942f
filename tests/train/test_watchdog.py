"""A rank that lives is left alone, at next to no cost; tests/end_to_end/test_failures.py shows one
that hangs.
"""

import faulthandler
import random
import sys
import time
from typing import Any

import pytest

from grposweep.train import process as watchdog
from grposweep.train.run import run_attempt

from .conftest import MakeTrial


@pytest.mark.parametrize("minutes", [0.02, 30.0])
def test_signs_of_life_put_the_end_off_with_few_new_threads(
    monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    """After each of a thousand, at least 19 twentieths of the time are left."""
    now = 1000.0
    ends = []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda seconds, **_: ends.append(now + seconds)
    )
    draw = random.Random(0)
    for _ in range(1000):
        watchdog.feed(minutes)
        assert ends[-1] - now >= 0.95 * minutes * 60
        now += draw.uniform(0, 0.01) * minutes * 60
    assert len(ends) < 110
    watchdog.release()


def test_a_released_rank_is_watched_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may run several attempts; without a time allowed nothing is watched."""
    fed: list[Any] = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda seconds, **_: fed.append(seconds)
    )
    for minutes in (30.0, None, 30.0):
        watchdog.feed(minutes)
        watchdog.release()
    assert fed == [1800.0, 1800.0]


def test_a_rank_trains_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node limits processes and threads; the controller still watches the heartbeat."""

    def refuse(*_arguments: object, **_named: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(watchdog.faulthandler, "dump_traceback_later", refuse)
    watchdog.feed(10.0)
    watchdog.release()


def test_a_rank_is_watched_from_the_end_of_its_imports(
    make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy disk torch may take longer to import than a short ``cluster.stall_min``."""
    imported: list[bool] = []
    monkeypatch.delitem(sys.modules, "grposweep.train.fake", raising=False)
    monkeypatch.setattr(
        faulthandler,
        "dump_traceback_later",
        lambda *_, **__: imported.append("grposweep.train.fake" in sys.modules),
    )
    assert run_attempt(make_fake()) == 0
    assert imported[0]
