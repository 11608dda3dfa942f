"""A sweep in a notebook: ``load_sweep`` and ``export --history``."""

import csv
import io
from pathlib import Path

import pytest

from grposweep import load_sweep
from grposweep.errors import UserError
from made import Made, make_sweep

from .conftest import Commands

pytest.importorskip("pandas", reason="pandas is not installed")


def test_trials_are_a_data_frame_with_parameters_and_objectives(commands: Commands) -> None:
    """Indexed by number; the best row is the best trial."""
    make_sweep(Path("outputs/s"), Made(trials=12))
    sweep = load_sweep("s")
    assert list(sweep.trials.index) == list(range(12))
    assert {"state", "lr", "batch", "objective", "gpu_hours"} <= set(sweep.trials.columns)
    best = sweep.best
    assert best is not None
    assert sweep.trials.loc[best["trial"], "objective"] == sweep.trials["objective"].max()
    assert "12 trials" in repr(sweep)


def test_the_history_has_every_logged_number(commands: Commands) -> None:
    """The same rows from Python and from the command."""
    make_sweep(Path("outputs/s"), Made(trials=3))
    history = load_sweep("s").history
    curve = history[(history.trial == 0) & (history.metric == "eval_reward")]
    assert curve.step.is_monotonic_increasing
    assert len(curve) == 11  # before training, and ten evaluations
    rows = list(csv.DictReader(io.StringIO(commands("export", "--history").out)))
    assert len(rows) == len(history)
    assert list(rows[0]) == list(history.columns)


def test_an_empty_sweep_and_one_that_is_not_there(commands: Commands) -> None:
    """No rows, and one message."""
    make_sweep(Path("outputs/s"), Made(trials=0))
    assert load_sweep("s").history.empty
    assert load_sweep("s").best is None
    with pytest.raises(UserError, match="nothing"):
        load_sweep("nothing")
