"""A step's time is shared out between generation, scoring and training, and evaluations cost
none.
"""

import time

import pytest

pytest.importorskip("torch")
from grposweep.train import _trl_callbacks as stopwatch
from grposweep.train._trl_callbacks import Stopwatch

# torch and TRL take 8 s to import
pytestmark = pytest.mark.slow


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "Clock":
    """A clock that moves when it is told to."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


class Clock:
    """Seconds that pass on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_generation_lies_within_scoring_and_is_counted_once(clock: Clock) -> None:
    """Of ten seconds: six generate, one scores, the rest trains."""
    watch = Stopwatch()
    watch.begin(0)
    with watch.measure("scoring"):
        clock.now += 1
        with watch.measure("generation"):
            clock.now += 6
    clock.now += 3
    reading = watch.read(tokens=500)
    assert [
        reading[f"time_share/{part}"] for part in ("generation", "scoring", "training")
    ] == pytest.approx([0.6, 0.1, 0.3])
    assert (reading["time/step"], reading["tokens_per_second"]) == (10.0, 50.0)


def test_an_evaluation_costs_a_step_nothing(clock: Clock) -> None:
    """Neither its generation nor its time."""
    watch = Stopwatch()
    watch.begin(0)
    clock.now += 2
    with watch.pause(), watch.measure("generation"):
        clock.now += 50
    reading = watch.read(tokens=10)
    assert (
        reading["time/step"],
        reading["time_share/generation"],
        reading["tokens_per_second"],
    ) == (2.0, 0.0, 5.0)


def test_tokens_before_a_checkpoint_are_not_this_attempts(clock: Clock) -> None:
    """A resumed trial's speed is its own."""
    watch = Stopwatch()
    watch.begin(1000)
    # every generation begins; the first counts
    watch.begin(5000)
    clock.now += 10
    assert watch.read(tokens=1200)["tokens_per_second"] == 20.0


def test_without_a_gpu_the_peak_is_the_process_resident_memory() -> None:
    """An interpreter with torch has some hundred MiB."""
    assert 0.05 < stopwatch.peak_gib() < 1024
