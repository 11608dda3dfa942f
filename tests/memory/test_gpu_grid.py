"""The GPU grid's parts that need no GPU: its points, its verdicts, and one run of a model so small
that a CPU does it.
"""

import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "memory"))
import gpu_grid
import gpu_point
from gpu_grid import (
    Outcome,
    compare,
    estimate_gib,
    expected_seconds,
    grid,
    read_outcome,
    read_outcomes,
    row,
)
from gpu_point import Point

from grporecipe.model.architecture import Architecture
from support import Printed, write_lines

POINT = Point("qwen2.5-0.5b", 8, 256, checkpoints=True, lora=False, kl=False)
H200 = 140.4


@pytest.mark.parametrize("gpu_gib", [24.0, 80.0, H200])
def test_the_grid_turns_every_switch_and_has_points_around_the_gpus_memory(gpu_gib: float) -> None:
    """At least 24 of them, one model's after the other; some run out of memory, by a small
    margin.
    """
    points = grid(gpu_gib)
    assert len(set(points)) == len(points) >= 24
    for name in ("checkpoints", "lora", "kl"):
        assert {getattr(point, name) for point in points} == {True, False}
    changes = sum(one.model != other.model for one, other in pairwise(points))
    assert changes == len({point.model for point in points}) - 1 >= 6
    shares = [estimate_gib(point) / gpu_gib for point in points]
    assert sum(1 < share < 1.6 for share in shares) >= 3
    assert sum(0.8 < share < 0.95 for share in shares) >= 2


def test_the_grid_is_done_in_three_pieces_of_ten_minutes() -> None:
    """On an H200."""
    assert sum(map(expected_seconds, grid(H200))) < 25 * 60


@pytest.mark.parametrize(
    ("off", "close"), [(1.0, True), (1.14, True), (0.86, True), (1.2, False), (0.8, False)]
)
def test_an_estimate_is_close_within_fifteen_per_cent(off: float, close: bool) -> None:
    """Of what was reserved, in both directions."""
    assert Outcome(POINT, estimate_gib(POINT) / off).is_close() == close


def test_a_point_that_ran_out_was_called_safe_only_if_the_estimate_fits() -> None:
    """This is the mistake that must not happen."""
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


def test_a_later_call_continues_from_what_this_gpu_has_measured(tmp_path: Path) -> None:
    """Neither errors nor another GPU's figures count."""
    found = Outcome(POINT, 3.0)
    lines = [
        ("H200", found),
        ("H200", Outcome(POINT, None, error="killed")),
        ("T4", Outcome(POINT, 5.0)),
    ]
    path = tmp_path / "grid.jsonl"
    write_lines(path, ({"gpu": gpu, **asdict(outcome)} for (gpu, outcome) in lines))
    assert read_outcomes(path, "H200") == [found]
    assert read_outcomes(tmp_path / "none.jsonl", "H200") == []


@pytest.mark.parametrize(
    ("outcomes", "wanted", "code", "says"),
    [
        (
            [Outcome(POINT, estimate_gib(POINT))],
            1,
            0,
            "1 of 1 points measured; 1 of 1 estimates within 15%; 0 ran out",
        ),
        ([Outcome(POINT, estimate_gib(POINT))], 2, 1, "1 of 2 points measured"),
        ([Outcome(POINT, 2 * estimate_gib(POINT))], 1, 1, "0 of 1 estimates"),
        ([Outcome(POINT, None, ran_out=True)], 1, 1, "1 ran out of memory, 1 of them called safe"),
    ],
)
def test_the_comparison_prints_whether_it_holds(
    printed: Printed, outcomes: list[Outcome], wanted: int, code: int, says: str
) -> None:
    """The exit code is 0 only if all of it holds."""
    assert compare(outcomes, wanted, "H200", H200) == code
    assert says in printed()


@pytest.mark.slow
def test_a_process_waits_for_its_point_and_reports_why_it_cannot_measure(tmp_path: Path) -> None:
    """As the grid starts it; without a GPU that is an error of the run."""
    outcome = gpu_grid.Worker().run(POINT, tmp_path)
    assert outcome == Outcome(POINT, None, error="no GPU is visible to torch")


@pytest.mark.slow
@pytest.mark.parametrize("generates", [False, True])
def test_a_point_is_measured_by_real_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, generates: bool
) -> None:
    """The code that a GPU runs, on a CPU: a model of two layers, with KL and adapters; torch
    reserves no GPU memory.
    """
    monkeypatch.setitem(
        gpu_point.known_models(), "two layers", Architecture(2, 32, 64, 4, 2, 8, 64, True, "qwen2")
    )
    monkeypatch.setattr(gpu_point, "PROMPT", 4)
    for lora in (False, True):
        found = gpu_point.measure(Point("two layers", 8, 4, True, lora, True, generates), tmp_path)
        assert found == {"reserved_gib": 0.0, "allocated_gib": 0.0, "ran_out": False}
