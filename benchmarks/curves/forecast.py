"""Measure whether a forecast of a training that is continued twice as long can be trusted.

    python benchmarks/curves/forecast.py FILE... [--drift 2.5]

Each recorded curve is cut in the middle. Saturating curves of 41 rates are fitted to the first half
by Bayesian linear regression and averaged by their likelihood; the value at the end gets an 80 %
interval. ``--drift`` widens it by a random walk after the part that was seen. Printed are the share
of ends inside, the width, and the mean error, with that of "it stays as it is".
"""

import argparse
import json
from collections.abc import Iterator
from math import lgamma
from pathlib import Path
from typing import Any

import numpy as np

# in units of the part that was seen
RATES = np.geomspace(0.1, 10, 41)
# prior standard deviation of the gain, and degrees of freedom of the noise's prior, halved
GAIN, NOISE = 0.3, 2.0
ENDS = (0.1, 0.5, 0.9)
DRAWS = 4000
Array = Any


def main() -> None:
    """Print a row for each file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="recorded curves")
    parser.add_argument("--drift", type=float, default=2.5)
    options = parser.parse_args()
    print("| file | curves | ends inside | width | error | error of no change |")
    print("|---|---|---|---|---|---|")
    for path in options.files:
        rows = []
        for steps, values, error, last in halves(path):
            low, middle, high = forecast(steps, values, error, last[0], options.drift)
            low, high = max(low, 0.0), min(high, 1.0)
            inside = low <= last[1] <= high
            rows.append(
                (inside, high - low, abs(middle - last[1]), abs(float(values[-1]) - last[1]))
            )
        inside, width, error, stays = np.mean(rows, axis=0)
        cells = f"{len(rows)} | {100 * inside:.0f} % | {width:.2f} | {error:.3f} | {stays:.3f}"
        print(f"| {path.stem} | {cells} |", flush=True)


def halves(path: Path) -> Iterator[tuple[Array, Array, float, tuple[float, float]]]:
    """Yield the first half of each curve with the value before training, its mean standard error,
    and the last evaluation. Steps are in units of the part that was seen.
    """
    for line in path.read_text(encoding="utf-8").splitlines():
        curve = json.loads(line)
        held_out, steps = curve["held_out"], np.array([0, *curve["steps"]], float)
        half = len(held_out) // 2
        steps /= steps[half]
        values = np.array([curve["start"], *held_out[:half]])
        error = max(float(np.mean(curve["held_out_se"])), 1e-3)
        yield steps[: half + 1], values, error, (float(steps[-1]), held_out[-1])


def forecast(steps: Array, values: Array, error: float, end: float, drift: float) -> Array:
    """Return the quantiles `ENDS` of the value at ``end``."""
    precision = np.diag([1e-3, (error / GAIN) ** 2])
    prior = np.array([values[0], 0.0])
    means, widths, weights = [], [], []
    shape = NOISE + len(values) / 2
    for rate in RATES:
        columns = np.stack([np.ones_like(steps), 1 - np.exp(-steps / rate)], axis=1)
        after = columns.T @ columns + precision
        spread = np.linalg.inv(after)
        mean = spread @ (columns.T @ values + precision @ prior)
        rest = values @ values + prior @ precision @ prior - mean @ after @ mean
        scale = NOISE * error**2 + max(rest, 0.0) / 2
        evidence = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(after)[1]
        weights.append(evidence / 2 - shape * np.log(scale) + lgamma(shape))
        at = np.array([1.0, 1 - np.exp(-end / rate)])
        variance = scale / shape * (1 + at @ spread @ at + drift**2 * (end - 1))
        means.append(at @ mean)
        widths.append(np.sqrt(variance))
    share = np.exp(np.array(weights) - max(weights))
    random = np.random.default_rng(0)
    which = random.choice(len(RATES), DRAWS, p=share / share.sum())
    noise = random.standard_t(2 * shape, DRAWS)
    return np.quantile(np.array(means)[which] + np.array(widths)[which] * noise, ENDS)


if __name__ == "__main__":
    main()
