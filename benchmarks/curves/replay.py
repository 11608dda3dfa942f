"""Replay searches over recorded learning curves, in seconds: python benchmarks/curves/replay.py FILE... [--policy NAME,...].

    python benchmarks/curves/replay.py FILE... --policy curve_ei,default --repeats 100 --slots 4 --keep FOLDER

A sweep's own classes ask and stop; a recording stands for each training. The recorded points are the space: a suggestion
becomes the nearest one that is not used yet, with one of its seeds. Cost is completions generated. A point is worth its
final held-out reward, the mean over its seeds, and regret is what the best finished one lacks of the best of all.
The budget at which regrets are compared is what plain TPE needs to come within one per cent of the best (the median); then
a sweep starts nothing new, but for one that is not there yet, which continues, and finishes what its policy still wants to.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from outcome import draw_trainings
from peers import PEERS, rehearse_peer
from policies import POLICIES, REFERENCE
from pool import Pool, read_pool
from rehearsal import Outcome, rehearse

from grposweep.errors import UserError

WORKERS = 2  # processes
FEW = 2  # repeats that are not worth starting them for
BOOTSTRAPS = 1000  # for the interval of a ratio

Pairs = list[tuple[float, float]]  # ours and the reference's, in one repeat
Spread = Callable[..., Iterable[Outcome]]


@dataclass(frozen=True)
class Repeats:
    """What one policy did on one pool; the same repeats have the same seeds under every policy."""

    arrivals: list[float]  # completions; the whole pool's where it never came close
    seconds: list[float]
    regrets: list[float]  # at the budget
    false_stops: list[bool]
    lost: list[bool]  # false stops that cost more than one per cent
    spent: list[float]  # completions in all
    resumed: list[int]
    idle: list[float]  # share of the slots' time until the end
    started: list[list[int]]  # places, in order
    won: list[bool]  # whether the best of what had finished at the budget is the best of all, or tied with it


def main(arguments: list[str] | None = None) -> int:
    """Replay, and print a table a file or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded curves, JSON lines (record.py)")
    parser.add_argument("--policy", default="all", help=f"any of {','.join((*POLICIES, *PEERS))}; or all (default)")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--slots", type=int, default=1, help="trials at once (default 1)")
    parser.add_argument(
        "--keep", type=Path, help="a folder that keeps each repeat; what is there is not replayed again"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    try:
        names = choose(options.policy)
        if options.repeats < 1:
            raise UserError(f"--repeats {options.repeats}: at least one repeat is needed. Set --repeats 50.")
        pools = [read_pool(path) for path in options.files]
        results = {pool.name: replay(pool, names, options.repeats, options.slots, options.keep) for pool in pools}
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if options.format == "json":
        one = results[pools[0].name] if len(pools) == 1 else merge(list(results.values()))
        print(json.dumps(describe(one, names), indent=2))
        return 0
    for pool in pools:
        print_table(pool, results[pool.name], names)
    return 0


def choose(text: str) -> list[str]:
    """The policies behind the option; a peer that is not installed is left out of ``all``."""
    known = (*POLICIES, *PEERS)
    if text == "all":
        return [*POLICIES, *(name for name, peer in PEERS.items() if peer.is_installed)]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"--policy {name}: there is no such policy. Choose from {', '.join(known)}, or all.")
        if name in PEERS and not PEERS[name].is_installed:
            raise UserError(f"--policy {name}: it is not installed. Run `make {PEERS[name].target}`.")
    return names


def replay(pool: Pool, names: list[str], repeats: int, slots: int, keep: Path | None) -> dict[str, Repeats]:
    """All policies on one pool, the reference first: it sets the budget."""
    os.environ["OMP_NUM_THREADS"] = "1"  # matrices are small; for the workers, which import numpy afterwards
    with ProcessPoolExecutor(WORKERS, get_context("spawn")) as workers:
        spread = workers.map if repeats > FEW else map
        run = partial(measure, pool, slots=slots, repeats=repeats, spread=spread, keep=keep)
        reference = run(REFERENCE, budget=0.0)
        budget = median(reference.arrivals)
        return {name: run(name, budget=budget) for name in dict.fromkeys((REFERENCE, *names))}


