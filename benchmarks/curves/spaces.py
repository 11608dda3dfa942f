"""Compare `search.budget` with the best of the other policies, space by space.

    python benchmarks/curves/spaces.py                  (10 CPU minutes, 5 minutes on two cores)
    python benchmarks/curves/spaces.py --repeats 64     (four times as long)
    python benchmarks/curves/spaces.py --spaces bonus,turns --slots 1 --repeats 4

Files with the same points and the same model are one space. A figure is the geometric mean over
files and budgets of the means over the repeats; a mean below 0.001 counts as 0.001. The ratio is
to the policy with the least regret (or picked regret) in this space, chosen with hindsight. Below
the spaces: the geometric means of their ratios, to the best of each space and to the one policy
that is best over all, with 95 % intervals (bootstrap over spaces).
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

# it puts src on the path, and limits numpy to one thread before it is imported
import replay  # isort: skip
import numpy as np
from policies import DEFAULT

HERE = Path(__file__).resolve().parent
SPACES = {
    "arithmetic": ("arithmetic", "successor"),
    "larger": ("larger", "copy"),
    "fresh_larger": ("fresh_larger", "fresh_copy"),
    "sparse": ("sparse", "gamed"),
    "wide": ("wide",),
    "adapters": ("adapters",),
    "bonus": ("bonus",),
    "turns": ("turns",),
}
OTHERS = ("own_asha", "halving", "hyperband", "asha", "median", "tpe")
FIGURES = ("regret", "picked")
FLOOR = 0.001
BOOTSTRAPS = 2000

# by policy
Row = Mapping[str, float]


def main() -> None:
    """Print a table for each number of slots and each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spaces", default=",".join(SPACES), help="names of spaces")
    parser.add_argument("--budget", default="7,11,14,19", help="trainings that a sweep costs")
    parser.add_argument("--slots", default="1,8", help="trials at once")
    parser.add_argument("--repeats", type=int, default=16)
    options = parser.parse_args()
    spaces = options.spaces.split(",")
    budgets = [float(text) for text in options.budget.split(",")]
    for slots in [int(text) for text in options.slots.split(",")]:
        found = replay_spaces(spaces, budgets, options.repeats, slots)
        for figure in FIGURES:
            print_table(figure, slots, {space: found[space, figure] for space in spaces})


def replay_spaces(
    spaces: Sequence[str], budgets: Sequence[float], repeats: int, slots: int
) -> dict[tuple[str, str], Row]:
    """Return the figures of all policies by space and figure."""
    names = [name for space in spaces for name in SPACES[space]]
    policies = (DEFAULT, *OTHERS)
    paths = [HERE / f"{name}.jsonl" for name in names]
    tasks = list(product(paths, policies, budgets, range(repeats), [slots]))
    with get_context("fork").Pool(replay.WORKERS) as workers:
        rows = workers.imap(replay.rehearse_budget, tasks, chunksize=4)
        found = dict(zip(tasks, rows, strict=True))

    figures = {}
    for space, figure in product(spaces, FIGURES):
        row = {}
        for policy in policies:
            logarithms = []
            for name, budget in product(SPACES[space], budgets):
                path = HERE / f"{name}.jsonl"
                values = [
                    found[path, policy, budget, seed, slots][figure] for seed in range(repeats)
                ]
                logarithms.append(math.log(max(fmean(values), FLOOR)))
            row[policy] = math.exp(fmean(logarithms))
        figures[space, figure] = row
    return figures


def print_table(figure: str, slots: int, rows: Mapping[str, Row]) -> None:
    """Print a figure by space, and the ratios over all of them."""
    unit = "slot" if slots == 1 else "slots"
    names = " | ".join(OTHERS)
    print(f"\n| {figure}, {slots} {unit} | search.budget | {names} | best other | ratio |")
    print("|---" * (len(OTHERS) + 4) + "|")
    best_ratios = []
    for space, row in rows.items():
        best = min(OTHERS, key=row.__getitem__)
        best_ratios.append(row[DEFAULT] / row[best])
        cells = " | ".join(f"{row[policy]:.3f}" for policy in (DEFAULT, *OTHERS))
        print(f"| {space} | {cells} | {best} | {best_ratios[-1]:.2f} |")
    print(f"\nto the best other of each space: {describe(best_ratios)}")
    for other in OTHERS:
        print(f"to {other}: {describe([row[DEFAULT] / row[other] for row in rows.values()])}")


def describe(ratios: Sequence[float]) -> str:
    """Return the geometric mean with its interval."""
    logarithms = np.log(ratios)
    drawn = np.random.default_rng(0).choice(logarithms, (BOOTSTRAPS, len(ratios))).mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return f"{np.exp(logarithms.mean()):.2f} ({low:.2f} to {high:.2f} over {len(ratios)} spaces)"


if __name__ == "__main__":
    main()
