"""What `make gpu` measured: the tables are those of the lines that are kept, and each part says
what it lacks.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from support import PROJECT

sys.path.insert(0, str(PROJECT / "benchmarks" / "gpu"))
import gpu_report

from support import write_lines

HERE = PROJECT / "benchmarks" / "gpu"


def test_the_results_are_those_of_the_lines_that_are_kept() -> None:
    """A table that was edited, or a line without its table, is noticed."""
    assert (
        gpu_report.render(gpu_report.RESULTS, gpu_report.GRID) == (HERE / "RESULTS.md").read_text()
    )
    assert gpu_report.draw_recorded(gpu_report.RESULTS) == gpu_report.PICTURE.read_text()


def test_lines_that_are_reported_twice_are_kept_once(tmp_path: Path) -> None:
    """Those of another card are kept as well."""
    first = tmp_path / "first"
    kept = tmp_path / "kept"
    first.write_text('{"card": "A"}\n{"card": "B"}\n')
    for _ in range(2):
        gpu_report.add(first, kept)
    assert kept.read_text() == first.read_text()


def test_a_card_is_told_its_failed_tests_and_its_fastest_way_to_share(tmp_path: Path) -> None:
    """One heading for each part that was measured."""
    lines = [
        {
            "part": "tests",
            "card": "A",
            "test": "x",
            "outcome": "failed",
            "seconds": 1.0,
            "why": "two\nlines",
        },
        {
            "part": "packing",
            "card": "A",
            "trials": 8,
            "mps": True,
            "step_seconds": 0.8,
            "seconds_a_trial_step": 0.1,
        },
    ]
    write_lines(tmp_path / "results", lines)
    text = gpu_report.render(tmp_path / "results", tmp_path / "none")
    assert "0 passed, 1 failed, 0 were skipped." in text
    assert "| `x` | failed: two lines | 1 |" in text
    assert "| 8 | yes | 0.80 | 0.10 |" in text
    assert "### Memory" not in text


@pytest.mark.slow
def test_without_a_gpu_the_command_says_what_does_not_need_one() -> None:
    """In one message."""
    command = [sys.executable, str(HERE / "run.py"), "model"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 2
    assert (
        "no GPU is visible to torch. --rehearsal does all of it in small on a CPU." in done.stderr
    )
