"""Cut recorded curves at half and say how often the 90 % interval holds the last evaluation: extrapolation.py FILE..."""

import sys
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from pool import Recorded, read_pool

from grposweep.search.extrapolation import Extrapolation, extrapolate


def cut(training: Recorded) -> Extrapolation | None:
    """Return what the first half of a training says of its end."""
    half = len(training.held_out) // 2
    errors = training.errors[:half]
    return extrapolate(training.completions[:half], training.held_out[:half], errors, training.start)


def main(paths: list[str]) -> None:
    """Print a table in Markdown."""
    print(
        "| file | curves | in the 90 % interval | trusted curves | in the interval | half width | error of the median |"
    )
    print("|---|---|---|---|---|---|---|")
    for path in map(Path, paths):
        trainings = [training for place in read_pool(path).places for training in place.trainings]
        pairs = [(found, t.held_out[-1]) for t in trainings if (found := cut(t)) is not None]
        trusted = [(found, end) for found, end in pairs if not found.doubt]
        held = [[f.value.low <= end <= f.value.high for f, end in group] for group in (pairs, trusted)]
        width = median((f.value.high - f.value.low) / 2 for f, _ in trusted)
        error = median(abs(f.value.middle - end) for f, end in trusted)
        shares = [fmean(group) for group in held]
        print(
            f"| {path.stem} | {len(pairs)} | {shares[0]:.0%} | {len(trusted)} | {shares[1]:.0%} | {width:.4g} | {error:.4g} |"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
