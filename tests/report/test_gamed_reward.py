"""A reward that can be gamed, on the tiny model: plain ranking picks the degenerate trial, and the
report says so.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from support import environment

# three real trainings
pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gamed_reward.py"


@pytest.mark.thorough
def test_the_trial_that_games_its_reward_wins_and_is_told(tmp_path: Path) -> None:
    """Its completions are a few templates and hardly ever right; the honest trials have no
    warning.
    """
    command = [sys.executable, str(SCRIPT), "--steps", "80", "--output", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True, timeout=900
    )
    first, *others = [
        line.strip("| ").split(" | ")
        for line in done.stdout.splitlines()
        if line.startswith("| 0.")
    ]
    assert len(others) == 2
    # right answers
    assert float(first[2]) < 0.2 < min(float(row[2]) for row in others)
    assert "samples are one template" in first[5]
    assert [row[5] for row in others] == ["nothing", "nothing"]
    assert "before training:" in done.stdout
