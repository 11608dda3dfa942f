"""Sharded sweeps from the command line: Ctrl-C in the middle, and the same command continues from
the checkpoint.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grposweep.storage.provenance import TIMES
from grposweep.train._tiny import tiny_folder
from grposweep.train._trl_config import deepspeed_config
from support import RUN, environment, lines, read, trials, wait_for

from .conftest import PATCHES, log_of, wrapped

pytestmark = pytest.mark.gpu_stack
# that one command may take on busy cores
SECONDS = 400.0
TWO = (
    "cluster=local_ddp",
    "batch=auto",
    "schedule=steps",
    "schedule.max_steps=40",
    "schedule.evaluations=2",
)
SCRIPT = """
import os
from datasets import Dataset
from grposweep.command import Callback
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser


def near(completions, answer, **columns):
    return [(text == gold) - 0.1 * abs(len(text) - len(gold)) for text, gold in zip(completions, answer)]


if __name__ == "__main__":
    args, model = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 30) for b in range(10, 30)]
    trainer = GRPOTrainer(model=model.model_name_or_path, reward_funcs=near, args=args,
                          train_dataset=Dataset.from_list(rows), callbacks=[Callback()])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model(args.output_dir)
    trainer.accelerator.wait_for_everyone()
    os._exit(0)
"""
RECIPE = """model_name_or_path: tiny
output_dir: out
deepspeed: zero2.json
use_cpu: true
ddp_backend: gloo
bf16: false
report_to: none
num_generations: 8
per_device_train_batch_size: 16
max_completion_length: 4
learning_rate: 3.0e-4
max_steps: 30
logging_steps: 1
save_steps: 10
"""
OWN = (
    "trainer=command",
    "trainer.command='torchrun --standalone --nproc_per_node 2 train.py --config recipe.yaml'",
    "cluster.processes=2",
    "search.metric=reward",
)


class Commands:
    """``src/run.py`` in one folder, with the patches for CPU ranks."""

    def __init__(self, here: Path) -> None:
        self.here = here

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start one, for interrupting."""
        return subprocess.Popen(
            [sys.executable, str(RUN), *arguments],
            cwd=self.here,
            env=environment(PYTHONPATH=str(PATCHES)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A process started in the background inherits that Ctrl-C is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *arguments: str) -> Path:
        """Run one to its end; return the folder of its only trial."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, output
        return self.trial(arguments)

    def interrupt(self, *arguments: str, after: int) -> Path:
        """Run one and press Ctrl-C after some lines of metrics; return the folder of its only
        trial.
        """
        process = self.start(*arguments)
        try:
            wait_for(lambda: process.poll() is not None or self.logged(arguments) > after, SECONDS)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == 130, output
        return self.trial(arguments)

    def trial(self, arguments: tuple[str, ...]) -> Path:
        """The only trial of the sweep that the arguments name."""
        (found,) = trials(
            self.here
            / "outputs"
            / next(a.removeprefix("name=") for a in arguments if a[:5] == "name=")
        )
        return found

    def logged(self, arguments: tuple[str, ...]) -> int:
        """Lines of metrics so far."""
        name = next(a.removeprefix("name=") for a in arguments if a[:5] == "name=")
        return sum(
            len(path.read_text().splitlines())
            for path in self.here.glob(f"outputs/{name}/trials/*/metrics.jsonl")
        )


@pytest.fixture
def commands(here: Path) -> Commands:
    """Commands in a folder of their own."""
    return Commands(here)


def metrics(trial: Path) -> list[dict[str, Any]]:
    """A trial's metrics without what may differ between two runs of it."""
    return [
        {k: v for k, v in line.items() if k not in TIMES} for line in lines(trial / "metrics.jsonl")
    ]


def check_resumed(stopped: Path, straight: Path, step: int) -> None:
    """The second attempt began after the step of the checkpoint, and all metrics are those of the
    straight run.
    """
    assert metrics(stopped) == metrics(straight), log_of(stopped)
    steps = {line["step"] for line in lines(stopped / "metrics.jsonl") if line["attempt"] == 1}
    assert min(steps) == step + 1


@pytest.mark.parametrize(
    ("sharding", "type_name"), [("zero2", "DeepSpeedEngine"), ("fsdp", "FSDP")]
)
def test_an_interrupted_sharded_sweep_continues_from_its_checkpoint(
    commands: Commands, sharding: str, type_name: str
) -> None:
    """As if there had been no Ctrl-C."""
    two = (*TWO, f"trainer.sharding={sharding}")
    stopped = commands.interrupt(*two, "name=stopped", after=8)
    result = read(stopped / "result.json")
    assert result["status"] == "stopped"
    assert (stopped / result["checkpoint"]).is_dir()
    assert commands.run(*two, "name=stopped") == stopped
    straight = commands.run(*two, "name=straight")
    assert all(name.startswith(type_name) for name in wrapped(stopped) | wrapped(straight))
    check_resumed(stopped, straight, result["step"])
    assert read(straight / "result.json")["status"] == "finished"


def test_a_script_under_zero2_continues_from_its_checkpoint(commands: Commands, here: Path) -> None:
    """Open-R1's default; the program is started again with the checkpoint that it wrote when it was
    stopped.
    """
    (here / "train.py").write_text(SCRIPT)
    (here / "recipe.yaml").write_text(RECIPE)
    (here / "zero2.json").write_text(json.dumps(deepspeed_config(2)))
    (here / "tiny").symlink_to(tiny_folder())
    stopped = commands.interrupt(*OWN, "name=stopped", after=5)
    result = read(stopped / "result.json")
    assert result["status"] == "stopped"
    assert result["checkpoint"] == f"model/checkpoint-{result['step']}"
    assert (stopped / result["checkpoint"] / "latest").is_file()
    assert commands.run(*OWN, "name=stopped") == stopped
    assert f"--resume_from_checkpoint '{stopped / result['checkpoint']}'" in log_of(stopped)
    straight = commands.run(*OWN, "name=straight")
    assert wrapped(stopped) | wrapped(straight) == {"DeepSpeedEngine"}
    check_resumed(stopped, straight, result["step"])
