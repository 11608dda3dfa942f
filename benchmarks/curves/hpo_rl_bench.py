"""Convert PPO's curves of HPO-RL-Bench to the files that replay.py reads; the curves stay outside
this repository.

    git clone https://github.com/releaunifreiburg/HPO-RL-Bench
    python benchmarks/curves/hpo_rl_bench.py HPO-RL-Bench Enduro-v0 enduro.jsonl
    python benchmarks/curves/hpo_rl_bench.py HPO-RL-Bench Enduro-v0 phases.jsonl --phases

Source: Shala, Arango, Biedenkapp, Hutter, Grabocka 2024, HPO-RL-Bench. Each line is a training: 100
evaluations of ten episodes each, of which ``BLOCK`` in a row are averaged to one. The cost of an
evaluation is counted as 1. With ``--phases``, ``DRAWN`` random points whose learning rate and
discount change after each third of the training.
"""

import argparse
import json
import random
import re
import subprocess
from pathlib import Path
from statistics import fmean
from typing import Any

BLOCK = 5
CONSTANT = re.compile(r"_PPO_random_lr_(-\d)_gamma_([\d.]+)_clip_([\d.]+)_seed(\d+)_eval\.json$")
PHASES = re.compile(r"_PPO_random_lr_(-\d-\d-\d)_gamma_([\d.]+)_seed(\d)_eval\.json$")
# trainings a point with phases has, as far as it is complete
SEEDS = 3
DRAWN = 100


def git(repository: Path, *words: str) -> bytes:
    """Return what git prints: a bare repository will do."""
    return subprocess.run(
        ["git", "-C", str(repository), *words], stdout=subprocess.PIPE, check=True
    ).stdout


def line(task: str, point: dict[str, float], seed: int, returns: list[float]) -> dict[str, Any]:
    """Return one training as a line of replay.py's files."""
    held_out = [
        round(fmean(returns[i : i + BLOCK]), 4) for i in range(0, len(returns) - BLOCK + 1, BLOCK)
    ]
    return {
        "task": task,
        "point": point,
        "seed": seed,
        "start": None,
        "held_out": held_out,
        "completions_per_step": BLOCK,
    }


def constant(task: str, path: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return a training at one point throughout."""
    match = CONSTANT.search(path)
    assert match is not None
    point = {"lr": 10.0 ** int(match[1]), "gamma": found["gamma"], "clip": found["clip"]}
    return line(task, point, int(match[4]), found["returns_eval"])


def changing(path: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return a training whose learning rate and discount change twice."""
    match = PHASES.search(path)
    assert match is not None
    rates = {
        f"lr{phase}": 10.0**exponent for phase, exponent in enumerate(found["learning_rate"], 1)
    }
    discounts = {f"gamma{phase}": gamma for phase, gamma in enumerate(found["gamma"], 1)}
    return line("phases", rates | discounts, int(match[3]), found["returns_eval"])


def drawn(paths: list[str]) -> list[str]:
    """Return the trainings of random complete points with phases, the same ones at each call."""
    points: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        if match := PHASES.search(path):
            points.setdefault((match[1], match[2]), []).append(path)
    complete = sorted(point for point, found in points.items() if len(found) == SEEDS)
    return [
        path
        for point in sorted(random.Random(0).sample(complete, DRAWN))
        for path in sorted(points[point])
    ]


def main(repository: Path, task: str, out: Path, phases: bool) -> None:
    """Write the file."""
    listed = (
        git(repository, "ls-tree", "-r", "--name-only", "HEAD", f"data_hpo_rl_bench/PPO/{task}/")
        .decode()
        .split()
    )
    wanted = drawn(listed) if phases else [path for path in listed if CONSTANT.search(path)]
    lines = []
    for path in wanted:
        found = json.loads(git(repository, "show", f"HEAD:{path}"))
        lines.append(json.dumps(changing(path, found) if phases else constant(task, path, found)))
    out.write_text("".join(f"{text}\n" for text in lines))
    print(f"{len(lines)} curves in {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=Path, help="a clone of HPO-RL-Bench")
    parser.add_argument("task", help="Enduro-v0, Pong-v0, ...")
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--phases", action="store_true", help="points that change after each third of the training"
    )
    options = parser.parse_args()
    main(options.repository, options.task, options.out, options.phases)
