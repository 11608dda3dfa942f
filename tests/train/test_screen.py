"""Real screens of the tiny model, in this process: samples, interruption, and the prediction against TRL's own log."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grporecipe.errors import ExitCode
from grporecipe.files import append_line, write_text
from grposweep.config.identity import screen_key
from grposweep.screening.run import screening_experiment
from grposweep.screening.summary import Screen
from grposweep.storage import paths
from grposweep.storage.screens import ScreenRequest, read_samples
from grposweep.train import screen as screening
from grposweep.train.run import run_attempt

from .conftest import MakeTrial, build_experiment, control, metrics_of, result_of

# torch and real sampling: the default tier is for seconds
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cool_tiny", "own_threads")]

# Passes for some prompts only: the model's first character is the answer's, or the prompt is of those that never or always pass.
REWARD = """
def lucky(completions, answer, prompt_id, **_):
    kinds = zip(completions, answer, prompt_id)
    return [0.0 if i % 3 == 0 else 1.0 if i % 3 == 1 else float(text[:1] in "13579") for text, gold, i in kinds]
"""


@pytest.fixture
def reward(tmp_path: Path) -> str:
    """The override that sets the reward."""
    (tmp_path / "lucky.py").write_text(REWARD)
    return f"task.rewards=[{tmp_path}/lucky.py:lucky]"


def make_screen(folder: Path, *overrides: str, samples: int = 16) -> Path:
    """A folder of a screen as its asker writes it."""
    experiment = build_experiment(*overrides)
    folder = folder / f"{screen_key(experiment)}-{samples}"
    folder.mkdir(parents=True)
    ScreenRequest(samples).write(folder)
    content = OmegaConf.to_yaml(OmegaConf.structured(screening_experiment(experiment, samples)))
    write_text(folder / paths.CONFIG, content)
    append_line(folder / paths.ATTEMPTS, {"attempt": 0})
    return folder


def test_an_interrupted_screen_continues_and_ends_with_the_same_samples(
    tmp_path: Path, reward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is stopped after a portion, and a later portion of it is torn; each portion has its own random numbers."""
    monkeypatch.setattr(screening, "PORTION", 8)
    straight, disturbed = (make_screen(tmp_path / name, reward, "task.train_prompts=24", samples=4) for name in "ab")
    assert run_attempt(straight) == ExitCode.FINISHED
    control(disturbed, "stop", until_step=8)
    assert run_attempt(disturbed) == ExitCode.STOPPED
    assert result_of(disturbed)["step"] == len(read_samples(disturbed)) == 8
    (disturbed / paths.CONTROL).unlink()
    read_samples(straight)[10].append(disturbed)  # the ninth to sixteenth are sampled again
    append_line(disturbed / paths.ATTEMPTS, {"attempt": 1})
    assert run_attempt(disturbed) == ExitCode.FINISHED
    by_prompt = [{prompt.prompt: prompt for prompt in read_samples(folder)} for folder in (straight, disturbed)]
    assert by_prompt[0] == by_prompt[1]
    assert len(by_prompt[0]) == 24


def test_the_predicted_share_of_dead_groups_is_what_trl_logs(
    tmp_path: Path, reward: str, make_trial: MakeTrial
) -> None:
    """One pass over all prompts without learning: frac_reward_zero_std, within the interval and the noise of one pass."""
    task = (reward, "task.train_prompts=96")
    folder = make_screen(tmp_path / "screens", *task)
    assert run_attempt(folder) == ExitCode.FINISHED
    screen = Screen.read(folder)
    assert screen is not None
    assert screen.is_whole
    for group in (4, 8):
        words = (
            "lr=1e-12",
            f"batch.num_generations={group}",
            "batch.per_device_train_batch_size=32",
            "schedule.evaluations=0",
        )
        trial = make_trial(*task, *words, f"schedule.max_steps={96 * group // 32}", "schedule.eval_at_start=true",
                           name=f"000{group}-a")  # fmt: skip
        assert run_attempt(trial) == ExitCode.FINISHED
        logged = [line["frac_reward_zero_std"] for line in metrics_of(trial) if line["kind"] == "train"]
        dead, share = sum(logged) / len(logged), screen.share(group)
        noise = 2.6 * float((screen.rates.signals(group) * (1 - screen.rates.signals(group))).sum()) ** 0.5 / 96
        assert 1 - share.high - noise <= dead <= 1 - share.low + noise
        assert 0.5 < dead < 0.9  # two thirds never or always pass
        assert abs(share.mean - (1 - dead)) < 0.08


def test_a_trial_trains_on_the_prompts_that_the_filter_keeps(
    tmp_path: Path, reward: str, make_trial: MakeTrial
) -> None:
    """Its groups nearly all carry a signal from the first step on."""
    task = (reward, "task.train_prompts=48")
    folder = make_screen(tmp_path / "screens", *task)
    assert run_attempt(folder) == ExitCode.FINISHED
    screen = Screen.read(folder)
    record = None if screen is None else screen.pass_rates()
    assert record is not None
    kept = [*task, "task.keep_between=[0.1,0.9]", f"task.screen={record.digest}", "batch.num_generations=8"]
    trial = make_trial(*kept, "lr=1e-12", "schedule.evaluations=1")
    record.write(trial.parent.parent)
    assert run_attempt(trial) == ExitCode.FINISHED
    logged = [line["frac_reward_zero_std"] for line in metrics_of(trial) if line["kind"] == "train"]
    assert sum(logged) / len(logged) < 0.4
    record.write(tmp_path)
    assert {i % 3 for i in record.keep(0.1, 0.9)} == {2}
