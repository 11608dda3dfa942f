"""Our trainer against a plain TRL script with the same settings: seconds an optimizer step,
interleaved in one process.

``python benchmarks/trainer_overhead.py`` trains the tiny model on the CPU: a pair is one training
of each, a step of the one and a step of the other in turn, so that other work on the machine
affects both. The plain one is TRL's GRPOTrainer with TRL's own logging and no callback of ours;
ours writes metrics, heartbeats, measures each update and reads control.json. Both must train alike:
every step's loss, reward and gradient norm is compared, to the last bit. Prints medians over the
pairs with their 95 % intervals, of the ratio and of the difference, for wall seconds and for
seconds of the processor, which other processes' load changes least.
"""

import argparse
import gc
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from omegaconf import OmegaConf
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from grporecipe.files import append_line, write_text
from grposweep.config.compose import to_experiment
from grposweep.train import process as watchdog
from grposweep.train import trl as grpo
from grposweep.train._models import Loaded, find_model_folder, load_model
from grposweep.train._trl_config import build_config
from grposweep.train.attempt import Attempt, load_attempt
from grposweep.train.tasks import Data, load_data

# optimizer steps a training, the first of which are not counted
PAIRS, STEPS, WARM_UP = 12, 32, 2
RESAMPLES = 10_000
# of each step, in both trainings
SAME = ("step", "loss", "reward", "grad_norm", "learning_rate", "entropy")
CLOCKS = ("wall", "processor")


@dataclass(frozen=True)
class Block:
    """What one training took a step, by both clocks, and how it went."""

    seconds: tuple[float, float]
    course: list[dict[str, Any]]


class Turns:
    """Two trainings in threads of one process, one step in turn: the one that waits keeps its
    random numbers.
    """

    def __init__(self) -> None:
        self._may_go = (threading.Semaphore(1), threading.Semaphore(0))
        self._is_over = [False, False]

    def run(self, number: int, work: Callable[[], Block]) -> Block:
        """One of the two, from its first turn to its end."""
        self._may_go[number].acquire()
        try:
            return work()
        finally:
            self._is_over[number] = True
            self._may_go[1 - number].release()

    def pass_on(self, number: int) -> None:
        """Let the other one make a step, and wait for the next turn."""
        if self._is_over[1 - number]:
            return
        numbers = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
        self._may_go[1 - number].release()
        self._may_go[number].acquire()
        random.setstate(numbers[0])
        numpy.random.set_state(numbers[1])
        torch.set_rng_state(numbers[2])


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Wall and processor seconds of each step, from its start to the start of the next one; then
    the other trainer's turn.
    """

    def __init__(self, turns: Turns, number: int) -> None:
        self.turns, self.number = turns, number
        self.steps: list[tuple[float, float]] = []
        self._began: tuple[float, float] | None = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """What lies between two steps is the earlier one's: logs, callbacks."""
        if self._began is not None:
            self.steps.append(
                (time.perf_counter() - self._began[0], time.process_time() - self._began[1])
            )
        self.turns.pass_on(self.number)
        self._began = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> tuple[float, float]:
        """Means a step: by the wall, and of the processor (which other processes' load hardly
        touches).
        """
        wall, processor = zip(*self.steps[WARM_UP:], strict=True)
        return statistics.mean(wall), statistics.mean(processor)


def write_trial(folder: Path) -> Path:
    """A trial folder as the controller makes it: no evaluations, no checkpoints, which the plain
    script has not either.
    """
    config = OmegaConf.from_dotlist(
        [
            "lr=1e-4",
            f"schedule.max_steps={STEPS}",
            "schedule.evaluations=0",
            "schedule.eval_at_start=false",
            "schedule.checkpoints=0",
            "trainer.keep=none",
            "batch.num_generations=8",
            "batch.per_device_train_batch_size=32",
            "batch.gradient_accumulation_steps=2",
            "batch.per_device_eval_batch_size=8",
            "task.max_completion_length=8",
            "generation.max_completion_length=8",
        ]
    )
    folder.mkdir(parents=True)
    write_text(
        folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(to_experiment(config)))
    )
    append_line(folder / "attempts.jsonl", {"attempt": 0})
    return folder