def measure(
    pool: Pool, name: str, budget: float, slots: int, repeats: int, spread: Spread, keep: Path | None
) -> Repeats:
    """One policy's repeats; those in the folder ``keep`` are read from there."""
    file = keep / f"{pool.name}.{name}.{slots}.{budget:.0f}.jsonl" if keep else None
    known = [Outcome(**json.loads(line)) for line in file.read_text().splitlines()] if file and file.exists() else []
    outcomes, wanted = known[:repeats], range(len(known), repeats)
    if name in PEERS:
        if slots > 1:
            raise UserError(f"--policy {name} --slots {slots}: it runs with one slot. Leave --slots out.")
        found: Iterable[Outcome] = rehearse_peer(pool, PEERS[name], wanted, budget) if wanted else ()
    else:
        found = spread(partial(rehearse, pool, POLICIES[name], budget=budget, slots=slots), wanted)
    for outcome in found:
        outcomes.append(outcome)
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as lines:
                lines.write(json.dumps(asdict(outcome)) + "\n")
    return summarize(pool, outcomes, budget)


def summarize(pool: Pool, outcomes: list[Outcome], budget: float) -> Repeats:
    """What the outcomes come to."""
    reached = [outcome.arrival(pool) or (pool.completions, pool.seconds) for outcome in outcomes]
    return Repeats(
        arrivals=[completions for completions, _ in reached],
        seconds=[seconds for _, seconds in reached],
        regrets=[outcome.regret(pool, budget) for outcome in outcomes],
        false_stops=[outcome.stopped_best(pool) for outcome in outcomes],
        lost=[outcome.lost_best(pool) for outcome in outcomes],
        spent=[outcome.completions for outcome in outcomes],
        resumed=[outcome.resumed for outcome in outcomes],
        idle=[outcome.idle_seconds / max(outcome.slot_seconds, 1e-9) for outcome in outcomes],
        started=[outcome.started for outcome in outcomes],
        won=[outcome.is_won(pool, budget) for outcome in outcomes],
    )


def merge(results: list[dict[str, Repeats]]) -> dict[str, Repeats]:
    """Several files' repeats as one: what the figures of JSON are over."""
    fields = vars(results[0][REFERENCE])
    return {
        name: Repeats(**{field: list(chain(*(getattr(r[name], field) for r in results))) for field in fields})
        for name in results[0]
    }


def describe(results: dict[str, Repeats], names: list[str]) -> dict[str, dict[str, Any]]:
    """The figures of each policy."""
    return {name: figures(results[name], results[REFERENCE]) for name in names}


def figures(mine: Repeats, reference: Repeats) -> dict[str, Any]:
    """Medians with their 95 % intervals, and means of regrets and shares."""
    pairs = list(zip(mine.arrivals, reference.arrivals, strict=True))
    return {
        "completions_to_1pct": interval(mine.arrivals),
        "cost_ratio_to_tpe": ratio_of_medians(pairs),
        "regret_at_equal_budget": fmean(mine.regrets),
        "false_stops": fmean(mine.false_stops),
        "false_stops_over_1pct": fmean(mine.lost),
        "cost_ratio_interval": bootstrap(pairs, ratio_of_medians),
        "paired_ratio": mean_ratio(pairs),
        "paired_ratio_interval": bootstrap(pairs, mean_ratio),
        "seconds_ratio_to_tpe": median(mine.seconds) / max(median(reference.seconds), 1e-9),
        "idle_share": fmean(mine.idle),
        "best_or_tied": fmean(mine.won),
        "seconds_to_1pct": interval(mine.seconds),
        "completions_in_all": median(mine.spent),
        "resumed": fmean(mine.resumed),
        "repeats": len(mine.arrivals),
    }


