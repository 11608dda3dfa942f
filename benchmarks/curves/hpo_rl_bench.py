"""Convert PPO's curves of HPO-RL-Bench to the files that replay.py reads; the curves stay outside this repository.

    git clone https://github.com/releaunifreiburg/HPO-RL-Bench
    python benchmarks/curves/hpo_rl_bench.py HPO-RL-Bench Enduro-v0 enduro.jsonl

Source: Shala, Arango, Biedenkapp, Hutter, Grabocka 2024, HPO-RL-Bench. Each line is a training: 100 evaluations of ten episodes
each, of which ``BLOCK`` in a row are averaged to one. The cost of an evaluation is counted as 1.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

BLOCK = 5
NAME = re.compile(r"_PPO_random_lr_(-\d)_gamma_([\d.]+)_clip_([\d.]+)_seed(\d+)_eval\.json$")


def git(repository: Path, *words: str) -> bytes:
    """Return what git prints: a bare repository will do."""
    return subprocess.run(["git", "-C", str(repository), *words], stdout=subprocess.PIPE, check=True).stdout


def line(task: str, exponent: int, found: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return one training as a line of replay.py's files."""
    returns = found["returns_eval"]
    held_out = [round(fmean(returns[i : i + BLOCK]), 4) for i in range(0, len(returns) - BLOCK + 1, BLOCK)]
    return {
        "task": task,
        "point": {"lr": 10.0**exponent, "gamma": found["gamma"], "clip": found["clip"]},
        "seed": seed,
        "start": None,
        "held_out": held_out,
        "completions_per_step": BLOCK,
    }


def main(repository: Path, task: str, out: Path) -> None:
    """Write the file."""
    listed = git(repository, "ls-tree", "-r", "--name-only", "HEAD", f"data_hpo_rl_bench/PPO/{task}/").decode().split()
    lines = []
    for path in listed:
        if match := NAME.search(path):
            found = json.loads(git(repository, "show", f"HEAD:{path}"))
            lines.append(json.dumps(line(task, int(match[1]), found, int(match[4]))))
    out.write_text("".join(f"{text}\n" for text in lines))
    print(f"{len(lines)} curves in {out}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
