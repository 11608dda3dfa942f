"""How fast the linter is, as whole processes: its start, valid recipes a second, and real recipes with fixes a second.

    python benchmarks/lint_speed.py
    GRPOSWEEP_CORPUS=known.jsonl python benchmarks/lint_speed.py    # real recipes too, one JSON object per line

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
            "`lint recipe.yaml`, s", [seconds([*LINT, str(recipe), "--processes", "8"]) for _ in range(REPEATS + 1)][1:]
        )
    rate("valid recipes a second", valid_recipes(20_000))
    corpus = os.environ.get("GRPOSWEEP_CORPUS")
    if corpus:
        rate("real recipes a second, with fixes", real_recipes(Path(corpus)) * 20)


def rate(name: str, lines: list[str]) -> None:
    """Recipes a second of a whole process, its start included."""
    data = ("\n".join(lines) + "\n").encode()
    row(f"{name} ({len(lines)} lines)", [len(lines) / seconds([*LINT, "--stdin-jsonl"], data) for _ in range(3)])


def seconds(command: list[str], data: bytes = b"") -> float:
    """The wall time of a process."""
    since = time.perf_counter()
    done = subprocess.run(command, input=data, stdout=subprocess.DEVNULL, env=ENVIRONMENT, check=False)
    assert done.returncode in (0, 1), command  # 1 is an answer: errors found
    return time.perf_counter() - since


def row(name: str, values: list[float]) -> None:
    """Median, least and most."""
    print("| " + " | ".join([name, *(f"{f(values):.4g}" for f in (statistics.median, min, max))]) + " |")


def valid_recipes(count: int) -> list[str]:
    """Random recipes without a problem: whole groups, and every key that TRL 1.16 takes."""
    draw, lines = random.Random(0), []
    for number in range(count):
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
        lines.append(json.dumps({"id": number, "framework": "trl", "processes": draw.randint(1, 8), "config": config}))
    return lines


def real_recipes(path: Path) -> list[str]:
    """Those of the corpus that are for TRL or Open-R1."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    keys = ("id", "framework", "processes", "config")
    return [json.dumps({key: item[key] for key in keys}) for item in records if item["framework"] in ("trl", "open-r1")]


if __name__ == "__main__":
    main()
