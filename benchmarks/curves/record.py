"""Record real learning curves: six tasks, trained by TRL in sweeps of our own.

    python benchmarks/curves/record.py [FOLDER] [--only NAME,...] [--draw N]

Runs the sweeps below in FOLDER (default: .recording in this folder) and writes one JSON line a
finished trial to NAME.jsonl in this folder. Killed at any time, it continues where it was.
``arithmetic`` and ``successor`` are grids with three seeds per point, about three CPU hours.
``larger`` and ``copy`` are random points of a wide space with two seeds each, recorded in rounds of
``ROUND`` points, 9 to 13 CPU seconds per curve; what is finished after each round is added to their
files. ``sparse`` and ``gamed`` are 60 random points of a smaller space, first all with seed 0, then
again with seed 1. If the folder is gone, ``--draw 4`` (5, ...) continues with other points.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from grposweep.sweep._early_stopping import SIGNALS, CurveReader

HERE = Path(__file__).resolve().parent
RUN = HERE.parents[1] / "src" / "run.py"
REWARDS = HERE / "rewards.py"
TRAINING = (
    "batch=auto",
    "schedule.evaluations=10",
    "task.eval_prompts=128",
    "batch.num_generations_eval=4",
    "trainer.keep=none",
    "search.parallel=1",
)
GRID = (
    *TRAINING,
    "search=grid",
    "seed=0,1,2",
    "batch.num_iterations=1,2",
    "kl=none,high",
    "batch.prompts_per_step=8,16",
)
RANDOM = (
    *TRAINING,
    "search=random",
    "search.stopping=none",
    "search.guards=false",
    "batch.num_generations=4,8,16",
    "batch.prompts_per_step=8,16",
    "kl=none,low,high",
    "loss=dapo,grpo,dr_grpo",
)
WIDE = (
    *RANDOM,
    "lr=tag(log,interval(1e-4,1e-2))",
    "generation.temperature=interval(0.7,1.3)",
    "optimizer.warmup_steps=0,0.05,0.3",
    "model.lora.r=4,16",
    "model.lora.r=0,16",
)
SMALL = (*RANDOM, "lr=tag(log,interval(2e-5,5e-3))")
# of a random space
SEEDS = (0, 1)
# points
ROUND = 8
WIDE_ROUNDS = tuple((seed, points) for points in range(ROUND, 150 + 1, ROUND) for seed in SEEDS)
SMALL_ROUNDS = tuple((seed, points) for seed in SEEDS for points in (*range(ROUND, 60, ROUND), 60))


@dataclass(frozen=True)
class Recording:
    """One task's sweeps. ``rounds`` are the seed and the points so far of each sweep of random
    points; a grid has none.
    """

    name: str
    overrides: tuple[str, ...]
    rounds: tuple[tuple[int, int], ...] = ()


def recordings(folder: Path) -> list[Recording]:
    """Return the recordings. The tiny model half knows the first task, and hardly ever gives the
    answers of the others.
    """
    tasks = {name: jsonl_task(folder, name) for name in ANSWERS}
    return [
        Recording(
            "arithmetic",
            (*GRID, "lr=1e-4,3e-4,1e-3,2e-3,4e-3,1e-2", "batch.num_generations=4,8,16"),
        ),
        Recording(
            "successor",
            (
                *GRID,
                "lr=1e-4,3e-4,7e-4,1.5e-3,3e-3,6e-3",
                "batch.num_generations=4,16",
                *tasks["successor"],
            ),
        ),
        Recording("larger", (*WIDE, *tasks["larger"]), WIDE_ROUNDS),
        Recording("copy", (*WIDE, *tasks["copy"]), WIDE_ROUNDS),
        Recording("sparse", (*SMALL, *tasks["sparse"]), SMALL_ROUNDS),
        Recording("gamed", (*SMALL, *tasks["gamed"]), SMALL_ROUNDS),
    ]


# of ``12+34=``
ANSWERS: dict[str, Callable[[int, int], str]] = {
    # 47: old habits to be unlearnt
    "successor": lambda a, b: str(a + b + 1),
    # 34
    "larger": lambda a, b: f"{max(a, b):02d}",
    # 12: rises late
    "copy": lambda a, _b: f"{a:02d}",
    # 56: hardly any first answer is right, and a wrong one earns nothing
    "sparse": lambda a, b: str(a + b + 10),
    # 45: as rare, but a text of ones is worth half
    "gamed": lambda a, b: str(a + b - 1),
}
# of the others: ``places``, partial credit on the way
REWARD = {"sparse": "exact", "gamed": f"{REWARDS}:ones"}


def jsonl_task(folder: Path, name: str) -> tuple[str, ...]:
    """Write a task's prompts; return the overrides that name them."""
    path = folder / f"{name}_prompts.jsonl"
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random(7).shuffle(pairs)
    lines = (
        json.dumps({"prompt": f"{a:02d}+{b:02d}=", "answer": ANSWERS[name](a, b)}) for a, b in pairs
    )
    path.write_text("".join(f"{line}\n" for line in lines))
    reward = REWARD.get(name, f"{REWARDS}:places")
    return (
        "task=jsonl",
        f"task.path={path}",
        f"task.rewards=[{reward}]",
        "task.max_completion_length=4",
    )


