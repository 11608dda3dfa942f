"""Attempts as launchers start them: fresh processes, several ranks, a fork of a warm one; and what
the tiny model learns.
"""

import os
import re
import socket
from pathlib import Path

import pytest

from command_server import start_forked
from grposweep.storage.folders import cache_folder

from .conftest import MakeTrial, metrics_of, result_of
from .test_fake import environment

# torch and real training: the default tier is for seconds
pytestmark = pytest.mark.slow


@pytest.fixture
def here(cool_tiny: None) -> dict[str, str]:
    """An environment whose cache already holds the real recipe's name, so that a process need not
    warm-start it.
    """
    from grposweep.train import _tiny as tiny

    full = {**tiny.RECIPE, "steps": 700}
    cool = tiny.tiny_folder()
    tiny_recipe = dict(tiny.RECIPE)
    tiny.RECIPE.update(full)
    target = cache_folder() / f"tiny-{tiny.recipe_hash()}"
    tiny.RECIPE.update(tiny_recipe)
    if not target.exists():
        target.symlink_to(cool)
    return environment()


def test_two_ranks_train_together_and_count_each_held_out_prompt_once(
    make_trial: MakeTrial, here: dict[str, str]
) -> None:
    """Accelerate fills the last evaluation batch up with prompts of the first."""
    folder = make_trial(
        "cluster.processes=2",
        "batch.per_device_train_batch_size=4",
        "batch.per_device_eval_batch_size=8",
        # the last batch of 4 prompts is filled up
        "task.eval_prompts=5",
        "trainer.keep=last",
    )
    assert start_ranks(folder, here) == [0, 0]
    lines = metrics_of(folder)
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3, 4]
    assert lines[-1]["completions"] == 32
    # 5 prompts of 4 completions: a mean of 20 rewards in steps of 1/40, however the last batch is
    # filled
    assert lines[-1]["eval_reward"] * 20 * 40 == pytest.approx(
        round(lines[-1]["eval_reward"] * 20 * 40)
    )
    assert (folder / result_of(folder)["checkpoint"] / "rng_state_1.pth").is_file()


def test_two_ranks_stop_at_the_same_step_and_continue_bit_for_bit(
    make_trial: MakeTrial, here: dict[str, str]
) -> None:
    """Only rank 0 reads the controller's word; all leave the loop together, and rank 0 alone says
    that it was stopped.
    """
    ranks = ("cluster.processes=2", "batch.per_device_train_batch_size=4")
    stopped = make_trial(*ranks)
    straight = make_trial(*ranks, name="0001-b")
    (stopped / "control.json").write_text('{"action": "pause", "until_step": 2}')
    # srun ends a step at its first exit code that is not 0
    assert start_ranks(stopped, here) == [3, 0]
    assert result_of(stopped)["step"] == 2
    (stopped / "control.json").unlink()
    again = {**here, "GRPOSWEEP_ATTEMPT": "1"}
    assert start_ranks(stopped, again) == start_ranks(straight, here) == [0, 0]
    assert metrics_of(stopped, timeless=True) == metrics_of(straight, timeless=True)


def start_ranks(folder: Path, env: dict[str, str]) -> list[int]:
    """Two ranks with torchrun's variables; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torchrun = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = ["-m", "grposweep.train", str(folder)]
    ranks = [
        start_forked(command, {**env, **torchrun, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (0, 1)
    ]
    return [wait() for wait in ranks]


@pytest.mark.thorough
def test_the_tiny_model_learns_and_the_learning_rate_decides_how_much(
    make_trial: MakeTrial,
) -> None:
    """The promise behind the demo; with the user's own cache, for the model takes seconds to
    make.
    """
    rewards = {}
    for number, lr in enumerate(("1e-5", "3e-4", "3e-3")):
        folder = make_trial(
            *(
                f"lr={lr}",
                "task.rewards=[exact]",
                "task.eval_prompts=256",
                "batch.num_generations=8",
            ),
            *(
                "batch.per_device_train_batch_size=64",
                "schedule.max_steps=100",
                "schedule.evaluations=1",
            ),
            name=f"000{number}-x",
        )
        assert (
            start_forked(["-m", "grposweep.train", str(folder)], {**environment(), **own_cache()})()
            == 0
        )
        result = result_of(folder)
        assert 0.25 < result["start"] < 0.4
        rewards[lr] = result["objective"] - result["start"]
    assert rewards["3e-4"] > 0.3
    assert max(rewards["1e-5"], rewards["3e-3"]) < 0.15


def own_cache() -> dict[str, str]:
    """Not the cool model's cache, which other tests of this session may have set."""
    return {
        "GRPOSWEEP_CACHE": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
        + "/grposweep"
    }


HANGS = """
import os, sys, time
sys.path.insert(0, os.path.dirname(__file__))
from dense import dense
calls = [0]
def hangs(prompts, completions, answer):
    calls[0] += 1
    if os.environ["RANK"] == "1" and calls[0] > 3:  # one evaluation, then training
        time.sleep(600)
    return dense(completions, answer)
"""


def test_two_ranks_that_hang_are_ended_and_each_log_says_how_to_look_at_its_process(
    make_trial: MakeTrial, here: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A reward sleeps on rank 1; rank 0 waits for its numbers in a collective. The watchdog ends
    both.
    """
    (tmp_path / "hangs.py").write_text(HANGS)
    (tmp_path / "dense.py").write_text(Path(__file__).with_name("dense.py").read_text())
    folder = make_trial(
        "cluster.processes=2",
        "batch.per_device_train_batch_size=4",
        f"task.rewards=[{tmp_path / 'hangs.py'}:hangs]",
        "cluster.stall_min=0.2",
    )
    assert start_ranks(folder, here) == [1, 1]
    log = capfd.readouterr().err
    named = re.findall(
        r"rank (\d) on \S+ is process (\d+)\. If it is silent: py-spy dump --pid \2$",
        log,
        re.MULTILINE,
    )
    assert sorted(rank for rank, _ in named) == ["0", "1"]
    assert "hangs.py" in log
