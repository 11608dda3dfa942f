"""What only a GPU can show: real GRPO in bfloat16, a resume from its checkpoint, and how trials
share one.
"""

import math
import signal
import time
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from grporecipe.errors import UserError
from grporecipe.files import Json
from grposweep.config.compose import to_experiment
from grposweep.launchers.local import Local
from support import Run, Start, lines, trials

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
SHORT = [
    "model.dtype=bfloat16",
    "schedule.budget_completions=null",
    "schedule.max_steps=2",
    "schedule.evaluations=1",
    "task.eval_prompts=8",
    "batch=small",
    "name=gpu",
]


def steps(sweep: Path) -> list[Json]:
    """The training steps of a sweep's only trial."""
    (trial,) = trials(sweep)
    return [line for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]


def test_two_real_steps_in_bfloat16(run: Run, here: Path) -> None:
    """Finite losses, and GPU memory is what the peak counts."""
    ended = run(*SHORT, timeout=600)
    assert ended.code == 0, ended.out + ended.err
    found = steps(here / "outputs" / "gpu")
    assert [line["step"] for line in found] == [1, 2]
    assert all(math.isfinite(line["loss"]) and 0 < line["memory/peak"] < 4 for line in found)


def test_a_stopped_trial_continues_from_its_checkpoint(start: Start, run: Run, here: Path) -> None:
    """Ctrl-C stops it at a rollout boundary; the same command does the other steps, and none
    twice.
    """
    long = [*SHORT, "schedule.max_steps=60"]
    stopped = start(*long)
    deadline = time.monotonic() + 300
    while (
        not list(here.glob("outputs/gpu/trials/*/metrics.jsonl"))
        or len(steps(here / "outputs" / "gpu")) < 5
    ):
        assert stopped.poll() is None, stopped.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(timeout=300) == 130
    assert run(*long, timeout=600).code == 0
    found = steps(here / "outputs" / "gpu")
    assert [line["step"] for line in found] == list(range(1, 61))
    assert {line["attempt"] for line in found} == {0, 1}


def test_two_trials_take_turns_on_one_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot for any number of requested ones; the sweep prints how many run at once."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    ended = run("-m", *SHORT, "lr=1e-4,1e-3", "search.parallel=2", timeout=900)
    assert ended.code == 0
    assert "1 at once" in ended.out
    times = [
        [line["time"] for line in lines(trial / "metrics.jsonl")] for trial in trials(ended.sweep)
    ]
    earlier, later = sorted(times)
    assert max(earlier) < min(later)


def test_two_ranks_on_one_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to set instead."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    experiment = to_experiment(OmegaConf.from_dotlist(["cluster.processes=2"]))
    with pytest.raises(UserError, match="a trial needs a GPU per process, and this machine has 1"):
        Local.build(experiment, Path()).admit(experiment)
