"""The GPU grid's parts that need no GPU: its points, its verdicts, and one run of a model so small that a CPU does it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "memory"))
import gpu_grid
from gpu_grid import Outcome, Point, grid, read_outcome, row

from grposweep.memory.architecture import Architecture

POINT = Point("qwen2.5-0.5b", 8, 256, checkpoints=True, lora=False, kl=False)


def test_the_grid_turns_every_switch_and_has_points_that_no_gpu_holds() -> None:
    """At least 24 of them."""
    points = grid()
    assert len(set(points)) == len(points) >= 24
    for name in ("checkpoints", "lora", "kl"):
        assert {getattr(point, name) for point in points} == {True, False}
    assert len({point.model for point in points}) >= 5
    assert sum(point.estimate_gib > 200 for point in points) >= 2


@pytest.mark.parametrize(("off", "close"), [(1.0, True), (1.14, True), (0.86, True), (1.2, False), (0.8, False)])
def test_an_estimate_is_close_within_fifteen_per_cent(off: float, close: bool) -> None:
    """Of what was reserved, in both directions."""
    assert Outcome(POINT, POINT.estimate_gib / off).is_close() == close


def test_a_point_that_ran_out_was_called_safe_only_where_the_estimate_fits() -> None:
    """The one mistake that there must be none of."""
    ran_out = Outcome(POINT, None, ran_out=True)
    assert ran_out.was_called_safe(gpu_gib=80.0)
    assert not ran_out.was_called_safe(gpu_gib=4.0)
    assert "CALLED SAFE" in row(ran_out, 80.0)
    assert not Outcome(POINT, 3.0).was_called_safe(80.0)


@pytest.mark.parametrize(
    ("out", "log", "wanted"),
    [
        ('noise\n{"reserved_gib": 3.5, "ran_out": false}\n', "", Outcome(POINT, 3.5)),
        ("", "RuntimeError: CUDA error: out of memory\n", Outcome(POINT, None, ran_out=True)),
        ("", "ImportError: no trl\n", Outcome(POINT, None, error="ImportError: no trl")),
        ("", "", Outcome(POINT, None, error="no output")),
    ],
)
def test_a_process_is_understood_however_it_ended(out: str, log: str, wanted: Outcome) -> None:
    """An error of the run is neither a measurement nor a lack of memory."""
    assert read_outcome(POINT, out, log) == wanted


@pytest.mark.slow
def test_a_point_is_measured_by_real_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that a GPU runs, on a CPU: a model of two layers, with KL and adapters; torch reserves no GPU memory."""
    monkeypatch.setitem(gpu_grid.MODELS, "two layers", Architecture(2, 32, 64, 4, 2, 8, 64, True, "qwen2"))
    monkeypatch.setattr(gpu_grid, "STEPS", 1)
    monkeypatch.setattr(gpu_grid, "PROMPT", 4)
    for lora in (False, True):
        found = gpu_grid.measure(Point("two layers", 8, 4, checkpoints=True, lora=lora, kl=True))
        assert found == {"reserved_gib": 0.0, "ran_out": False}
