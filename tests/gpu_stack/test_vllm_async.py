"""AsyncGRPOTrainer for real: it trains on a CPU while a vLLM server samples, whose weights it sends after optimizer steps."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grporecipe.errors import ExitCode
from grporecipe.files import append_line
from grposweep.launchers.local import Local
from grposweep.process import SOURCE
from train.conftest import MakeTrial, metrics_of, result_of

from .conftest import PATCHES, SECONDS, SERVED, SERVER_SECONDS, STEPS, Ranks, left_after, log_of
from .test_sharded_training import ADAPTERS

pytestmark = pytest.mark.gpu_stack

ASYNC = ("trainer.kind=async_trl", "loss.loss_type=bnpo")
# The mean ratio of probabilities between trainer and server is 1, and their KL 0, up to float32's rounding: 5e-7 and 2e-8
# were measured in sync, 1e-1 to 5e-1 for weights of a few steps before.
ROUNDING = 1e-5
KINDS = {"all weights": (), "two micro-steps": ("batch.gradient_accumulation_steps=2",), "LoRA": ADAPTERS}


def steps_of(folder: Path) -> list[dict[str, float]]:
    """The metrics of each optimizer step."""
    return [line for line in metrics_of(folder) if line["kind"] == "train"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_staleness_every_step_trains_on_what_its_own_weights_sampled(
    make_trial: MakeTrial, ranks: Ranks, server: str, kind: str
) -> None:
    """In all twelve steps, while the weights change."""
    folder = make_trial(
        *SERVED, *ASYNC, *KINDS[kind], f"generation.vllm_server_base_url={server}", "trainer.max_staleness=0"
    )
    assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    steps = steps_of(folder)
    print(kind, [(step["ratio"], step["sampling/kl"]) for step in steps])
    assert len(steps) == STEPS
    assert max(abs(step["ratio"] - 1) for step in steps) < ROUNDING
    assert max(abs(step["sampling/kl"]) for step in steps) < ROUNDING
    assert all(step["update_size"] > 0 for step in steps)


def test_weights_that_are_never_sent_are_seen(make_trial: MakeTrial, ranks: Ranks, server: str) -> None:
    """The negative control: the server keeps its weights, and the ratio departs from 1."""
    folder = make_trial(*SERVED, *ASYNC, f"generation.vllm_server_base_url={server}", "trainer.max_staleness=0")
    ranks.train(folder)  # the server's weights are the last trial's: these are the same, from the first step on
    other = make_trial(
        *SERVED, *ASYNC, f"generation.vllm_server_base_url={server}", "trainer.max_staleness=0", name="0001-b"
    )
    assert ranks.train(other, GPU_STACK_NO_SYNC="1") == ExitCode.FINISHED, log_of(other)
    print([step["sampling/kl"] for step in steps_of(other)])
    assert max(abs(step["ratio"] - 1) for step in steps_of(other)) > 1000 * ROUNDING


def test_no_completion_is_older_than_allowed(make_trial: MakeTrial, ranks: Ranks, server: str) -> None:
    """Weights are sent after every second optimizer step; evaluations and the objective are there."""
    folder = make_trial(
        *SERVED,
        *ASYNC,
        f"generation.vllm_server_base_url={server}",
        "trainer.max_staleness=2",
        "trainer.weight_sync_steps=2",
    )
    assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    ages = [step["sample/staleness_max"] for step in steps_of(folder)]
    print(ages)
    assert 0 < max(ages) <= 2
    evaluations = [line["step"] for line in metrics_of(folder) if line["kind"] == "eval"]
    assert evaluations == [0, STEPS // 2, STEPS]
    assert 0 < result_of(folder)["objective"] <= 1
    assert (folder / "model" / "model.safetensors").is_file()


def test_a_trial_samples_from_its_own_server(make_trial: MakeTrial, ranks: Ranks) -> None:
    """On one of two GPUs of this machine; these are names, and both train and sample on the CPU."""
    own = Ranks(Local(ranks.launcher.processes, ["0", "1"], slots=1))
    folder = make_trial(
        *SERVED,
        *ASYNC,
        "generation.vllm_gpus=1",
        f"generation.vllm_server_timeout={SERVER_SECONDS}",
        "trainer.max_staleness=0",
    )
    marked = {"GPU_STACK_MARK": str(folder), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    assert own.train(folder, **marked) == ExitCode.FINISHED, log_of(folder)
    assert max(abs(step["ratio"] - 1) for step in steps_of(folder)) < ROUNDING
    assert "Application startup complete" in (folder / "logs" / "vllm.log").read_text()
    assert not left_after(30, str(folder))


def test_a_killed_training_resumes_in_sync_and_leaves_no_process(
    make_trial: MakeTrial, ranks: Ranks, server: str
) -> None:
    """SIGKILL after the first checkpoint; the process that samples ends as well. The next attempt trains the other steps."""
    folder = make_trial(
        *SERVED, *ASYNC, f"generation.vllm_server_base_url={server}", "trainer.max_staleness=0",
        "schedule.max_steps=60", "schedule.checkpoints=12", "trainer.keep=last",
    )  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": f"{PATCHES}:{SOURCE}",
        "GPU_STACK_MARK": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "first.log").open("w") as log:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "grposweep.train", str(folder)], env=environment, stdout=log, stderr=log
        )
        until = time.monotonic() + SECONDS
        while len(steps_of(folder) if (folder / "metrics.jsonl").exists() else []) < 12:
            assert trainer.poll() is None, (folder / "first.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    assert not left_after(30, str(folder))
    reached = max(int(path.name.rpartition("-")[2]) for path in (folder / "checkpoints").glob("checkpoint-*"))
    assert 5 <= reached < 60
    append_line(folder / "attempts.jsonl", {"attempt": 1})
    assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    steps = steps_of(folder)
    assert [step["step"] for step in steps] == list(range(1, 61))
    assert [step["attempt"] for step in steps] == [0] * reached + [1] * (60 - reached)
    assert max(abs(step["ratio"] - 1) for step in steps) < ROUNDING
