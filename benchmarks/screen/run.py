"""Demonstrate a screen: whether it finds prompts without a signal and predicts their share, and what its filter saves.

    python benchmarks/screen/run.py FOLDER [--seeds 4]

The task is two-digit addition for the tiny model. Of 300 training prompts 120 have a wrong answer (nothing passes), 75 a lenient
checker (everything passes), 105 are ordinary. Held-out prompts are ordinary. All is kept in FOLDER: the same command continues.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from grporecipe.files import read_lines
from grposweep.process import PROJECT
from grposweep.train.tasks.arithmetic import pairs

ORDINARY, IMPOSSIBLE, LENIENT, HELD_OUT = 105, 120, 75, 128
TARGETS = (0.4, 0.5, 0.6, 0.65)  # held-out reward
RATES = ("1e-4", "3e-4")
COMPLETIONS = 6400  # of a training


def write_prompts(folder: Path) -> None:
    """Write train.jsonl and held_out.jsonl."""
    sums = iter(pairs())

    def rows(count: int, checker: str) -> Iterator[dict[str, str]]:
        for _ in range(count):
            a, b = next(sums)
            answer = "000" if checker == "wrong" else str(a + b)
            yield {"prompt": f"{a:02d}+{b:02d}=", "answer": answer, "checker": checker}

    held_out = list(rows(HELD_OUT, "exact"))
    train = [*rows(ORDINARY, "exact"), *rows(IMPOSSIBLE, "wrong"), *rows(LENIENT, "lenient")]
    for name, lines in (("train", train), ("held_out", held_out)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(folder: Path, *command: str) -> str:
    """Run a command of ours in the folder; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def task() -> list[str]:
    """Return the overrides of the task."""
    reward = Path(__file__).with_name("reward.py")
    return ["task=jsonl", "task.path=train.jsonl", "task.eval_split=held_out.jsonl", f"task.eval_prompts={HELD_OUT}",
            f"task.rewards=[{reward}:checked]", "task.max_completion_length=4", "task.eval_generations=4"]  # fmt: skip


def metrics(folder: Path, name: str) -> list[list[dict[str, Any]]]:
    """Return the metrics of each trial of a sweep."""
    trials = sorted((folder / "outputs" / name / "trials").iterdir())
    return [list(read_lines(trial / "metrics.jsonl", step=int)) for trial in trials]


def calibrate(folder: Path, found: dict[str, Any]) -> None:
    """Compare the predicted share of groups without a signal with TRL's, over one pass of the prompts without learning."""
    print(f"\n{'G':>3} {'predicted share without a signal':>34} {'TRL, one pass without learning':>32}")
    for group in ("4", "8", "16"):
        name = f"still-{group}"
        run(folder, str(PROJECT / "src" / "run.py"), *task(), f"name={name}", "lr=1e-12", f"batch.num_generations={group}",
            "schedule=epochs", "schedule.epochs=1", "schedule.evaluations=1", "trainer.keep=none",
            "rules.ignore=[GD101]")  # fmt: skip
        shares = [line["frac_reward_zero_std"] for line in metrics(folder, name)[0] if line["kind"] == "train"]
        share = found["groups_with_signal"][group]
        predicted = f"{1 - share['mean']:.3f} ({1 - share['high']:.3f} to {1 - share['low']:.3f})"
        print(f"{group:>3} {predicted:>34} {fmean(shares):32.3f}")


def compare(folder: Path, advice: dict[str, Any], seeds: int) -> None:
    """Train on all prompts, and on those that are kept."""
    low, high = advice["keep_between"]
    chosen = ["-m", f"seed={','.join(map(str, range(seeds)))}", f"schedule.budget_completions={COMPLETIONS}",
              "schedule.evaluations=40", "trainer.keep=none", "search.guards=false"]  # fmt: skip
    filtered = [f"task.keep_between=[{low},{high}]", f"batch.num_generations={advice['num_generations']}"]
    variants: dict[str, list[str]] = {"all": [], "kept": filtered}
    counts: dict[str, list[list[list[float]]]] = {name: [] for name in variants}  # by learning rate, seed and target
    print(f"\n{'prompts':>8} {'lr':>6}  held-out reward at the end, by seed, and the mean")
    for name, more in variants.items():
        for rate in RATES:
            run(folder, str(PROJECT / "src" / "run.py"), *chosen, *task(), f"name={name}-{rate}", f"lr={rate}", *more)
            curves = metrics(folder, f"{name}-{rate}")
            values = [last(lines) for lines in curves]
            print(
                f"{name:>8} {rate:>6}  {' '.join(f'{value:.3f}' for value in values)}  {fmean(values):.3f}", flush=True
            )
            counts[name].append([reached(lines) for lines in curves])
    print(f"\ncompletions to a held-out reward, mean of {seeds} seeds, at the better learning rate for each")
    print(f"(a seed that does not reach it counts as {COMPLETIONS}, and as missed)")
    print(f"{'reward':>8}" + "".join(f"{name:>8} {'of all':>7} {'missed':>7}" for name in counts))
    for i, target in enumerate(TARGETS):
        found = {name: min(cost(curves, i) for curves in rates) for name, rates in counts.items()}
        cells = (f"{mean:8.0f} {mean / found['all'][0]:7.0%} {missed:7}" for mean, missed in found.values())
        print(f"{target:8.2f}" + "".join(cells))


def cost(curves: list[list[float]], target: int) -> tuple[float, int]:
    """Return the mean number of completions to a target over seeds, and how many seeds do not reach it."""
    found = [curve[target] for curve in curves]
    return fmean(min(count, COMPLETIONS) for count in found), sum(count > COMPLETIONS for count in found)


def last(lines: list[dict[str, Any]]) -> float:
    """Return the last held-out reward."""
    return float([line["eval_reward"] for line in lines if "eval_reward" in line][-1])


def reached(lines: list[dict[str, Any]]) -> list[float]:
    """Return the completions after which the held-out reward first reached each target; one more than all for never."""
    points = [(line["completions"], line["eval_reward"]) for line in lines if "eval_reward" in line]
    return [next((count for count, value in points if value >= target), COMPLETIONS + 1) for target in TARGETS]


def main() -> None:
    """Run all parts."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    write_prompts(given.folder)
    print(run(given.folder, "-m", "grposweep", "screen", *task()))
    found = json.loads(run(given.folder, "-m", "grposweep", "screen", "--json", *task()))
    calibrate(given.folder, found)
    compare(given.folder, found["advice"], given.seeds)
    print(f"\nthe screen itself: {found['prompts'] * found['samples']} completions, once for all trials")


if __name__ == "__main__":
    main()
