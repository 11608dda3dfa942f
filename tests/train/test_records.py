"""The files an attempt writes and reads: rewound metrics, torn lines, the controller's word, the
objective.
"""

import math
import os
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import read_json
from grposweep.schema import Search
from grposweep.train.records import (
    ControlFile,
    HeartbeatFile,
    MetricsFile,
    Objective,
    check_objective,
    find_objective,
)

from .conftest import control


def test_a_resume_drops_later_steps_and_torn_lines(tmp_path: Path) -> None:
    """What lies after the checkpoint is about to happen again."""
    metrics = MetricsFile(tmp_path, attempt=0)
    for step in range(5):
        metrics.write("train", step, 8 * step, {"reward": 0.5})
    with metrics.path.open("a") as file:
        file.write('{"step": 2, "rew')
    metrics.rewind(2)
    assert [line["step"] for line in metrics.lines()] == [0, 1, 2]
    metrics.rewind(None)
    assert metrics.path.read_text() == ""


def test_what_is_no_number_is_null_on_disk(tmp_path: Path) -> None:
    """NaN is no JSON, and other readers than Python's refuse it."""
    metrics = MetricsFile(tmp_path, attempt=0)
    metrics.write("train", 1, 8, {"kl": math.nan, "grad_norm": math.inf, "loss": 0.5})
    line = metrics.lines()[0]
    assert (line["kl"], line["grad_norm"], line["loss"]) == (None, None, 0.5)


@pytest.mark.parametrize(
    ("action", "until", "step", "stops"),
    [
        ("run", None, 5, False),
        ("run", 6, 5, False),
        ("run", 5, 5, True),
        ("pause", None, 1, True),
        ("prune", 6, 5, False),
        ("stop", 5, 7, True),
    ],
)
def test_the_controllers_word(
    tmp_path: Path, action: str, until: int | None, step: int, stops: bool
) -> None:
    """Run lets continue up to its step; the others end from their step on."""
    control(tmp_path, action, until_step=until)
    assert ControlFile(tmp_path).asks_to_stop(step) is stops


def test_a_changed_word_is_heard_and_no_word_means_continue(tmp_path: Path) -> None:
    """Even when the file system's clock did not move."""
    word = ControlFile(tmp_path)
    assert not word.asks_to_stop(1)
    for action, stops in (("stop", True), ("run", False), ("prune", True)):
        control(tmp_path, action)
        # three writes within one tick of the file system's clock
        os.utime(tmp_path / "control.json", ns=(0, 0))
        assert word.asks_to_stop(1) is stops


def test_heartbeats_are_written_at_most_once_a_second(tmp_path: Path) -> None:
    """Steps may take milliseconds, and the folder may be on NFS."""
    heartbeat = HeartbeatFile(tmp_path, total=100)
    for step in range(50):
        heartbeat.beat(step)
    assert read_json(heartbeat.path) == {"step": 0, "total": 100, "counter": 1}
    heartbeat.beat(50, force=True)
    assert read_json(heartbeat.path) == {"step": 50, "total": 100, "counter": 51}


def test_two_processes_may_beat_at_once(tmp_path: Path) -> None:
    """A program's watcher and our callback inside the program do, at its start."""
    other = os.fork()
    heartbeat = HeartbeatFile(tmp_path, total=100, writer="attempt" if other else "callback")
    try:
        for step in range(300):
            heartbeat.beat(step, force=True)
    finally:
        if other == 0:
            os._exit(0 if heartbeat.counter == 300 and heartbeat.path.exists() else 1)
    assert os.waitpid(other, 0)[1] == 0


def test_the_objective_is_the_mean_of_the_last_evaluations() -> None:
    """Fewer than asked for are taken as they are; none is none."""
    lines = [
        {"step": s, "eval_reward": r, "eval_reward_se": 0.1}
        for s, r in ((0, 0.1), (2, 0.5), (4, 0.7))
    ]
    assert find_objective(lines, Search(metric="eval_reward", last=2)) == Objective(
        pytest.approx(0.6), pytest.approx(0.1), 0.1, 0.1, evaluated=[2, 4]
    )
    assert find_objective([], Search(metric="eval_reward", last=1)).objective is None


def test_a_diverged_training_is_no_objective() -> None:
    """It fails by name instead of winning as NaN."""
    lines = [{"step": 4, "eval_reward": None, "eval_reward_se": None}]
    with pytest.raises(FloatingPointError, match="diverged"):
        check_objective(
            lines, "eval_reward", find_objective(lines, Search(metric="eval_reward", last=1))
        )


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("accuracy", "metrics are eval_reward, loss"),
        ("eval_rewrd", r"Did you mean eval_reward\? Set search\.metric=eval_reward"),
    ],
)
def test_a_missing_metric_is_answered_with_the_nearest_or_those_there_are(
    metric: str, said: str
) -> None:
    """Times are no candidates."""
    lines = [{"step": 4, "time": 1.0, "loss": 0.5, "eval_reward": 0.5}]
    with pytest.raises(UserError, match=said):
        check_objective(lines, metric, find_objective(lines, Search(metric=metric, last=1)))


def test_a_program_that_reported_nothing_is_told_where_its_metrics_come_from() -> None:
    """There is none of them to choose."""
    with pytest.raises(UserError, match=r"reported no metric.*save_strategy: steps") as raised:
        check_objective([], "reward", find_objective([], Search(metric="reward", last=1)))
    assert "one of them" not in str(raised.value)
