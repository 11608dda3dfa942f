"""Write curves of made-up families, as replay.py reads them: python families.py FOLDER.

100 random points of four parameters with three seeds of ten evaluations each. A point is worth most
at a learning rate and three other values that are drawn for each file. ``crossing``: high rates rise
first and end lower. ``delayed``: each curve is flat and then jumps. ``collapse``: high rates rise
first and fall later. ``noisy``: a standard deviation of 0.08 instead of 0.02 at each evaluation.
"""

import json
import math
import sys
from pathlib import Path
from random import Random
from typing import Any

FAMILIES = ("crossing", "delayed", "collapse", "noisy")
POINTS, SEEDS, EVALUATIONS = 100, 3, 10
START = 0.1


def main(folder: Path) -> None:
    """Write two files of each family."""
    for family in FAMILIES:
        for draw in (1, 2):
            lines = [json.dumps(line) + "\n" for line in trainings(family, draw)]
            (folder / f"{family}{draw}.jsonl").write_text("".join(lines))


def trainings(family: str, draw: int) -> list[dict[str, Any]]:
    """Return the recorded trainings of one file."""
    random = Random(f"{family}:{draw}")
    best = 10 ** random.uniform(-6, -4.5)
    weights = [random.uniform(0.05, 0.25) for _ in range(3)]
    optimum = [random.random() for _ in range(3)]
    jump = random.uniform(0.2, 0.5)
    lines = []
    for number in range(POINTS):
        rate = 10 ** random.uniform(-7, -3.5)
        others = [round(random.random(), 3) for _ in range(3)]
        decades = math.log10(rate / best)
        worth = 0.9 - 0.25 * decades**2
        for weight, value, wanted in zip(weights, others, optimum, strict=True):
            worth -= weight * abs(value - wanted)
        jumps = jump * 10 ** (-0.25 * decades) + 0.1 * others[0]
        for seed in range(SEEDS):
            noise = Random(f"{family}:{draw}:{number}:{seed}")
            lines.append(
                {
                    "point": {"lr": rate, "a": others[0], "b": others[1], "c": others[2]},
                    "steps": list(range(1, EVALUATIONS + 1)),
                    "completions_per_step": 100,
                    "held_out": values(family, max(worth, 0.0), decades, jumps, noise),
                    "held_out_se": [spread(family)] * EVALUATIONS,
                    "start": START,
                    "seconds": 60.0,
                }
            )
    return lines


def values(family: str, worth: float, decades: float, jumps: float, noise: Random) -> list[float]:
    """Return the evaluations of a training whose rate is so many decades above the best one."""
    end = worth + noise.gauss(0, 0.015)
    steepness = 0.8 if family == "crossing" else 0.5
    speed = min(max(3 * 10 ** (steepness * decades), 0.3), 60.0)
    if family == "crossing":
        end = max(0.05, end - 0.12 * math.log10(speed + 1) + 0.1)
    jump = min(0.95, max(0.05, jumps + noise.gauss(0, 0.12)))
    falls = noise.uniform(0.35, 0.8)
    found = []
    for evaluation in range(1, EVALUATIONS + 1):
        share = evaluation / EVALUATIONS
        risen = (1 - math.exp(-speed * share)) / (1 - math.exp(-speed))
        if family == "delayed":
            risen = 1 / (1 + math.exp(-(share - jump) / 0.04))
        value = START + (end - START) * risen
        if family == "collapse" and decades > 0.2:
            value += 0.25 * min(decades, 1.0) * math.exp(-(((share - 0.25) / 0.2) ** 2))
            value -= min(max((share - falls) / 0.2, 0.0), 1.0) * min(0.5, 0.5 * decades)
        found.append(round(value + noise.gauss(0, spread(family)), 4))
    return found


def spread(family: str) -> float:
    """Return the standard deviation of an evaluation."""
    return 0.08 if family == "noisy" else 0.02


if __name__ == "__main__":
    main(Path(sys.argv[1]))
