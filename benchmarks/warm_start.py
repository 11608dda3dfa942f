"""What a warm server saves: time from an attempt's intent to its first optimizer step, and the time
of whole sweeps.

Both ways run in turn, in one run, on the tiny model with real TRL training. Aim: a fifth of the
time to the first step.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "src" / "run.py"
COMMON = (
    "schedule=steps",
    "schedule.evaluations=1",
    "schedule.eval_at_start=false",
    "task.eval_prompts=32",
    "trainer.keep=none",
)


def sweep(folder: Path, warm: bool, trials: int, steps: int) -> tuple[float, list[float]]:
    """Wall seconds of a grid of learning rates, two at once, and each attempt's seconds to its
    first optimizer step.
    """
    rates = ",".join(f"{(index + 1) * 1e-5:.5f}" for index in range(trials))
    arguments = (
        *COMMON,
        f"schedule.max_steps={steps}",
        f"cluster.warm={str(warm).lower()}",
        f"outputs={folder}",
    )
    since = time.perf_counter()
    subprocess.run(
        [sys.executable, str(RUN), *arguments, "search.parallel=2", "-m", f"lr={rates}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - since, [
        first_step(trial) for trial in sorted(folder.glob("*/trials/*"))
    ]


def first_step(trial: Path) -> float:
    """Seconds from intent to the first optimizer step."""
    intent = json.loads((trial / "attempts.jsonl").read_text().splitlines()[0])["time"]
    lines = map(json.loads, (trial / "metrics.jsonl").read_text().splitlines())
    return float(next(line["time"] for line in lines if line["kind"] == "train") - intent)


def main() -> None:
    """Print the medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 100])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        # makes the tiny model, fills the file cache
        sweep(Path(scratch) / "warm-up", True, 1, 1)
        print(
            "| steps | trials | first step, warm s | fresh s | ratio | sweep, warm s | fresh s "
            "| ratio |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for steps in options.steps:
            wall_warm, warm = sweep(Path(scratch) / f"warm-{steps}", True, options.trials, steps)
            wall_fresh, fresh = sweep(
                Path(scratch) / f"fresh-{steps}", False, options.trials, steps
            )
            a, b = statistics.median(warm), statistics.median(fresh)
            print(
                f"| {steps} | {options.trials} | {a:.2f} | {b:.2f} | {a / b:.2f} "
                f"| {wall_warm:.1f} | {wall_fresh:.1f} | {wall_warm / wall_fresh:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
