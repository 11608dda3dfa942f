"""Compare the effects of parameters that a sweep shows early with those at the end of all trials.

    python benchmarks/curves/effects.py FILE... --repeats 20

Each sweep has 24 trials at effort 0.6. Its effects are judged three times: with every trial at its
end, with every trial at the least share of the training that all have had, and as the report does
it (each trial at its own share, with what finished ones gained from there). Two parameters are
added that change nothing. ``same``: significant at the end too, for the same better part.
``opposite``: significant at the end for another part. ``false``: sweeps in which a parameter that
changes nothing is significant.
"""

import argparse
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

# it puts src on the path, and limits numpy to one thread before it is imported
import replay  # isort: skip
from rehearsal import Policy, Rehearsal, StartedTrial

from grposweep.search.analysis import Measured, find_contrasts, gain_after
from grposweep.search.early_stopping import State
from grposweep.search.sampling import Sampling
from grposweep.search.space import Choice, Interval, Parameter

TRIALS = 24
EFFORT = 0.6
# Draws of the parameters that change nothing.
DRAWS = 3
NOTHING = (Parameter("choice", Choice(("a", "b"), ("a", "b"))), Parameter("range", Interval(0, 1)))
Curve = list[tuple[float, float]]


def main() -> None:
    """Print a row for each file and way."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="recorded curves")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    print(
        "| file | judged | effects | same | opposite | sweeps | false |\n|---|---|---|---|---|---|---|"
    )
    for path in options.files:
        pool = replay.read(path)
        counts: dict[str, Counter[str]] = {}
        for seed in range(options.repeats):
            rehearsal = Rehearsal(pool, Policy("tpe", "auto", EFFORT), seed, TRIALS)
            rehearsal.run()
            for draw in range(DRAWS):
                count(rehearsal, Random(f"{seed}:{draw}"), counts)
        for way, found in counts.items():
            cells = [found[name] for name in ("effects", "same", "opposite", "sweeps", "false")]
            print(f"| {path.stem} | {way} | {' | '.join(map(str, cells))} |", flush=True)


def count(rehearsal: Rehearsal, random: Random, counts: dict[str, Counter[str]]) -> None:
    """Count the effects of one sweep under each way to judge."""
    parameters = {known.name: known for known in (*rehearsal.pool.space.parameters, *NOTHING)}
    points = []
    for trial in rehearsal.trials:
        known = {name: label for name, label in trial.curve.point.items() if name in parameters}
        points.append(known | {"choice": random.choice("ab"), "range": random.random()})
    effects: dict[str, dict[str, Any]] = {}
    for way, values in judge(rehearsal.trials).items():
        measured = []
        for point, value, trial in zip(points, values, rehearsal.trials, strict=True):
            error = trial.curve.errors[-1] if trial.curve.errors else None
            measured.append(Measured(point, value, Sampling(error)))
        contrasts = find_contrasts(parameters, measured, maximize=True)
        clear = {found.parameter: found.better for found in contrasts if found.is_significant}
        effects[way] = {name: part for name, part in clear.items() if name not in NAMES}
        row = counts.setdefault(way, Counter())
        row["sweeps"] += 1
        row["false"] += len(effects[way]) < len(clear)
        row["effects"] += len(effects[way])
        at_end = effects["at the end"]
        row["same"] += sum(at_end.get(name) == part for name, part in effects[way].items())
        row["opposite"] += sum(
            at_end.get(name, part) != part for name, part in effects[way].items()
        )


NAMES = {parameter.name for parameter in NOTHING}


def judge(trials: list[StartedTrial]) -> dict[str, list[float]]:
    """Return the value of each trial under each way."""
    whole = [curve_of(trial.recorded) for trial in trials]
    shares = [trial.curve.share for trial in trials]
    pairs = list(zip(trials, whole, strict=True))
    finished = [curve for trial, curve in pairs if trial.curve.state is State.FINISHED]
    gains = {share: gain_after(share, finished) for share in set(shares)}
    return {
        "at the end": [curve[-1][1] for curve in whole],
        "at the least share": [value_at(min(shares), curve) for curve in whole],
        "as reported": [
            value_at(share, curve) + gains[share]
            for share, curve in zip(shares, whole, strict=True)
        ],
    }


def curve_of(recorded: Any) -> Curve:
    """Return the shares of a recorded training with their values."""
    shares = [done / recorded.completions[-1] for done in recorded.completions]
    return list(zip(shares, recorded.held_out, strict=True))


def value_at(share: float, curve: Curve) -> float:
    """Return the last value until a share."""
    return [value for at, value in curve if at <= share + 1e-9][-1]


if __name__ == "__main__":
    main()
