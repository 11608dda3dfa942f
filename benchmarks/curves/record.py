"""Record real learning curves: ten tasks, trained by TRL in sweeps of our own.

    python benchmarks/curves/record.py [FOLDER] [--only NAME,...] [--draw N]

Runs the sweeps below in FOLDER (default: .recording in this folder) and writes one JSON line a
finished trial to NAME.jsonl in this folder. Killed at any time, it continues where it was.
``arithmetic`` and ``successor`` are grids with three seeds per point, about three CPU hours.
``larger`` and ``copy`` are random points of a wide space with two seeds each, recorded in rounds of
``ROUND`` points, 9 to 13 CPU seconds per curve; what is finished after each round is added to their
files. ``sparse`` and ``gamed`` are 60 random points of a smaller space, first all with seed 0, then
again with seed 1. If the folder is gone, ``--draw 4`` (5, ...) continues with other points.

``wide``, ``adapters``, ``bonus`` and ``turns`` are 60 random points with four seeds each, 3 to 6 CPU
seconds per curve. The files have the first two seeds so far. Each has a space of its own: a model
that is twice as wide, LoRA adapters, two rewards of which one can be gamed, and conversations. In
the order of the SHA-256 of their names the first two (``wide``, ``adapters``) are to develop rules.
The last two (``bonus``, ``turns``) are kept apart: they are measured once, and no rule is chosen by
them.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, zip_longest
from pathlib import Path
from random import Random
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
# a few seconds each: four seeds of all points within an hour or two
SHORT = (
    *TRAINING,
    "search=random",
    "search.stopping=none",
    "search.guards=false",
    "schedule.budget_completions=2560",
    "schedule.checkpoints=0",
    "task.eval_prompts=64",
    "batch.per_device_eval_batch_size=256",
)
# of a random space
SEEDS = (0, 1)
# points
ROUND = 8
WIDE_ROUNDS = tuple((seed, points) for points in range(ROUND, 150 + 1, ROUND) for seed in SEEDS)
SMALL_ROUNDS = tuple((seed, points) for seed in SEEDS for points in (*range(ROUND, 60, ROUND), 60))
SHORT_ROUNDS = tuple((seed, 60) for seed in range(4))

# the name of a parameter in the files -> its key
COMMON = {
    "lr": "lr",
    "num_generations": "batch.num_generations",
    "prompts_per_step": "batch.prompts_per_step",
    "beta": "kl.beta",
}
# all but the loss are constant in the small one
RANDOM_PARAMETERS = {
    **COMMON,
    "temperature": "generation.temperature",
    "loss": "loss.loss_type",
    "warmup": "optimizer.warmup_steps",
    "lora": "model.lora.r",
}


@dataclass(frozen=True)
class Recording:
    """One task's sweeps. ``rounds`` are the seed and the points so far of each sweep of random
    points; a grid has none.
    """

    name: str
    overrides: tuple[str, ...]
    parameters: Mapping[str, str]
    rounds: tuple[tuple[int, int], ...] = ()


def recordings(folder: Path) -> list[Recording]:
    """Return the recordings. The tiny model half knows the first task, and hardly ever gives the
    answers of the others.
    """
    tasks = {name: jsonl_task(folder, name) for name in ANSWERS}
    grid = {**COMMON, "num_iterations": "batch.num_iterations"}
    return [
        Recording(
            "arithmetic",
            (*GRID, "lr=1e-4,3e-4,1e-3,2e-3,4e-3,1e-2", "batch.num_generations=4,8,16"),
            grid,
        ),
        Recording(
            "successor",
            (
                *GRID,
                "lr=1e-4,3e-4,7e-4,1.5e-3,3e-3,6e-3",
                "batch.num_generations=4,16",
                *tasks["successor"],
            ),
            grid,
        ),
        Recording("larger", (*WIDE, *tasks["larger"]), RANDOM_PARAMETERS, WIDE_ROUNDS),
        Recording("copy", (*WIDE, *tasks["copy"]), RANDOM_PARAMETERS, WIDE_ROUNDS),
        Recording("sparse", (*SMALL, *tasks["sparse"]), RANDOM_PARAMETERS, SMALL_ROUNDS),
        Recording("gamed", (*SMALL, *tasks["gamed"]), RANDOM_PARAMETERS, SMALL_ROUNDS),
        *short_recordings(folder),
    ]


def short_recordings(folder: Path) -> list[Recording]:
    """Return four recordings of short trainings, each with a space of its own."""
    wide = Recording(
        "wide",
        (
            *SHORT,
            f"model.path={wide_model(folder)}",
            *jsonl_task(folder, "successor"),
            "lr=tag(log,interval(1e-4,1e-2))",
            "batch.num_generations=4,8,16",
            "kl=none,low,high",
            "optimizer=adamw,adamw_cosine,adamw_linear",
            "loss.scale_rewards=group,none",
        ),
        {
            "lr": "lr",
            "num_generations": "batch.num_generations",
            "beta": "kl.beta",
            "scheduler": "optimizer.lr_scheduler_type",
            "scale_rewards": "loss.scale_rewards",
        },
        SHORT_ROUNDS,
    )
    adapters = Recording(
        "adapters",
        (
            *SHORT,
            *jsonl_task(folder, "second"),
            "lr=tag(log,interval(1e-3,5e-2))",
            "model.lora.r=2,8,32",
            "model.lora.alpha=8,32",
            "batch.num_generations=4,8,16",
            "optimizer.warmup_steps=0,0.2",
        ),
        {
            "lr": "lr",
            "rank": "model.lora.r",
            "alpha": "model.lora.alpha",
            "num_generations": "batch.num_generations",
            "warmup": "optimizer.warmup_steps",
        },
        SHORT_ROUNDS,
    )
    bonus = Recording(
        "bonus",
        (
            *SHORT,
            "task=arithmetic",
            "task.eval_generations=4",
            f"task.rewards=[exact,{REWARDS}:nines]",
            "search.metric=eval_rewards/exact/mean",
            "task.reward_weights=[1,0.2],[1,0.5],[1,1]",
            "lr=tag(log,interval(1e-4,1e-2))",
            "batch.num_generations=4,8,16",
            "kl=none,high",
        ),
        {
            "lr": "lr",
            "bonus": "task.reward_weights[1]",
            "num_generations": "batch.num_generations",
            "beta": "kl.beta",
        },
        SHORT_ROUNDS,
    )
    turns = Recording(
        "turns",
        (
            *SHORT,
            "model=tiny_text",
            *conversations(folder),
            "lr=tag(log,interval(2e-4,1e-2))",
            "batch.num_generations=4,8,16",
            "loss=dapo,dr_grpo",
            "optimizer.max_grad_norm=0.1,1",
            "optimizer.warmup_steps=0,0.2",
        ),
        {
            "lr": "lr",
            "num_generations": "batch.num_generations",
            "loss": "loss.loss_type",
            "max_grad_norm": "optimizer.max_grad_norm",
            "warmup": "optimizer.warmup_steps",
        },
        SHORT_ROUNDS,
    )
    return [wide, adapters, bonus, turns]


def wide_model(folder: Path) -> Path:
    """Return the folder of a model that is made as the tiny one, but twice as wide."""
    target = folder / "wide_model"
    if not target.exists():
        # torch takes seconds to import
        from grposweep.train import _tiny

        _tiny.RECIPE["config"] |= {"hidden_size": 128, "intermediate_size": 256}
        tokenizer = _tiny.build_tokenizer()
        _tiny.warm_start(tokenizer).save_pretrained(target)
        tokenizer.save_pretrained(target)
    return target


WORDS = (
    "ash",
    "bay",
    "cod",
    "eel",
    "elm",
    "emu",
    "fig",
    "fox",
    "gnu",
    "hen",
    "ivy",
    "jay",
    "kid",
    "lark",
    "oak",
    "owl",
    "sea",
)


def conversations(folder: Path) -> tuple[str, ...]:
    """Write conversations whose last turn asks for small or large letters; return the overrides
    that name them.
    """
    path = folder / "turns_prompts.jsonl"
    random = Random(7)
    lines = []
    for first, second in permutations(WORDS, 2):
        size = random.choice(("small", "large"))
        turns = [
            {"role": "user", "content": first},
            {"role": "assistant", "content": random.choice((first, first.upper()))},
            {"role": "user", "content": f"{second} {size}"},
        ]
        lines.append(json.dumps({"prompt": turns, "answer": size}) + "\n")
    random.shuffle(lines)
    path.write_text("".join(lines))
    return (
        "task=jsonl",
        f"task.path={path}",
        f"task.rewards=[{REWARDS}:letters]",
        "task.max_completion_length=6",
    )


# of ``12+34=``
ANSWERS: dict[str, Callable[[int, int], str]] = {
    # 47: old habits to be unlearnt
    "successor": lambda a, b: str(a + b + 1),
    # 34
    "larger": lambda a, b: f"{max(a, b):02d}",
    # 12: rises late
    "copy": lambda a, _b: f"{a:02d}",
    # 34, of another model
    "second": lambda _a, b: f"{b:02d}",
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
    Random(7).shuffle(pairs)
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
    result = json.loads((trial / "result.json").read_text())
    config = OmegaConf.load(trial / "config.yaml")
    reader = CurveReader(trial / "metrics.jsonl", config.search.metric)
    reader.update()
    return {
        "task": item.name,
        "point": {name: label(config, name, key) for name, key in item.parameters.items()},
        "seed": config.seed,
        "start": None if reader.start is None else round(reader.start, 5),
        "steps": reader.steps,
        "held_out": [rounded(value) for value in reader.held_out],
        "held_out_se": [rounded(value) for value in reader.errors],
        **{name: [rounded(value) for value in reader.signals[name]] for name in SIGNALS},
        "completions_per_step": reader.completions[-1] / reader.steps[-1],
        "seconds": round(result["gpu_seconds"], 2),
    }


def label(config: Any, name: str, key: str) -> Any:
    """Return the value of a parameter as the files have it."""
    value = OmegaConf.select(config, key)
    if name == "lr":
        return float(f"{value:.6g}")
    if name == "temperature":
        return round(value, 4)
    if name == "lora":
        return f"r{value}" if value else "full"
    return value


def rounded(value: float | None) -> float | None:
    """Four digits are more than the noise leaves."""
    return None if value is None else float(f"{value:.4g}")


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
