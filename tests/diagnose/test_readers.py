"""Logs of all formats are read into the same metrics. Damaged ones give the readable metrics, or
one message.
"""

import json
from pathlib import Path

import pytest

from grporecipe.diagnose._log import Log
from grporecipe.diagnose.readers import read_log
from grporecipe.errors import UserError

from .made import TEXTS, console, events, run, state, wandb, write

ROWS = run(40)


@pytest.mark.parametrize("name", TEXTS)
def test_every_format_gives_the_same_rewards(name: str, tmp_path: Path) -> None:
    """The log of every framework has the steps, rewards and lengths of the training."""
    log = read_log(write(tmp_path, name, ROWS))
    for ours, theirs in (
        ("reward", "reward"),
        ("length", "completions/mean_length"),
        ("entropy", "entropy"),
        ("kl", "kl"),
    ):
        expected = [(i, pytest.approx(row[theirs], rel=1e-3)) for i, row in enumerate(ROWS, 1)]
        assert log.series(ours) == expected, ours
    assert log.total == (400 if name in ("console", "state", "swift") else None)


PRIME_RL = {
    "Step 3 |    2s | Reward 0.25 | Turns 1.0 | Truncation 25.0%": {"reward", "truncated"},
    "Step 3 | Time: 2s | Reward: 0.25 | Seq. Length: 0.25 tokens/sample": {"reward", "length"},
    "Step 3 | 2s | Loss 0.25 | Mismatch KL 0.25 | MFU 1%": {"loss", "mismatch_kl"},
}


@pytest.mark.parametrize("line", PRIME_RL)
def test_the_console_of_prime_rl_is_read(line: str, tmp_path: Path) -> None:
    """Of the orchestrator, today's and an older one, and of the trainer; not its micro-steps."""
    path = tmp_path / "log"
    path.write_text(f"10:00 DEBUG Micro Step 1/4 | Loss 1.0\n\x1b[32m10:00\x1b[0m SUCCESS {line}\n")
    assert read_log(path).rows == {3: dict.fromkeys(PRIME_RL[line], 0.25)}


def test_tensorboard_events_are_read_without_tensorboard(tmp_path: Path) -> None:
    """The file in a run's folder is found, and its incomplete end is ignored."""
    (tmp_path / "events.out.tfevents.1.node.2.0").write_bytes(events(ROWS)[:-30])
    log = read_log(tmp_path)
    assert log.format == "TensorBoard events"
    assert log.values("reward") == pytest.approx([row["reward"] for row in ROWS], rel=1e-5)


def test_an_offline_run_of_wandb_is_read_without_wandb(tmp_path: Path) -> None:
    """Records cross the borders of blocks, and the last one may be incomplete."""
    (tmp_path / "offline-run-1").mkdir()
    (tmp_path / "offline-run-1" / "run-1.wandb").write_bytes(wandb(ROWS)[:-30])
    log = read_log(tmp_path)
    assert log.format == "W&B offline run"
    assert log.series("reward") == [(i, row["reward"]) for i, row in enumerate(ROWS[:-1], 1)]


def test_lines_of_a_finished_console_are_spread_over_its_steps(tmp_path: Path) -> None:
    """With logging_steps=10 and the progress bars in another file."""
    path = tmp_path / "log"
    path.write_text("\n".join(line.rpartition("]")[2] for line in console(ROWS).split("\n")))
    log = read_log(path)
    assert (log.steps[:2], log.end, log.total) == ([10, 20], 400, 400)


def test_a_later_line_of_a_step_wins(tmp_path: Path) -> None:
    """An attempt that resumed from a checkpoint logs steps again."""
    log = Log.build(
        "x",
        "x",
        [{"step": 1, "reward": 0.0}, {"step": 2, "reward": 9.0}, {"step": 2, "reward": 1.0}],
    )
    assert log.series("reward") == [(1, 0.0), (2, 1.0)]


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    """Half a last line, bytes that are no text and deep nesting do not hide the other lines."""
    path = write(tmp_path, "swift", ROWS)
    path.write_bytes(
        path.read_bytes() + b"\xff\x00\n{" + b'"a":[' * 100_000 + b'\n{"reward": 0.5, "gl'
    )
    log = read_log(path)
    assert (len(log.rows), log.skipped) == (40, 2)


def test_an_incomplete_checkpoint_is_read_up_to_its_end(tmp_path: Path) -> None:
    """trainer_state.json without its end."""
    path = tmp_path / "trainer_state.json"
    path.write_text(state(ROWS)[:-100])
    assert len(read_log(path).rows) == 39


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no line has metrics of a training"),
        ("[" * 100_000, "no line has metrics of a training"),
        ("{'a" * 100_000, "no line has metrics of a training"),
        ("hello\n" * 10, "no line has metrics of a training"),
        (json.dumps({"log_history": [{"step": 1, "loss": 2.0}]}), "it has no reward"),
        (":W&B" + "x" * 100, "no line has metrics of a training"),
    ],
)
def test_a_file_that_is_no_grpo_log_gets_one_message(
    content: str, said: str, tmp_path: Path
) -> None:
    """There is no traceback, and the message lists the supported logs."""
    path = tmp_path / "log"
    path.write_text(content)
    with pytest.raises(UserError, match=said):
        read_log(path)


def test_a_folder_without_a_log_and_a_missing_file_get_one_message(tmp_path: Path) -> None:
    """A name that no file can have gets one too."""
    for path in (tmp_path, tmp_path / "none.log"):
        with pytest.raises(UserError, match=r"no training log|cannot be read"):
            read_log(path)


def test_a_rate_that_verl_rounded_to_zero_is_unknown(tmp_path: Path) -> None:
    """verl's console printed three decimals, too few for a learning rate."""
    path = tmp_path / "log"
    path.write_text(
        "".join(f"step:{i} - actor/lr:0.000 - critic/score/mean:0.1\n" for i in range(9))
    )
    assert not read_log(path).has("learning_rate")
