"""Compare the present rule that ranks trials with another version of it, by paired repeats.

    git show COMMIT:src/grposweep/search/early_stopping/rank.py > before.py
    python benchmarks/curves/against.py before.py FILE... --effort 0.6 --repeats 30
    python benchmarks/curves/against.py before.py FILE... --budget 7,11,14,19 --slots 8

The other file defines a ``RankPolicy``. A ratio below 1 says that the present rule is better. It
is that of the geometric means, over files and budgets, of the means over the repeats; a mean below
0.001 counts as 0.001. Its interval is 95 %: a bootstrap over the repeats within each file.
"""

import argparse
import importlib.util
from collections.abc import Sequence
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

# it puts src on the path, and limits numpy to one thread before it is imported
import replay  # isort: skip
import numpy as np
from outcome import Outcome
from pool import Pool
from rehearsal import Policy, Rehearsal

from grposweep.search.early_stopping.rank import RankPolicy

TRIALS = 24
FLOOR = 0.001
FIGURES = ("regret", "picked")
RULES: dict[str, Any] = {"present": RankPolicy}


def main() -> None:
    """Print the ratios, and what both cost and lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="a Python file that defines RankPolicy")
    parser.add_argument("files", nargs="+", type=Path, help="recorded curves")
    parser.add_argument("--effort", type=float, help=f"of {TRIALS} trials; instead of a budget")
    parser.add_argument("--budget", default="7,14", help="trainings that a sweep costs")
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--slots", type=int, default=1)
    options = parser.parse_args()
    specification = importlib.util.spec_from_file_location("before", options.before)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    RULES["before"] = module.RankPolicy

    budgets = [None] if options.effort else [float(text) for text in options.budget.split(",")]
    cells = list(product(options.files, budgets))
    seeds = range(options.repeats)
    tasks = [
        (path, budget, rule, seed, options.effort, options.slots)
        for (path, budget), rule, seed in product(cells, RULES, seeds)
    ]
    with get_context("fork").Pool(replay.WORKERS) as workers:
        found = dict(zip(tasks, workers.imap(rehearse, tasks, chunksize=4), strict=True))

    def rows(rule: str, key: str) -> np.ndarray[Any, Any]:
        """Return a figure by cell and seed."""
        shared = options.effort, options.slots
        return np.array(
            [[found[*cell, rule, seed, *shared][key] for seed in seeds] for cell in cells]
        )

    for key in FIGURES:
        print(f"{key}: {describe_ratio(rows('present', key), rows('before', key), cells)}")
    for key in ("cost", "lost", "resumed"):
        present, before = rows("present", key).mean(), rows("before", key).mean()
        print(f"{key}: {present:.3f}, before {before:.3f}")


def rehearse(task: tuple[Path, float | None, str, int, float | None, int]) -> dict[str, float]:
    """Replay one sweep."""
    path, budget, rule, seed, effort, slots = task
    pool = replay.read(path)
    trainings = [training for place in pool.places for training in place.trainings]
    whole = fmean(training.completions[-1] for training in trainings)
    completions = None if budget is None else budget * whole
    trials = TRIALS if budget is None else len(pool.places)
    rehearsal = Rehearsal(pool, Policy("tpe"), seed, trials, slots, completions)
    if completions is None:
        rehearsal.stopping = RULES[rule](effort)
    else:
        rehearsal.stopping = RULES[rule](budget=lambda _: completions)
    outcome = rehearsal.run()
    found = outcome.figures(pool)
    if completions is not None:
        found["cost"] = outcome.completions / completions
    return found | {"picked": picked(pool, rehearsal, outcome)}


def picked(pool: Pool, rehearsal: Rehearsal, outcome: Outcome) -> float:
    """Return the regret of the winner by the finished trials' own results."""
    own = [(rehearsal.trainings[place].held_out[-1], place) for _, place in outcome.finished]
    worth = min(place.truth for place in pool.places)
    if own:
        worth = pool.places[max(own)[1]].truth
    return (pool.best - worth) / abs(pool.best)


def describe_ratio(
    present: np.ndarray[Any, Any], before: np.ndarray[Any, Any], cells: Sequence[tuple[Path, Any]]
) -> str:
    """Return the ratio of the geometric means with its interval."""
    random = np.random.default_rng(0)
    paths = list(dict.fromkeys(path for path, _ in cells))
    ratios = []
    for _ in range(2000):
        drawn = {path: random.integers(0, present.shape[1], present.shape[1]) for path in paths}
        chosen = np.array([drawn[path] for path, _ in cells])
        ratios.append(
            ratio(np.take_along_axis(present, chosen, 1), np.take_along_axis(before, chosen, 1))
        )
    low, high = np.quantile(ratios, [0.025, 0.975])
    return f"{ratio(present, before):.2f} ({low:.2f} to {high:.2f})"


def ratio(present: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> float:
    """Return the ratio of the geometric means over cells."""
    logs = [np.log(np.maximum(rows.mean(axis=1), FLOOR)).mean() for rows in (present, before)]
    return float(np.exp(logs[0] - logs[1]))


if __name__ == "__main__":
    main()