def bounds(pool: Pool, reference: Repeats) -> tuple[float, float]:
    """What no search can beat, of TPE's median cost: with TPE's points in their order, and with any choice of points.

    The first pays one evaluation for each point, and trains only one that is close to the best. The second is one training.
    """
    costs = []
    for seed, order in enumerate(reference.started):
        trainings, cost = draw_trainings(pool, seed), 0.0
        for place in order:
            is_close = pool.places[place].truth >= pool.best - pool.tolerance
            cost += trainings[place].completions[-1 if is_close else 0]
            if is_close:
                break
        costs.append(cost)
    close = [place for place in pool.places if place.truth >= pool.best - pool.tolerance]
    once = fmean(fmean(training.completions[-1] for training in place.trainings) for place in close)
    usual = median(reference.arrivals)
    return median(costs) / usual, once / usual


def interval(values: list[float]) -> dict[str, float]:
    """The median with its 95 % interval, from order statistics."""
    ordered, count = sorted(values), len(values)
    half = 0.98 * count**0.5
    low, high = max(round(count / 2 - half) - 1, 0), min(round(count / 2 + half), count - 1)
    return {"median": median(values), "low": ordered[low], "high": ordered[high]}


def ratio_of_medians(pairs: Pairs) -> float:
    """The median of what is on the left over the median of what is on the right."""
    return median(one for one, _ in pairs) / median(other for _, other in pairs)


def mean_ratio(pairs: Pairs) -> float:
    """The geometric mean of the pairs' own ratios."""
    return math.exp(fmean(math.log(one / other) for one, other in pairs))


def bootstrap(pairs: Pairs, statistic: Callable[[Pairs], float]) -> dict[str, float]:
    """The 95 % interval of a statistic of pairs of the same repeats."""
    draw = Random(0)
    found = sorted(statistic(draw.choices(pairs, k=len(pairs))) for _ in range(BOOTSTRAPS))
    return {"low": found[round(0.025 * BOOTSTRAPS)], "high": found[round(0.975 * BOOTSTRAPS) - 1]}


def print_table(pool: Pool, results: dict[str, Repeats], names: list[str]) -> None:
    """One file's table, as the rows of RESULTS.md."""
    trainings = sum(len(place.trainings) for place in pool.places)
    budget = median(results[REFERENCE].arrivals)
    print(
        f"\n{pool.name}: {trainings} curves of {len(pool.places)} points, {pool.completions:,.0f} completions for one training "
        f"each; the best point {pool.best:.4g}, {pool.close} within 1 %; budget {budget:,.0f} completions\n"
    )
    print(
        "| file | policy | repeats | completions to 1 % | of TPE's, medians (95 %) | paired (95 %) | regret | best or tied "
        "| false stops | over 1 % | in all | idle |"
    )
    print("|---" * 12 + "|")
    for name, row in describe(results, names).items():
        ratio, paired = row["cost_ratio_interval"], row["paired_ratio_interval"]
        print(
            f"| {pool.name} | {name} | {row['repeats']} | {row['completions_to_1pct']['median']:,.0f} "
            f"| {row['cost_ratio_to_tpe']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f}) "
            f"| {row['paired_ratio']:.2f} ({paired['low']:.2f}-{paired['high']:.2f}) "
            f"| {row['regret_at_equal_budget']:.4g} | {row['best_or_tied']:.0%} | {row['false_stops']:.0%} "
            f"| {row['false_stops_over_1pct']:.0%} | {row['completions_in_all']:,.0f} | {row['idle_share']:.0%} |"
        )
    stopping, free = bounds(pool, results[REFERENCE])
    print(f"\nBounds, of TPE's: {stopping:.2f} for any stopping of TPE's points, {free:.2f} for any choice of points.")


if __name__ == "__main__":
    sys.exit(main())
