"""Judging a grid of 10,000 points by look-up against composing each point with Hydra and judging it; and a million points.

Both in one run. Composing 10,000 points takes minutes, so a random sample of them is composed and its rate is used.
Aims: at least 100 times faster; a million points in 10 s.
"""

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from grporecipe.rules.check import check, errors
from grposweep.config.compose import Session, open_session, to_experiment
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.search.grid import GridValidity, evaluate_grid
from grposweep.search.parse import parse_space
from grposweep.search.validity import Validator

GRID = [
    "lr=1e-6,3e-6,1e-5,3e-5,1e-4,3e-4,1e-3,3e-3,1e-2,3e-2",
    "batch=small,medium,large,open_r1_small,open_r1_medium",
    "batch.num_generations=2,4,6,8,12",
    "kl=none,low,high,sync_ref",
    "cluster.processes=1,2,4,7,8",
    "loss=grpo,dapo",
]
MILLION = [*GRID, "kl.beta=0,0.001,0.01,0.04,0.1", "optimizer=adamw,adamw_linear,adamw_cosine,adamw", "seed=range(7)"]
SAMPLE = 200


def judged(session: Session, arguments: list[str]) -> tuple[float, GridValidity]:
    """Seconds to judge a whole space, everything included, and its validity."""
    since = time.perf_counter()
    space, fixed = parse_space(arguments, {})
    validity = evaluate_grid(Validator(space, Points(session.compose, fixed)))
    return time.perf_counter() - since, validity


def main() -> None:
    """Print both comparisons."""
    with open_session() as session:
        session.compose([])  # what Hydra reads once is not measured
        seconds, validity = judged(session, GRID)
        points = random.Random(0).sample(list(validity.validator.space.finite_points()), SAMPLE)
        valid = {frozenset(point.items()) for point in validity.valid_points()}
        since = time.perf_counter()
        agree = 0
        for point in points:
            experiment = to_experiment(session.compose([f"{name}={label}" for name, label in point.items()]))
            agree += (not errors(check(read_setting(experiment)))) == (frozenset(point.items()) in valid)
        each = (time.perf_counter() - since) / SAMPLE
        print("| points | judged by look-up, s | composing each with Hydra, s | ratio | verdicts that agree |")
        print("|---|---|---|---|---|")
        print(
            f"| {validity.total:,} | {seconds:.2f} | {each * validity.total:.0f} (from {SAMPLE} points) "
            f"| {each * validity.total / seconds:.0f} | {agree} of {SAMPLE} |"
        )
        seconds, validity = judged(session, MILLION)
        print(f"| {validity.total:,} | {seconds:.2f} | - | - | - |")


if __name__ == "__main__":
    main()
