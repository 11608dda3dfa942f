"""Compare stopping rules in real sweeps of the tiny model: python benchmarks/curves/pairs.py
[FOLDER] [--seeds 0,1,2].

Each pair is one sweep for each rule, with the same seed, the same space and the same number of
trials. All trainings are real TRL runs on this machine's CPU, one at a time. A sweep that is
already complete in FOLDER (default: .pairs in this folder) is read and not run again. The table has
the completions of each sweep, and the best held-out reward that it found.
"""

import argparse
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from grposweep import load_sweep

HERE = Path(__file__).resolve().parent
RUN = HERE.parents[1] / "src" / "run.py"
REFERENCE = "none"
SPACE = (
    "search=tpe",
    "lr=tag(log,interval(1e-4,1e-2))",
    "batch.num_generations=4,8,16",
    "kl=none,low,high",
    "generation.temperature=interval(0.7,1.3)",
    "optimizer.warmup_steps=0,0.3",
    "batch=auto",
    "batch.prompts_per_step=8",
    "schedule.evaluations=5",
    "schedule.budget_completions=3200",
    "task.eval_prompts=128",
    "trainer.keep=none",
    "search.parallel=1",
)
BOOTSTRAPS = 10_000


@dataclass(frozen=True)
class Sweep:
    """What a sweep generated, in completions, and the best held-out reward of a finished trial with
    its standard error.
    """

    completions: float
    best: float
    error: float


def run(folder: Path, rule: str, seed: int, trials: int) -> Sweep:
    """Run one sweep, or continue it."""
    name = f"{rule}_{seed}"
    command = [
        *(sys.executable, str(RUN), "-m", f"name={name}", f"outputs={folder}", *SPACE),
        *(
            f"search.stopping={rule}",
            f"search.trials={trials}",
            f"search.seed={seed}",
            f"seed={seed}",
        ),
    ]
    with (folder / f"{name}.txt").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)
    table = load_sweep(folder / name).trials
    best = table[table["state"] == "finished"].nlargest(1, "objective").iloc[0]
    return Sweep(
        float(table["completions"].sum()), float(best["objective"]), float(best["objective_se"])
    )


def compare(pairs: list[tuple[Sweep, Sweep]]) -> str:
    """Return the paired ratio of completions, the mean difference of the best, each with its 95 %
    interval, and the ties.
    """
    ratio = [
        math.exp(bound)
        for bound in bootstrap(
            [math.log(one.completions / none.completions) for none, one in pairs]
        )
    ]
    lacks = bootstrap([one.best - none.best for none, one in pairs])
    ties = sum(one.best >= none.best - 2 * math.hypot(one.error, none.error) for none, one in pairs)
    shown = (
        f"{ratio[1]:.2f} ({ratio[0]:.2f}-{ratio[2]:.2f}) | {lacks[1]:+.3f} ({lacks[0]:+.3f} "
        f"to {lacks[2]:+.3f})"
    )
    return f"{shown} | {ties} of {len(pairs)}"


def bootstrap(numbers: list[float]) -> tuple[float, float, float]:
    """Return the mean between the bounds of its 95 % interval."""
    draw = Random(0)
    means = sorted(fmean(draw.choices(numbers, k=len(numbers))) for _ in range(BOOTSTRAPS))
    return means[BOOTSTRAPS // 40], fmean(numbers), means[-BOOTSTRAPS // 40]


def main(folder: Path, rules: list[str], seeds: list[int], trials: int) -> None:
    """Run what is missing, seed by seed, and print the table after each."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Sweep]] = {rule: [] for rule in (REFERENCE, *rules)}
    for seed in seeds:
        for rule, sweeps in found.items():
            sweeps.append(run(folder, rule, seed, trials))
            print(f"seed {seed} {rule}: {sweeps[-1]}", flush=True)
    print(
        "| rule | completions, of plain TPE's (95 %) | best, less plain TPE's (95 %) | as good "
        "or tied |\n|---|---|---|---|"
    )
    for rule in rules:
        print(f"| {rule} | {compare(list(zip(found[REFERENCE], found[rule], strict=True)))} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=HERE / ".pairs")
    parser.add_argument(
        "--rules", type=lambda text: text.split(","), default=["rank"], help="of search.stopping"
    )
    parser.add_argument(
        "--seeds",
        type=lambda text: [int(seed) for seed in text.split(",")],
        default=list(range(10)),
    )
    parser.add_argument("--trials", type=int, default=12, help="of each sweep")
    options = parser.parse_args()
    main(options.folder.resolve(), options.rules, options.seeds, options.trials)
