"""Replay sweeps that first try the best points of an earlier sweep of another task.

    python benchmarks/curves/earlier.py --repeats 12

Each pair of files has the same points, recorded on two tasks. A sweep of the first file costs 14
trainings. Its best three points, by its own results, are tried first in a sweep of the second file,
as ``search.warm_start`` does it. The cost of the earlier sweep is not counted. A ratio is that of
the regret to the same sweep without the earlier one (geometric means over pairs; a mean below 0.001
counts as 0.001); its interval is 95 %, a bootstrap over the pairs.
"""

import argparse
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

# it puts src on the path, and limits numpy to one thread before it is imported
import replay  # isort: skip
import numpy as np
from against import FLOOR, picked
from rehearsal import Policy, Rehearsal

from grposweep.search.space import freeze
from grposweep.sweep._warm_start import FIRST

HERE = Path(__file__).parent
EARLIER = 14.0
BUDGETS = (3.0, 5.0, 7.0, 14.0)
SPACES = (
    ("arithmetic", "successor"),
    ("larger", "copy"),
    ("fresh_larger", "fresh_copy"),
    ("sparse", "gamed"),
)
PAIRS = [pair for space in SPACES for pair in (space, space[::-1])]


def sweep(name: str, seed: int, budget: float, first: Sequence[int] = ()) -> Rehearsal:
    """Replay a sweep with a budget of so many mean trainings, which starts with given places."""
    pool = replay.read(HERE / f"{name}.jsonl")
    whole = fmean(training.completions[-1] for place in pool.places for training in place.trainings)
    policy = Policy("tpe", "rank")
    rehearsal = Rehearsal(pool, policy, seed, len(pool.places), 1, budget * whole, first)
    rehearsal.run()
    return rehearsal


def rehearse(task: tuple[tuple[str, str], int]) -> list[list[float]]:
    """Return regret and regret of the picked winner, without and with the earlier sweep, by
    budget.
    """
    (earlier, later), seed = task
    before = sweep(earlier, seed + 1000, EARLIER)
    own = [(before.trainings[place].held_out[-1], place) for _, place in before.outcome.finished]
    best = [freeze(before.pool.places[place].point) for _, place in sorted(own, reverse=True)]
    points = [freeze(place.point) for place in replay.read(HERE / f"{later}.jsonl").places]
    first = [points.index(point) for point in best if point in points][:FIRST]
    rows = []
    for budget in BUDGETS:
        row = []
        for begun in ([], first):
            found = sweep(later, seed, budget, begun)
            row.append(found.outcome.figures(found.pool)["regret"])
            row.append(picked(found.pool, found, found.outcome))
        rows.append(row)
    return rows


def main() -> None:
    """Print a row for each budget, and one for each pair."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=12)
    options = parser.parse_args()
    tasks = [(pair, seed) for pair in PAIRS for seed in range(options.repeats)]
    with get_context("fork").Pool(replay.WORKERS) as workers:
        found = np.array(workers.map(rehearse, tasks, chunksize=2))
    means = found.reshape(len(PAIRS), options.repeats, len(BUDGETS), 4).mean(axis=1)
    for pair, rows in zip(PAIRS, means, strict=True):
        cells = [f"{cold:.3f} -> {warm:.3f}" for cold, _, warm, _ in rows]
        print(f"| {pair[0]}, then {pair[1]} | {' | '.join(cells)} |")
    logs = np.log(np.maximum(means, FLOOR))
    print("| budget | regret (95 %) | picked (95 %) |\n|---|---|---|")
    for index, budget in enumerate(BUDGETS):
        cells = [describe(logs[:, index, 2 + key] - logs[:, index, key]) for key in (0, 1)]
        print(f"| {budget:g} | {' | '.join(cells)} |")


def describe(ratios: Any) -> str:
    """Return the geometric mean of ratios with its interval over pairs, from their logarithms."""
    random = np.random.default_rng(0)
    drawn = ratios[random.integers(0, len(ratios), (2000, len(ratios)))].mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return f"{np.exp(ratios.mean()):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
