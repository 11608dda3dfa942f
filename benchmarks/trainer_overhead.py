"""Our trainer against a plain TRL script with the same settings: seconds an optimizer step, interleaved in one process.

``python benchmarks/trainer_overhead.py`` trains the tiny model on a CPU (or GPU): blocks of steps of one trainer and of the
other in turn, so that whatever else the machine does hits both. The plain one is TRL's GRPOTrainer with TRL's own logging
and no callback of ours; ours writes metrics, heartbeats and reads control.json. Prints the median ratio of the pairs and
the 95 % interval of that median, for wall seconds and for seconds of the processor, which a busy machine does not change.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from grposweep.config.compose import to_experiment
from grposweep.files import append_line, write_text
from grposweep.train import grpo
from grposweep.train.attempt import load_attempt
from grposweep.train.models import load_model
from grposweep.train.options import build_config
from grposweep.train.tasks import load_data

PAIRS, STEPS, WARM_UP = 10, 14, 2  # optimizer steps a block, the first of which are not counted
RESAMPLES = 10_000


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Wall and processor seconds from the start of a step to the start of the next one, without the first few."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """What lies between two steps is the earlier one's: logs, callbacks."""
        self.marks.append((time.perf_counter(), time.process_time()))

    @property
    def seconds(self) -> tuple[float, float]:
        """Means a step: by the wall, and of the processor (which other processes' load does not touch)."""
        first, last = self.marks[WARM_UP], self.marks[-1]
        steps = len(self.marks) - 1 - WARM_UP
        return (last[0] - first[0]) / steps, (last[1] - first[1]) / steps


def write_trial(folder: Path) -> Path:
    """A trial folder as the controller makes it: no evaluations, no checkpoints, which the plain script has not either."""
    config = OmegaConf.from_dotlist(
        ["lr=1e-4", "optimizer.learning_rate=1e-4", f"schedule.max_steps={STEPS}", "schedule.evaluations=0",
         "schedule.eval_at_start=false", "schedule.checkpoints=0", "trainer.keep=none", "batch.num_generations=8",
         "batch.per_device_train_batch_size=32", "batch.gradient_accumulation_steps=2", "batch.per_device_eval_batch_size=8",
         "task.max_completion_length=8", "generation.max_completion_length=8", "cluster.stall_min=null"]
    )  # fmt: skip
    folder.mkdir(parents=True)
    write_text(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(to_experiment(config))))
    append_line(folder / "attempts.jsonl", {"attempt": 0})
    return folder


def ours(folder: Path) -> tuple[float, float]:
    """Seconds a step of our trainer, everything that a trial does included."""
    attempt = load_attempt(write_trial(folder))
    grpo.calm()
    grpo.use_devices(attempt)
    model, data, clock = load_model(attempt.experiment.model), load_data(attempt.experiment.task), Clock()
    grpo.check_counts(attempt, data)
    trainer = grpo.build_trainer(attempt, model, data, resumed_at=0)
    trainer.add_callback(clock)
    trainer.train()
    return clock.seconds


def plain(folder: Path) -> tuple[float, float]:
    """Seconds a step of TRL's, with the same arguments, model, data and reward."""
    attempt = load_attempt(write_trial(folder))
    grpo.calm()
    grpo.use_devices(attempt)
    model, data, clock = load_model(attempt.experiment.model), load_data(attempt.experiment.task), Clock()
    grpo.check_counts(attempt, data)
    trainer = GRPOTrainer(
        model.path, list(grpo.load_rewards(attempt.experiment.task.rewards)), build_config(attempt, model), data.train,
        processing_class=model.tokenizer, callbacks=[clock],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return clock.seconds


def interval(ratios: list[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975)]


def main() -> None:
    """Pairs of blocks, the order alternating."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    pairs = parser.parse_args().pairs
    seen: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        plain(root / "warm" / "0")  # the first training of a process pays for what torch sets up
        for n in range(pairs):
            seconds = {}
            for kind in ((ours, plain), (plain, ours))[n % 2]:
                seconds[kind.__name__] = kind(root / str(n) / kind.__name__)
            seen.append(tuple(mine / theirs for mine, theirs in zip(seconds["ours"], seconds["plain"], strict=True)))  # type: ignore[arg-type]
            print(json.dumps({"pair": n, **seconds, "wall": seen[-1][0], "processor": seen[-1][1]}), flush=True)
    for number, clock in enumerate(("wall", "processor")):
        ratios = [pair[number] for pair in seen]
        low, high = interval(ratios)
        middle = statistics.median(ratios)
        print(f"ours / plain TRL, {clock} seconds a step: median {middle:.4f} ({low:.4f} to {high:.4f}), {pairs} pairs")


if __name__ == "__main__":
    main()
