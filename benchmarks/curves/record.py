"""Record real learning curves: two tasks, every point with three seeds, trained by TRL in sweeps of our own.

    python benchmarks/curves/record.py [FOLDER]

Runs the sweeps below in FOLDER (default: .recording beside this file; killed at any time, it goes on where it was) and writes
one JSON line a finished trial to arithmetic.jsonl and successor.jsonl beside this file. About three CPU hours.
"""

import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from grposweep.sweep.early_stopping import SIGNALS, CurveReader

HERE = Path(__file__).resolve().parent
RUN = HERE.parents[1] / "src" / "run.py"
PLACES = f"{HERE / 'rewards.py'}:places"
COMMON = (
    "batch=auto", "schedule.evaluations=10", "task.eval_prompts=128", "batch.num_generations_eval=4",
    "trainer.keep=none", "search=grid", "search.parallel=1", "seed=0,1,2", "batch.num_iterations=1,2", "kl=none,high",
    "batch.prompts_per_step=8,16",
)  # fmt: skip


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
    """One finished trial as a line: what was known at each evaluation after the start, as a sweep's controller reads it."""
    result, config = json.loads((trial / "result.json").read_text()), OmegaConf.load(trial / "config.yaml")
    reader = CurveReader(trial / "metrics.jsonl", "eval_reward")
    reader.update()
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