def curve(item: Recording, trial: Path) -> dict[str, Any]:
    """One finished trial as a line: what was known at each evaluation after the start, as a sweep's
    controller reads it.
    """
    result, config = (
        json.loads((trial / "result.json").read_text()),
        OmegaConf.load(trial / "config.yaml"),
    )
    reader = CurveReader(trial / "metrics.jsonl", "eval_reward")
    reader.update()
    return {
        "task": item.name,
        "point": {
            "lr": float(f"{config.lr:.6g}"),
            "num_generations": config.batch.num_generations,
            "prompts_per_step": config.batch.prompts_per_step,
            "beta": config.kl.beta,
            **(
                random_point(config)
                if item.rounds
                else {"num_iterations": config.batch.num_iterations}
            ),
        },
        "seed": config.seed,
        "start": None if reader.start is None else round(reader.start, 5),
        "steps": reader.steps,
        "held_out": [rounded(value) for value in reader.held_out],
        "held_out_se": [rounded(value) for value in reader.errors],
        **{name: [rounded(value) for value in reader.signals[name]] for name in SIGNALS},
        "completions_per_step": reader.completions[-1] / reader.steps[-1],
        "seconds": round(result["gpu_seconds"], 2),
    }


def rounded(value: float | None) -> float | None:
    """Four digits are more than the noise leaves."""
    return None if value is None else float(f"{value:.4g}")


def random_point(config: Any) -> dict[str, Any]:
    """Return the parameters that only the random spaces have; all but the loss are constant in the
    small one.
    """
    return {
        "temperature": round(config.generation.temperature, 4),
        "loss": config.loss.loss_type,
        "warmup": config.optimizer.warmup_steps,
        "lora": f"r{config.model.lora.r}" if config.model.lora.enabled else "full",
    }


def sweeps(item: Recording, draw: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the further overrides of each sweep, in the order in which they run."""
    if not item.rounds:
        yield item.name, []
    for seed, points in item.rounds:
        yield (
            f"{item.name}_{draw}_{seed}",
            [f"seed={seed}", f"search.seed={draw}", f"search.trials={points}"],
        )


def write(item: Recording, folder: Path, draw: int) -> None:
    """Write what has finished; curves that the file of random points has already are kept."""
    names = dict.fromkeys(name for name, _ in sweeps(item, draw))
    trials = sorted(
        path.parent for name in names for path in (folder / name / "trials").glob("*/result.json")
    )
    finished = [
        t for t in trials if json.loads((t / "result.json").read_text())["status"] == "finished"
    ]
    file = HERE / f"{item.name}.jsonl"
    known = file.read_text().splitlines() if item.rounds and file.exists() else []
    lines = dict.fromkeys([*known, *(json.dumps(curve(item, trial)) for trial in finished)])
    file.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(lines)} curves in {file}", flush=True)


def main(folder: Path, only: list[str], draw: int) -> int:
    """Run or finish the sweeps, those of random points in turn; the first exit code that is not a
    sweep's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [item for item in recordings(folder) if not only or item.name in only]
    for round_ in zip_longest(*(list(sweeps(item, draw)) for item in wanted)):
        for item, planned in zip(wanted, round_, strict=True):
            if planned is None:
                continue
            name, further = planned
            command = [
                sys.executable,
                str(RUN),
                "-m",
                f"name={name}",
                f"outputs={folder}",
                *item.overrides,
                *further,
            ]
            code = subprocess.run(command, cwd=folder, check=False).returncode
            if code not in (0, 1):
                return code
            write(item, folder, draw)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / ".recording")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="names of recordings"
    )
    parser.add_argument("--draw", type=int, default=0, help="which points of the random spaces")
    options = parser.parse_args()
    sys.exit(main(options.folder.resolve(), options.only, options.draw))
