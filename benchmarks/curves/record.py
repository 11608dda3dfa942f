"""Record real learning curves: two tasks, every point with three seeds, trained by TRL in sweeps of our own.

    python benchmarks/curves/record.py [FOLDER]

Runs the sweeps below in FOLDER (default: .recording beside this file; killed at any time, it goes on where it was) and writes
one JSON line a finished trial to arithmetic.jsonl and successor.jsonl beside this file. About three CPU hours.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from omegaconf import OmegaConf

HERE = Path(__file__).resolve().parent
RUN = HERE.parents[1] / "src" / "run.py"
PLACES = f"{HERE / 'rewards.py'}:places"
COMMON = (
    "batch=auto", "schedule.evaluations=10", "task.eval_prompts=128", "batch.num_generations_eval=4",
    "trainer.keep=none", "search=grid", "search.parallel=1", "seed=0,1,2", "batch.num_iterations=1,2", "kl=none,high",
    "batch.prompts_per_step=8,16",
)  # fmt: skip
SIGNALS = {  # a curve's name: TRL's, and what becomes of its values between two evaluations
    "train_reward": "reward",
    "kl": "kl",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "zero_std": "frac_reward_zero_std",
    "truncated": "completions/clipped_ratio",
    "update_size": "update_size",
}


@dataclass(frozen=True)
class Recording:
    """One task's sweep."""

    name: str
    overrides: tuple[str, ...]


def recordings(folder: Path) -> list[Recording]:
    """A task that the tiny model half knows, and one whose answers it has never given (all are one too small)."""
    successor = folder / "successor_prompts.jsonl"
    write_successors(successor)
    return [
        Recording("arithmetic", ("lr=1e-4,3e-4,1e-3,2e-3,4e-3,1e-2", "batch.num_generations=4,8,16")),
        Recording(
            "successor",
            ("lr=1e-4,3e-4,7e-4,1.5e-3,3e-3,6e-3", "batch.num_generations=4,16", "task=jsonl", f"task.path={successor}",
             f"task.rewards=[{PLACES}]", "task.max_completion_length=4"),
        ),
    ]  # fmt: skip


def write_successors(path: Path) -> None:
    """``12+34=`` earns for ``47``: old habits to be unlearnt, with partial credit on the way."""
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random(7).shuffle(pairs)
    lines = (json.dumps({"prompt": f"{a:02d}+{b:02d}=", "answer": str(a + b + 1)}) for a, b in pairs)
    path.write_text("".join(f"{line}\n" for line in lines))


def curve(trial: Path) -> dict[str, Any]:
    """One finished trial as a line: what was known at each evaluation after the start."""
    result, config = json.loads((trial / "result.json").read_text()), OmegaConf.load(trial / "config.yaml")
    lines = [json.loads(line) for line in (trial / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if line["kind"] == "eval"]
    stretches = list(between([line["step"] for line in evaluations], lines))
    return {
        "task": config.name,
        "point": {
            "lr": config.lr,
            "num_generations": config.batch.num_generations,
            "prompts_per_step": config.batch.prompts_per_step,
            "beta": config.kl.beta,
            "num_iterations": config.batch.num_iterations,
        },
        "seed": config.seed,
        "start": round(evaluations[0]["eval_reward"], 5),
        "steps": [line["step"] for line in evaluations[1:]],
        "held_out": [rounded(line["eval_reward"]) for line in evaluations[1:]],
        "held_out_se": [rounded(line["eval_reward_se"]) for line in evaluations[1:]],
        **{ours: [mean(stretch, theirs) for stretch in stretches] for ours, theirs in SIGNALS.items()},
        "completions_per_step": evaluations[-1]["completions"] / evaluations[-1]["step"],
        "seconds": round(result["gpu_seconds"], 2),
    }


def between(steps: list[int], lines: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The training steps between one evaluation and the next."""
    train = [line for line in lines if line["kind"] == "train"]
    for before, now in pairwise(steps):
        yield [line for line in train if before < line["step"] <= now]


def mean(stretch: list[dict[str, Any]], name: str) -> float | None:
    """A signal's mean; None where it was not a number."""
    values = [line.get(name) for line in stretch]
    return rounded(fmean(values)) if values and None not in values else None


def rounded(value: float | None) -> float | None:
    """Four digits are more than the noise leaves."""
    return None if value is None else float(f"{value:.4g}")


def main(folder: Path) -> int:
    """Run or finish the sweeps, then write the curves; the first exit code that is not a sweep's own."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in recordings(folder):
        command = [sys.executable, str(RUN), "-m", f"name={item.name}", f"outputs={folder}", *COMMON, *item.overrides]
        code = subprocess.run(command, cwd=folder, check=False).returncode
        if code not in (0, 1):
            return code
        trials = sorted(path.parent for path in (folder / item.name / "trials").glob("*/result.json"))
        finished = [t for t in trials if json.loads((t / "result.json").read_text())["status"] == "finished"]
        (HERE / f"{item.name}.jsonl").write_text("".join(json.dumps(curve(t)) + "\n" for t in finished))
        print(f"{len(finished)} curves in {HERE / item.name}.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / ".recording"))
