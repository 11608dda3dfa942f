"""Curves as metrics.jsonl tells them, read a tail at a time."""

import math
from pathlib import Path

import pytest

from grposweep.search.early_stopping import State
from grposweep.sweep._early_stopping import CurveReader, whole_completions
from grposweep.train.records import MetricsFile


@pytest.fixture
def metrics(tmp_path: Path) -> MetricsFile:
    """A trial's file, with the evaluation before training."""
    metrics = MetricsFile(tmp_path, 0)
    metrics.write("eval", 0, 0, {"eval_reward": 0.2, "eval_reward_se": 0.02})
    return metrics


@pytest.fixture
def reader(metrics: MetricsFile) -> CurveReader:
    """A reader of it that has read nothing yet."""
    return CurveReader(metrics.path, "eval_reward")


def train(metrics: MetricsFile, step: int, **values: float) -> None:
    """Two training steps of eight completions, and an evaluation."""
    for at in (step - 1, step):
        metrics.write("train", at, 8 * at, {"reward": at / 10, "loss": 0.1, **values})
    metrics.write("eval", step, 8 * step, {"eval_reward": step / 10, "eval_reward_se": 0.01})


def test_an_evaluation_carries_the_means_of_the_training_steps_before_it(
    metrics: MetricsFile, reader: CurveReader
) -> None:
    """TRL's names become ours; what was not logged is unknown, and so is a mean with a number
    missing.
    """
    train(metrics, 2, **{"frac_reward_zero_std": 0.5, "kl": math.nan})
    train(metrics, 4)
    assert reader.update()
    curve = reader.curve(7, {"lr": 1e-3}, State.RUNNING, 80.0)
    assert (curve.start, curve.held_out, curve.errors) == (0.2, (0.2, 0.4), (0.01, 0.01))
    assert (curve.completions, curve.share) == ((16.0, 32.0), 0.4)
    assert curve.signals["train_reward"] == (pytest.approx(0.15), pytest.approx(0.35))
    assert (curve.signals["zero_std"], curve.signals["kl"]) == ((0.5, None), (None, None))
    assert curve.signals["broken"] == (0.0, 0.0)


def test_the_share_of_one_template_is_that_of_the_evaluation_itself(
    metrics: MetricsFile, reader: CurveReader
) -> None:
    """It is a measurement of held-out completions, not a mean over training steps."""
    for step, share in ((2, 0.1), (4, 0.8)):
        metrics.write("eval", step, 8 * step, {"eval_reward": 0.5, "template_share": share})
    reader.update()
    assert reader.curve(7, {}, State.RUNNING, 80.0).signals["templates"] == (0.1, 0.8)


def test_only_what_is_new_is_read(
    metrics: MetricsFile, reader: CurveReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a file that has not changed opens nothing; half a line waits for its end."""
    assert reader.update()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", None)
        assert not reader.update()
    with metrics.path.open("a") as file:
        file.write('{"kind": "eval", "step": 2, "comple')
    assert not reader.update()
    with metrics.path.open("a") as file:
        file.write('tions": 16, "eval_reward": 0.7}\n')
    reader.update()
    assert reader.held_out == [0.7]


def test_a_line_that_is_still_being_written_is_read_when_it_is_whole(
    metrics: MetricsFile, reader: CurveReader
) -> None:
    """Nothing of it is lost, also if it is the first line."""
    line = metrics.path.read_bytes()
    metrics.path.write_bytes(line[:-9])
    reader.update()
    assert reader.start is None
    with metrics.path.open("ab") as file:
        file.write(line[-9:])
    reader.update()
    assert reader.start == 0.2


def test_steps_that_an_attempt_takes_back_are_forgotten(
    metrics: MetricsFile, reader: CurveReader
) -> None:
    """Continuing from a checkpoint replaces the file."""
    train(metrics, 2)
    train(metrics, 4)
    reader.update()
    later = MetricsFile(metrics.folder, 1)
    later.rewind(2)
    reader.update()
    assert reader.steps == [2]
    train(later, 4)
    reader.update()
    assert (reader.steps, reader.attempts, reader.start) == ([2, 4], [0, 1], 0.2)


def test_the_curve_of_a_minimized_metric_is_negated(metrics: MetricsFile) -> None:
    """For its readers larger is better."""
    train(metrics, 2)
    reader = CurveReader(metrics.path, "eval_reward", sign=-1.0)
    reader.update()
    assert (reader.start, reader.held_out) == (-0.2, [-0.2])


def test_a_nan_loss_is_distinguished_from_one_that_is_not_logged(
    metrics: MetricsFile, reader: CurveReader
) -> None:
    """A program may log none."""
    train(metrics, 2, loss=math.nan)
    metrics.write("eval", 3, 24, {"eval_reward": 0.1})
    reader.update()
    assert reader.signals["broken"] == [1.0, None]


def test_the_heartbeat_gives_a_length_that_only_a_program_knows(tmp_path: Path) -> None:
    """In steps; completions follow from those made so far."""
    (tmp_path / "plan.json").write_text('{"total_completions": null}')
    assert whole_completions(tmp_path, 80.0, 10) is None
    (tmp_path / "heartbeat").write_text('{"step": 10, "total": 50}')
    assert whole_completions(tmp_path, 80.0, 10) == 400.0
    (tmp_path / "plan.json").write_text('{"total_completions": 640}')
    assert whole_completions(tmp_path, 80.0, 10) == 640.0
