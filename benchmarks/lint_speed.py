"""How fast the linter is: its start as a process, valid recipes a second, and real recipes with
fixes a second.

    python benchmarks/lint_speed.py
    GRPOSWEEP_CORPUS=known.jsonl python benchmarks/lint_speed.py    # real recipes too, one JSON
    object per line

Aims: start under 0.5 s; 5,000 valid recipes a second; 1,000 real recipes a second, fixes included.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from grporecipe.linting.linter import lint_recipe
from grporecipe.linting.output import render_result
from grporecipe.reading.load import Options, build_recipe

LINT = [sys.executable, "-m", "grposweep", "lint"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src")}
REPEATS = 7
RECIPE = """\
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
num_generations: 8
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
learning_rate: 5.0e-06
warmup_steps: 0.05
beta: 0.0
max_steps: 500
"""


def main() -> None:
    """Print one row a measurement."""
    print("| what | median | min | max |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "recipe.yaml")
        recipe.write_text(RECIPE, encoding="utf-8")
        row(
            "`lint recipe.yaml`, s",
            [seconds([*LINT, str(recipe), "--processes", "8"]) for _ in range(REPEATS + 1)][1:],
        )
    rate("valid recipes a second", valid_recipes(20_000))
    corpus = os.environ.get("GRPOSWEEP_CORPUS")
    if corpus:
        rate("real recipes a second, with fixes", real_recipes(Path(corpus)) * 20)


def rate(name: str, records: list[dict[str, Any]]) -> None:
    """Recipes a second, each answered as JSON."""
    values = []
    for _ in range(3):
        since = time.perf_counter()
        for record in records:
            options = Options(record["framework"], processes=record["processes"])
            render_result(lint_recipe(build_recipe(record["config"], options)))
        values.append(len(records) / (time.perf_counter() - since))
    row(f"{name} ({len(records)} recipes)", values)


def seconds(command: list[str]) -> float:
    """The wall time of a process."""
    since = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=False)
    # 1 is an answer: errors found
    assert done.returncode in (0, 1), command
    return time.perf_counter() - since


def row(name: str, values: list[float]) -> None:
    """Median, least and most."""
    print(
        "| "
        + " | ".join([name, *(f"{f(values):.4g}" for f in (statistics.median, min, max))])
        + " |"
    )


def valid_recipes(count: int) -> list[dict[str, Any]]:
    """Random recipes without a problem: whole groups, and every key that TRL 1.16 takes."""
    draw, records = random.Random(0), list[dict[str, Any]]()
    for _ in range(count):
        config = {
            "num_generations": (group := draw.choice([4, 8, 16])),
            "per_device_train_batch_size": group * draw.choice([1, 2]),
            "gradient_accumulation_steps": draw.choice([8, 16]),
            "learning_rate": draw.choice([1e-6, 2e-6, 5e-6]),
            "warmup_steps": 0.05,
            "beta": 0.0,
            "temperature": draw.choice([0.7, 1.0]),
            "max_steps": draw.randrange(500, 2000, 100),
            "save_steps": 100,
            "max_completion_length": draw.choice([512, 1024]),
        }
        records.append({"framework": "trl", "processes": draw.randint(1, 8), "config": config})
    return records


def real_recipes(path: Path) -> list[dict[str, Any]]:
    """Those of the corpus that are for TRL or Open-R1."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record for record in records if record["framework"] in ("trl", "open-r1")]


if __name__ == "__main__":
    main()
