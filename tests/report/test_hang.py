"""One sentence about ranks that hang, from the stacks that they have written."""

import os
import threading
import time
from pathlib import Path

import pytest

from grposweep.report.hang import hang_sentence
from grposweep.report.view import read_sweep
from grposweep.storage.records import RankStack
from grposweep.train import process
from made import Made, make_sweep

from .conftest import Commands

TRL = "/env/trl/trainer/grpo_trainer.py"
C10D = "/env/torch/distributed/distributed_c10d.py"
GENERATES = (f"{TRL}:1402 _generate", "/env/transformers/generation/utils.py:2711 _sample")
GATHERS = (
    f"{TRL}:1402 evaluate",
    "/env/accelerate/utils/operations.py:5 gather",
    f"{C10D}:81 wrapper",
    f"{C10D}:3700 all_gather",
)


def write(trial: Path, places: list[tuple[str, ...]], ranks: int | None = None) -> None:
    """Stacks of as many ranks, silent for 14 minutes at clock time 1000."""
    for rank, frames in enumerate(places):
        RankStack(rank, ranks or len(places), 0, 41, 160.0, frames).write(trial)


@pytest.mark.parametrize(
    ("places", "ranks", "said"),
    [
        (
            [GATHERS, GATHERS, GATHERS, GENERATES],
            4,
            "rank 3 is in generation (generation/utils.py:2711), the others wait in all_gather after step 41 (evaluation)",
        ),
        (
            [GATHERS, GATHERS],
            3,
            "rank 2 has written no stack, ranks 0, 1 wait in all_gather after step 41 (evaluation)",
        ),
        ([("x:1 ", "/a/b/me.py:7 odd name")], 1, "rank 0 is in an unknown place"),
        (
            [GATHERS, (f"{C10D}:81 wrapper", f"{C10D}:9 broadcast")],
            2,
            "rank 0 waits in all_gather after step 41 (evaluation), rank 1 waits in broadcast after step 41",
        ),
    ],
    ids=["one generates", "one is silent", "damaged", "two collectives"],
)
def test_the_rank_that_the_others_wait_for_is_named_first(
    tmp_path: Path, places: list[tuple[str, ...]], ranks: int, said: str
) -> None:
    """With what it is busy with, the collective of the others, the step and for how long."""
    write(tmp_path, places, ranks)
    assert hang_sentence(tmp_path, now=1000.0) == f"{said} for 14 min"


def test_status_shows_it_under_a_running_trial_that_is_silent(commands: Commands) -> None:
    """And not under one that lives."""
    sweep = make_sweep(Path("outputs/s"), Made(trials=3, running=1))
    running = next(trial for trial in read_sweep(sweep).trials if trial.state == "running")
    write(running.path, [GATHERS, GENERATES])
    os.utime(running.path / "heartbeat", (time.time(), time.time()))
    assert "rank 1" not in commands("status").out
    os.utime(running.path / "heartbeat", (time.time() - 900, time.time() - 900))
    assert "rank 1 is in generation (generation/utils.py:2711), rank 0 waits in" in commands("status").out


def test_a_silent_rank_writes_where_it_is_until_it_lives_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread's stack, and not that of the thread which writes it."""
    monkeypatch.setattr(process, "LOOK_SECONDS", 0.04)
    now, looked = [1000.0], threading.Event()
    monkeypatch.setattr(process.time, "monotonic", lambda: now[0])
    process.feed(None)
    now[0] += 5

    def linger() -> None:
        for _ in range(500):
            if RankStack.read_all(tmp_path):
                return
            looked.wait(0.01)

    with process.StackWriter(tmp_path, 2, 4, 1, None) as stacks:
        stacks.step = 7
        linger()
        (found,) = RankStack.read_all(tmp_path)
        assert (found.rank, found.ranks, found.attempt, found.step) == (2, 4, 1, 7)
        assert any(frame.endswith(" linger") for frame in found.frames)
        process.feed(None)
        for _ in range(500):
            if not RankStack.read_all(tmp_path):
                break
            looked.wait(0.01)
        assert RankStack.read_all(tmp_path) == []
