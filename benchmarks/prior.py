"""What search.prior=published gains if it is right, and costs if it is wrong: TPE on a made-up
response, paired by seed.

A sweep of 20 trials searches the learning rate from 1e-8 to 1e-3, a batch and a KL setting. The
final value falls with the square of the distance (in decades) to the best rate, which is the
published one, or one, two or three decades above it. Figures are what the best trial is below the
optimum after 5, 10 and 20 trials.

python benchmarks/prior.py [--seeds 40]
"""

import argparse
import math
import sys
from pathlib import Path
from random import Random
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from grporecipe.model.rates import FULL
from grposweep.search.replication import estimate
from grposweep.search.sampler import ValidPoints, prior_points
from grposweep.search.space import Choice, Interval, Parameter, Point, Space
from grposweep.search.study import SweepStudy

SPACE = Space(
    (
        Parameter("batch", Choice(("small", "medium", "large"), (1, 2, 3))),
        Parameter("kl", Choice(("none", "low"), (0, 1))),
        Parameter("lr", Interval(1e-8, 1e-3, log=True)),
    )
)
FINITE = list(SPACE.finite_points())
TRIALS, NOISE, TOP = 20, 0.01, 0.8
# trials
AFTER = (5, 10, 20)


def truth(point: Point, best: float) -> float:
    """The final value without noise."""
    distance = math.log10(float(point["lr"] or 0) / best)
    return (
        TOP
        - 0.1 * distance**2
        - 0.02 * (point["batch"] == "small")
        - 0.01 * (point["kl"] == "none")
    )


def regrets(seed: int, best: float, first: list[Point]) -> list[float]:
    """What the best trial is below the optimum after each number of trials."""
    study, noise = SweepStudy(SPACE, "maximize"), Random(seed)
    valid, found = ValidPoints(lambda _: True, tuple(FINITE)), list[float]()
    for number in range(TRIALS):
        point = study.ask(valid, "tpe", seed, first[number] if number < len(first) else {})
        assert point is not None
        found.append(truth(point, best))
        study.tell(study.add(point, {"experiment": str(number)}), found[-1] + noise.gauss(0, NOISE))
    return [TOP - max(found[:count]) for count in AFTER]


def compare(best: float, seed: int) -> tuple[list[float], list[float]]:
    """The same without and with the prior."""
    first = prior_points(SPACE, FINITE, lambda _: FULL.usual, seed)
    return regrets(seed, best, []), regrets(seed, best, first)


def main() -> None:
    """Print a row for each distance of the best rate from the published one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    seeds = parser.parse_args().seeds
    print(
        "best rate   below the optimum after so many trials: without, with the prior, "
        "difference ± 95 %"
    )
    for best in (1e-6, 1e-5, 1e-4, 1e-3):
        pairs = [compare(best, seed) for seed in range(seeds)]
        cells = []
        for index, count in enumerate(AFTER):
            without, prior = ([pair[side][index] for pair in pairs] for side in (0, 1))
            paired = estimate([b - a for a, b in zip(without, prior, strict=True)])
            cells.append(
                f"{count:2}: {fmean(without):.3f} {fmean(prior):.3f} {paired.mean:+.3f} ± "
                f"{paired.margin:.3f}"
            )
        print(f"{best:9.0e}   " + "   ".join(cells))


if __name__ == "__main__":
    main()