def ours(attempt: Attempt, model: Loaded, data: Data) -> Any:
    """Our trainer, everything that a trial does included."""
    return grpo.build_trainer(attempt, model, data, build_config(attempt, model), resumed_at=0)


def plain(attempt: Attempt, model: Loaded, data: Data) -> Any:
    """TRL's, with the same arguments, model, data and rewards."""
    trainer = GRPOTrainer(
        model.path,
        list(grpo.load_rewards(attempt.experiment.task.rewards)),
        build_config(attempt, model),
        data.train,
        processing_class=model.tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(build: Callable[[Attempt, Loaded, Data], Any], folder: Path, clock: Clock) -> Block:
    """One training; earlier ones' rubbish is not this one's to collect."""
    attempt = load_attempt(write_trial(folder))
    grpo.calm()
    grpo.use_devices(attempt)
    model, data = (
        load_model(attempt.experiment.model, find_model_folder(attempt.experiment.model)),
        load_data(attempt.experiment.task),
    )
    grpo.check_counts(attempt, data)
    trainer = build(attempt, model, data)
    trainer.add_callback(clock)
    gc.collect()
    trainer.train()
    steps = [line for line in trainer.state.log_history if "loss" in line]
    return Block(clock.seconds, [{name: line[name] for name in SAME} for line in steps])


def run_pair(number: int, root: Path) -> tuple[Block, Block]:
    """A training of each, step by step in turn; they must have trained alike. Who begins
    alternates.
    """
    turns, folder = Turns(), root / str(number)

    def start(place: int, build: Callable[[Attempt, Loaded, Data], Any]) -> Block:
        return turns.run(place, lambda: train(build, folder / build.__name__, Clock(turns, place)))

    builds = (ours, plain) if number % 2 == 0 else (plain, ours)
    with ThreadPoolExecutor(2) as threads:
        blocks = dict(zip(builds, threads.map(start, range(2), builds), strict=True))
    watchdog.release()
    mine, theirs = blocks[ours], blocks[plain]
    if mine.course != theirs.course:
        raise RuntimeError(f"the two did not train alike: {mine.course} and {theirs.course}")
    return mine, theirs


def interval(values: list[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    draw = random.Random(seed)
    medians = sorted(
        statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)
    )
    return medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975)]


def with_interval(values: list[float], digits: int) -> str:
    """The median and its interval, as people read them."""
    low, high = interval(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def say(pairs: list[tuple[Block, Block]]) -> None:
    """The medians over the pairs."""
    for number, clock in enumerate(CLOCKS):
        seconds = [(mine.seconds[number], theirs.seconds[number]) for mine, theirs in pairs]
        ratio = with_interval([mine / theirs for mine, theirs in seconds], 4)
        added = with_interval([(mine - theirs) * 1e6 for mine, theirs in seconds], 0)
        step = statistics.median(theirs for _, theirs in seconds) * 1e3
        print(
            f"{clock}: ours / plain TRL {ratio}; {added} us a step more; a plain step takes "
            f"{step:.1f} ms"
        )
    steps = sum(len(mine.course) for mine, _ in pairs)
    print(f"{len(pairs)} pairs; {', '.join(SAME[1:])} of all {steps} steps are the same in both")


def main() -> None:
    """Pairs of trainings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    wanted = parser.parse_args().pairs
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        # the first trainings of a process pay for what torch sets up
        run_pair(-1, Path(name))
        for number in range(wanted):
            mine, theirs = run_pair(number, Path(name))
            pairs.append((mine, theirs))
            print(
                json.dumps({"pair": number, "ours": mine.seconds, "plain": theirs.seconds}),
                flush=True,
            )
    say(pairs)


if __name__ == "__main__":
    main()
