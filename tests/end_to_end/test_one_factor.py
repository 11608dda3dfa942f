"""Sweeps of one factor at a time from the command line: with the fake trainer, and the stalled run
for real.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from grposweep.search.replication import estimate
from support import PROJECT, Run, grposweep, read, trials

FAKE = (
    "trainer=fake",
    "trainer.args.noise=0.02",
    "schedule=steps",
    "schedule.max_steps=4",
    "name=s",
    "search=one_factor",
)


def verdicts(sweep: Path) -> dict[tuple[str, Any], str]:
    """What effects.json says of each value."""
    found = json.loads((sweep / "effects.json").read_text())
    return {
        (effect["parameter"], effect["value"]): effect["verdict"] for effect in found["effects"]
    }


@pytest.mark.slow
def test_only_the_learning_rate_has_an_effect_on_the_fake_trainer(run: Run) -> None:
    """The baseline is 3e-4 without KL, which is not run twice; the best rate is 1e-3; KL does
    nothing there.
    """
    ended = run(
        *FAKE,
        "search.seeds=4",
        "-m",
        "lr=3e-5,1e-3",
        "kl=none,low",
        "batch.num_generations=choice(12)",
    )
    assert ended.code == 0, ended.err
    assert "1 of 6 points invalid" in ended.out
    assert "4 trials (one_factor), then up to 12 on fresh seeds" in ended.out
    assert verdicts(ended.sweep) == {
        ("lr", 3e-5): "worse",
        ("lr", 1e-3): "better",
        ("kl", "low"): "tied",
    }
    assert len(trials(ended.sweep)) == 4 * 4
    # a long invalid value makes the heading take two lines
    assert "effect ± 95 %, all" in ended.out
    assert "invalid" in ended.out
    # a comparison names no best: each value has its own verdict
    assert "first in rank: trial" in ended.out
    told = json.loads(grposweep(ended.sweep.parents[1], "status", "--json").out)["effects"]
    written = json.loads((ended.sweep / "effects.json").read_text())["effects"]
    assert [(e["trial"], e["effect"]) for e in told] == [
        (e["trial"], e["effect"]["mean"]) for e in written
    ]


@pytest.mark.slow
def test_a_grid_over_the_same_parameters_is_another_sweep(run: Run) -> None:
    """It has other points."""
    ended = run(*FAKE, "search.seeds=2", "-m", "lr=1e-3,2e-3")
    other = run(*FAKE, "search=grid", "-m", "lr=1e-3,2e-3")
    assert ended.code == 0
    assert other.code == 2
    assert "search.sampler=one_factor there, grid here" in other.err


def test_lint_names_the_three_causes_of_the_stalled_run() -> None:
    """Small batches, a timid learning rate, two KL settings that disagree."""
    ended = grposweep(PROJECT, "lint", "--framework-version", "0.2", "docs/stalled_easyr1.yaml")
    assert all(code in ended.out for code in ("GA201", "GA203", "GK310"))
    assert "0 errors, 3 warnings" in ended.out


@pytest.mark.thorough
def test_the_stalled_run_stalls_and_its_sweep_finds_the_way_out(run: Run) -> None:
    """Real training: the baseline gains nothing that its seeds could tell, a higher rate does and
    is told apart.
    """
    # The sweep file's other values, and its other batches and KL: `make thorough`.
    less = (
        ()
        if "GRPOSWEEP_THOROUGH" in os.environ
        else (
            "-m",
            "lr=choice(1e-4)",
            "batch.per_device_train_batch_size=choice(8)",
            "kl=choice(low)",
        )
    )
    ended = run("sweeps=stalled_run", "name=s", *less, timeout=1500)
    assert ended.code == 0, ended.err
    gains = [
        result["objective"] - result["start"]
        for folder in trials(ended.sweep)
        if not read(folder / "trial.json")["point"] and (result := read(folder / "result.json"))
    ]
    stalled = estimate(gains)
    assert stalled.count == 4
    assert stalled.low <= 0 <= stalled.high
    assert "better" in {
        verdict for (parameter, _), verdict in verdicts(ended.sweep).items() if parameter == "lr"
    }
