"""Cut recorded curves at half and say how often the 90 % interval holds the last evaluation: extrapolation.py FILE...

"calibrated" is the same with intervals as wide as ``TRAININGS`` other curves of the file need (at most half of it), drawn
``DRAWS`` times: what a sweep does that has finished as many.
"""

import sys
from pathlib import Path
from random import Random
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from pool import Recorded, read_pool

from grposweep.search.extrapolation import Evaluations, Extrapolation, calibrate, extrapolate

DRAWS = 20
TRAININGS = 40

Forecast = tuple[Extrapolation, float]  # and the end


def as_curve(training: Recorded) -> Evaluations:
    """Return a training as what is extrapolated."""
    return Evaluations(training.completions, training.held_out, training.errors, training.start)


def forecast(curves: list[Evaluations], others: list[Evaluations]) -> list[Forecast]:
    """Return what the first halves say of the ends, with intervals as wide as the other curves need."""
    calibration = calibrate(others)
    cut = ((curve, extrapolate(curve.until(len(curve.values) // 2), calibration=calibration)) for curve in curves)
    return [(found, curve.values[-1]) for curve, found in cut if found is not None]


def held(forecasts: list[Forecast]) -> float:
    """Return the share of ends within their intervals."""
    return fmean(found.value.low <= end <= found.value.high for found, end in forecasts)


def half_width(forecasts: list[Forecast]) -> float:
    """Return the median."""
    return median((found.value.high - found.value.low) / 2 for found, _ in forecasts)


def calibrated(curves: list[Evaluations]) -> tuple[float, float]:
    """Return the share held and the half width of trusted curves that were not calibrated on: the means over the draws."""
    rows = []
    for seed in range(DRAWS):
        mixed = Random(seed).sample(curves, len(curves))
        used = min(TRAININGS, len(curves) // 2)
        calibrating, rest = mixed[:used], mixed[used:]
        trusted = [pair for pair in forecast(rest, calibrating) if not pair[0].doubt]
        if trusted:
            rows.append((held(trusted), half_width(trusted)))
    shares, widths = zip(*rows, strict=True)
    return fmean(shares), fmean(widths)


def main(paths: list[str]) -> None:
    """Print a table in Markdown."""
    print(
        "| file | curves | in the 90 % interval | trusted curves | in the interval | half width | error of the median "
        "| calibrated | half width |"
    )
    print("|---" * 9 + "|")
    for path in map(Path, paths):
        curves = [as_curve(training) for place in read_pool(path).places for training in place.trainings]
        pairs = forecast(curves, [])
        trusted = [pair for pair in pairs if not pair[0].doubt]
        error = median(abs(found.value.middle - end) for found, end in trusted)
        share, width = calibrated(curves)
        print(
            f"| {path.stem} | {len(pairs)} | {held(pairs):.0%} | {len(trusted)} | {held(trusted):.0%} "
            f"| {half_width(trusted):.4g} | {error:.4g} | {share:.0%} | {width:.4g} |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
