"""A sweep in a notebook: ``load_sweep`` and ``export --history``."""

import csv
import io
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grposweep import load_sweep
from made import CLIPS, LENGTHS

from .conftest import Commands, write_sweep

pytest.importorskip("pandas", reason="pandas is not installed")


def test_trials_are_a_data_frame_with_parameters_and_objectives(commands: Commands) -> None:
    """Indexed by number; the best row is the best trial."""
    write_sweep(trials=12)
    sweep = load_sweep("s")
    assert list(sweep.trials.index) == list(range(12))
    assert {"state", "lr", "batch", "objective", "gpu_hours"} <= set(sweep.trials.columns)
    best = sweep.best
    assert best is not None
    assert sweep.trials.loc[best["trial"], "objective"] == sweep.trials["objective"].max()
    assert "12 trials" in repr(sweep)


def test_the_history_has_every_logged_number(commands: Commands) -> None:
    """The same rows from Python and from the command."""
    write_sweep(trials=3)
    history = load_sweep("s").history
    curve = history[(history.trial == 0) & (history.metric == "eval_reward")]
    assert curve.step.is_monotonic_increasing
    # before training, and ten evaluations
    assert len(curve) == 11
    rows = list(csv.DictReader(io.StringIO(commands("export", "--history").out)))
    assert len(rows) == len(history)
    assert list(rows[0]) == list(history.columns)


def test_the_history_has_metrics_alone(commands: Commands) -> None:
    """The fields that say where a line belongs (version, attempt, time) are none."""
    write_sweep(trials=1)
    both = {*CLIPS, *LENGTHS, "kl", "loss", "reward", "reward_std"}
    sizes = {
        "learning_rate",
        "epoch",
        "completions/mean_length",
        "frac_reward_zero_std",
        "step_time",
    }
    trained = {"entropy", "grad_norm", *sizes}
    evaluated = {"eval_reward_se", *(f"eval_{name}" for name in both)}
    assert set(load_sweep("s").history.metric) == both | trained | evaluated


def test_a_trials_row_has_the_last_value_of_each_metric(commands: Commands) -> None:
    """After the columns of the trial, by name; trials.step and the parameters keep theirs."""
    write_sweep(trials=3)
    sweep = load_sweep("s")
    columns = list(sweep.trials.columns)
    metrics = columns[columns.index("failure") + 1 :]
    assert metrics == sorted(set(sweep.history.metric))
    of_one = sweep.history[(sweep.history.trial == 1) & (sweep.history.metric == "kl")]
    assert sweep.trials.loc[1, "kl"] == of_one.value.iloc[-1]
    header = next(csv.reader(io.StringIO(commands("export").out)))
    assert header == ["trial", *columns]


def test_a_metric_with_the_name_of_a_column_is_only_in_the_history(commands: Commands) -> None:
    """A trainer may log ``seconds``; the trial's column stays what it is."""
    write_sweep(trials=1)
    with next(Path("outputs/s/trials").glob("0000-*")).joinpath("metrics.jsonl").open("a") as file:
        file.write('{"step": 900, "seconds": -1.0, "epoch": 9.0}\n')
    sweep = load_sweep("s")
    assert sweep.trials.loc[0, "seconds"] > 0
    assert sweep.trials.loc[0, "epoch"] == 9.0
    assert "seconds" in set(sweep.history.metric)


def test_an_empty_sweep_and_one_that_is_not_there(commands: Commands) -> None:
    """No rows, and one message."""
    write_sweep(trials=0)
    assert load_sweep("s").history.empty
    assert load_sweep("s").best is None
    with pytest.raises(UserError, match="nothing"):
        load_sweep("nothing")
