"""Parameters that change the evaluation as well as the training: results and comparisons say so."""

from pathlib import Path

import pytest

from support import grposweep, run_in

pytestmark = pytest.mark.slow


def test_points_that_are_sampled_differently_are_not_compared_by_their_values_alone(
    tmp_path: Path,
) -> None:
    """At half the temperature the same model earns another reward before any training."""
    ended = run_in(
        tmp_path,
        "name=s",
        "batch=small",
        "schedule.budget_completions=160",
        "schedule.evaluations=1",
        "-m",
        "generation.temperature=0.5,1.0",
    )
    assert ended.code == 0, ended.err
    assert (
        "generation.temperature decides how a point is measured too: before training they had 0."
        in ended.out
    )
    assert "decides how a point is measured too" in grposweep(tmp_path, "best", "s").out
    said = " ".join(grposweep(tmp_path, "compare", "s", "0", "1").out.split())
    assert "They are measured differently (generation.temperature)" in said
    assert "paired over 256 prompts" in said
