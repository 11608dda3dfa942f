"""How often the bests of two sweeps of equal truth differ by chance: python benchmarks/two_bests.py.

All points of one sweep are equal, and so is the best of the other, whose other points are 0.3
worse. Each trial answers the same 128 prompts four times. The difference of the bests is tested
prompt by prompt, as ``grposweep compare`` does it: as one comparison, and with the trials counted
from which the better one was chosen (Bonferroni). The aim is 5 %.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from grposweep.search.sampling import Sampling

PROMPTS, COMPLETIONS = 128, 4
WORSE = 0.3


def evaluate(mean: float, spread: float, ease: Sequence[float], random: Random) -> Sampling:
    """Return the evaluation of a training whose seed moves its mean reward by chance."""
    mean = random.gauss(mean, spread)
    means = []
    for own in ease:
        chance = mean + own
        means.append(fmean(random.random() < chance for _ in range(COMPLETIONS)))
    return Sampling(stdev(means) / math.sqrt(PROMPTS), means, "prompts")


def main() -> None:
    """Print a row for each number of trials and spread over seeds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=150)
    options = parser.parse_args()
    print("| deviation of seeds | trials | as one comparison | counted |\n|---|---|---|---|")
    for spread in (0.0, 0.02):
        for trials in (4, 12, 24):
            random = Random(f"{spread} {trials}")
            one = counted = 0
            for _ in range(options.repeats):
                ease = [random.uniform(-0.15, 0.15) for _ in range(PROMPTS)]
                equal = [evaluate(0.5, spread, ease, random) for _ in range(trials)]
                other = [
                    evaluate(0.5 - WORSE * (n > 0), spread, ease, random) for n in range(trials)
                ]
                bests = [
                    max(sweep, key=lambda found: fmean(found.means)) for sweep in (equal, other)
                ]
                difference = fmean(bests[0].means) - fmean(bests[1].means)
                p = bests[0].minus(bests[1]).p_value(difference) or 0.0
                one += p < 0.05
                counted += p * trials < 0.05
            shares = f"{one / options.repeats:.0%} | {counted / options.repeats:.0%}"
            print(f"| {spread} | {trials} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
