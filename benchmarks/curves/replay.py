"""Replay sweeps over recorded learning curves: python benchmarks/curves/replay.py FILE... [--policy
NAME,...].

    python benchmarks/curves/replay.py FILE... --trials 24 --policy
    default@0.5,default,tpe,hyperband --keep FOLDER
    python benchmarks/curves/replay.py FILE... --trials 24 --policy default@0.5 --equal-cost
    python benchmarks/curves/replay.py FILE... --budget 7,11,14,19 --policy
    default,tpe,hyperband,halving --repeats 40

A sweep's own classes ask and stop; a recording stands for each training. The recorded points are
the space: a suggestion becomes the nearest one that is not used yet, with one of its seeds. A sweep
starts so many trials, and ends if none of them is left to resume. A point is worth its final
held-out reward, the mean over its seeds.

With --budget the number of trials is free: a sweep gets the completions of so many mean trainings
of the file, and starts as many trials as those buy. A trial that the end of the budget cuts does
not count. ``default`` is then ``search.budget``.

cost: completions that were generated, as a share of what finishing every started trial generates.
lost: share of sweeps whose best started point did not finish, and whose best finished one is worse
by more than 1 %. regret: what the best finished point lacks of the best of the file, as a share of
the latter (mean over sweeps). picked: the regret of the winner that the finished trials' own
results pick, instead of the truly best finished point. regret_to_tpe: the regret less that of plain
TPE in the same repeat. arrived: share of the full cost at which the best finished point had
finished. idle: share of the slots' time without a trial. Intervals are 95 %: bootstrap within each
file, for ``lost`` Wilson's.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

# before numpy is imported: matrices are small
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from figures import Repeat, describe
from outcome import Outcome
from peers import PEERS, rehearse_peer
from policies import POLICIES, REFERENCE, find_policy
from pool import read_pool
from rehearsal import Policy, Rehearsal

from grporecipe.errors import UserError

# processes
WORKERS = int(os.environ.get("WORKERS") or os.cpu_count() or 1)

read = cache(read_pool)


@dataclass(frozen=True)
class Search:
    """A policy with a number of trials and of slots; ``policy`` is None for a peer."""

    # as on the command line
    name: str
    policy: Policy | None
    trials: int
    slots: int

    @property
    def effort(self) -> float | None:
        """Return the effort, or None for a policy that takes none."""
        return self.policy.effort if self.policy else None

    @property
    def label(self) -> str:
        """Return the policy's name with its effort, if it takes one."""
        name = self.name.partition("@")[0]
        return name if self.effort is None else f"{name}@{self.effort:g}"


Group = tuple[Path, Search]
# what is measured, and plain TPE with what it is compared
Pairs = list[tuple[Search, Search]]
# by seed
Results = dict[Group, list[Repeat]]


def main(arguments: list[str] | None = None) -> int:
    """Replay, and print a table per file or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="recorded curves, JSON lines (record.py)",
    )
    known = ",".join((*POLICIES, *PEERS))
    parser.add_argument(
        "--policy",
        default="default,tpe",
        help=f"all, or any of {known}; default@0.5 sets an effort",
    )
    parser.add_argument(
        "--trials", default="24", help="trials of a sweep, such as 24 or 12,24,48 (default 24)"
    )
    parser.add_argument(
        "--effort", type=float, help="of policies named without one (default: that of a sweep)"
    )
    parser.add_argument(
        "--budget",
        help="trainings that a sweep costs, such as 7,11,14,19: the number of trials is free",
    )
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--slots", type=int, default=1, help="trials at once (default 1)")
    parser.add_argument(
        "--equal-cost", action="store_true", help="N trials of TPE against N/effort of each policy"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep each repeat there, and continue from there",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    try:
        if options.budget is not None:
            return replay_budgets(options)
        pairs = choose(options)
        for path in options.files:
            read(path)
        results = replay(options, dict.fromkeys(chain(*pairs)))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    if options.format == "json":
        names = dict.fromkeys(search.name for search, _ in pairs)
        found = {
            name: report(results, options.files, [p for p in pairs if p[0].name == name])
            for name in names
        }
        print(json.dumps(found, indent=2))
        return 0
    for path in options.files:
        print_table(path, results, pairs, options.equal_cost)
    return 0


def replay_budgets(options: argparse.Namespace) -> int:
    """Replay searches whose number of trials is free, and print JSON or a table, by policy and
    budget over all files.
    """
    budgets = options.budget.split(",")
    if (
        not all(b.strip().replace(".", "", 1).isdecimal() and float(b) > 0 for b in budgets)
        or options.repeats < 1
    ):
        raise UserError(
            f"--budget {options.budget}: a budget is a number of trainings. Set --budget "
            "7,11,14,19."
        )
    names = [name.strip() for name in options.policy.split(",")]
    for name in names:
        find_policy(name, None)
    for path in options.files:
        read(path)
    tasks = list(
        product(options.files, names, map(float, budgets), range(options.repeats), [options.slots])
    )
    with get_context("fork").Pool(WORKERS) as workers:
        found = dict(zip(tasks, workers.imap(rehearse_budget, tasks, chunksize=4), strict=True))
    content: dict[str, dict[str, dict[str, float]]] = {}
    for name, budget in product(names, budgets):
        rows = {
            p: [found[p, name, float(budget), s, options.slots] for s in range(options.repeats)]
            for p in options.files
        }
        means = {
            path: {key: fmean(row[key] for row in of) for key in of[0]} for path, of in rows.items()
        }
        row = {
            key: fmean(mean[key] for mean in means.values()) for key in next(iter(means.values()))
        }
        row["files"] = {read(path).name: mean for path, mean in means.items()}
        content.setdefault(name, {})[budget.strip()] = row
    if options.format == "json":
        print(json.dumps(content, indent=2))
        return 0
    for path in options.files:
        pool = read(path)
        print(
            f"\n| {pool.name} | "
            + " | ".join(f"{b} trainings" for b in budgets)
            + " |\n"
            + "|---" * (len(budgets) + 1)
            + "|"
        )
        for name in names:
            rows = [content[name][b.strip()]["files"][pool.name] for b in budgets]
            cells = [f"{r['regret']:.3f}; {r['picked']:.3f}; {r['started']:.0f}" for r in rows]
            print(f"| {name} | {' | '.join(cells)} |")
    return 0


def rehearse_budget(task: tuple[Path, str, float, int, int]) -> dict[str, float]:
    """Replay one search with a budget of so many mean trainings."""
    path, name, budget, seed, slots = task
    pool = read(path)
    whole = fmean(training.completions[-1] for place in pool.places for training in place.trainings)
    rehearsal = Rehearsal(
        pool, find_policy(name, None), seed, len(pool.places), slots, budget * whole
    )
    found = rehearsal.run().figures(pool)
    own = [
        (rehearsal.trainings[place].held_out[-1], place) for _, place in rehearsal.outcome.finished
    ]
    worth = pool.places[max(own)[1]].truth if own else min(place.truth for place in pool.places)
    picked, cost = (pool.best - worth) / abs(pool.best), found["completions"] / (budget * whole)
    return {"regret": found["regret"], "picked": picked, "started": found["started"], "cost": cost}


def choose(options: argparse.Namespace) -> Pairs:
    """Return the searches behind the options, each with that of plain TPE; ``all`` leaves out peers
    that are missing.
    """
    numbers = options.trials.split(",")
    if (
        options.repeats < 1
        or options.slots < 1
        or not all(n.strip().isdecimal() and int(n) for n in numbers)
    ):
        raise UserError(
            "--trials, --repeats and --slots are 1 or more. Set --trials 12,24 --repeats 40 "
            "--slots 1."
        )
    names = [name.strip() for name in options.policy.split(",")]
    if options.policy == "all":
        names = [*POLICIES, *(name for name, peer in PEERS.items() if peer.is_installed)]
    for name in names:
        if name in PEERS and not PEERS[name].is_installed:
            raise UserError(
                f"--policy {name}: it is not installed. Run `make {PEERS[name].target}`."
            )
        if name in PEERS and options.slots > 1:
            raise UserError(
                f"--policy {name} --slots {options.slots}: it runs with one slot. Leave --slots "
                "out."
            )
    policies = {
        name: None if name in PEERS else find_policy(name, options.effort) for name in names
    }
    pairs: Pairs = []
    for (name, policy), number in product(policies.items(), map(int, numbers)):
        effort = (policy.effort if policy else None) if options.equal_cost else 1.0
        if effort is not None:
            reference = Search(REFERENCE, POLICIES[REFERENCE], number, options.slots)
            pairs.append((Search(name, policy, round(number / effort), options.slots), reference))
    if not pairs:
        raise UserError(
            "--equal-cost: none of the policies takes an effort. Set --policy default@0.5."
        )
    return pairs


def replay(options: argparse.Namespace, searches: Iterable[Search]) -> Results:
    """Replay all repeats that are not kept yet, seed by seed: so all groups have as many if it is
    interrupted.
    """
    folder, groups = options.keep, list(product(options.files, searches))
    files = {
        (path, search): f"{read(path).name}.{search.label}.{search.trials}.{search.slots}.jsonl"
        for path, search in groups
    }
    kept = {group: read_repeats(folder / files[group]) if folder else {} for group in groups}
    tasks = [
        (group, seed)
        for seed in range(options.repeats)
        for group in groups
        if seed not in kept[group]
    ]
    for group, repeat in rehearse_all(tasks):
        kept[group][repeat.seed] = repeat
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / files[group]).open("a") as lines:
                lines.write(json.dumps(asdict(repeat)) + "\n")
    return {
        group: [repeats[seed] for seed in range(options.repeats)] for group, repeats in kept.items()
    }


def read_repeats(file: Path) -> dict[int, Repeat]:
    """Return the kept repeats of one search by seed."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {repeat.seed: repeat for repeat in (Repeat(**json.loads(line)) for line in lines)}


def rehearse_all(tasks: Sequence[tuple[Group, int]]) -> Iterator[tuple[Group, Repeat]]:
    """Yield the repeats of all tasks, groups with seeds; those of peers come last, a process per
    group.
    """
    own = [task for task in tasks if task[0][1].policy]
    if WORKERS > 1 and len(own) > 1:
        with get_context("fork").Pool(WORKERS) as workers:
            yield from workers.imap(rehearse, own, chunksize=4)
    else:
        yield from map(rehearse, own)
    others: dict[Group, list[int]] = {}
    for group, seed in tasks:
        if group[1].policy is None:
            others.setdefault(group, []).append(seed)
    for (path, search), seeds in others.items():
        outcomes = rehearse_peer(read(path), PEERS[search.name], seeds, search.trials)
        yield from (
            ((path, search), measure(path, search, *found))
            for found in zip(seeds, outcomes, strict=True)
        )


def rehearse(task: tuple[Group, int]) -> tuple[Group, Repeat]:
    """Replay one sweep of a policy."""
    (path, search), seed = task
    assert search.policy is not None
    outcome = Rehearsal(read(path), search.policy, seed, search.trials, search.slots).run()
    return task[0], measure(path, search, seed, outcome)


def measure(path: Path, search: Search, seed: int, outcome: Outcome) -> Repeat:
    """Return the figures of an outcome."""
    pool, name = read(path), search.name.partition("@")[0]
    return Repeat(
        pool.name, name, search.effort, search.trials, search.slots, seed, **outcome.figures(pool)
    )


def report(results: Results, files: Sequence[Path], pairs: Pairs) -> dict[str, Any]:
    """Return one policy's figures over all files and numbers of trials, by file, and by number if
    there are several.
    """
    by_file = {read(path).name: figures(results, [path], pairs) for path in files}
    found = figures(results, files, pairs) | {"files": by_file}
    if len(pairs) > 1:
        found["trials"] = {
            ours.trials: report(results, files, [(ours, tpe)]) for ours, tpe in pairs
        }
    return found


def figures(results: Results, files: Sequence[Path], pairs: Pairs) -> dict[str, Any]:
    """Return one policy's figures over some files."""
    groups = [
        (results[path, ours], results[path, tpe]) for path, (ours, tpe) in product(files, pairs)
    ]
    return describe([ours for ours, _ in groups], [tpe for _, tpe in groups])


def print_table(path: Path, results: Results, pairs: Pairs, equal_cost: bool) -> None:
    """Print one file's table, as the rows of RESULTS.md."""
    pool = read(path)
    curves = sum(len(place.trainings) for place in pool.places)
    print(
        f"\n{pool.name}: {curves} curves of {len(pool.places)} points, {pool.close} within 1 % "
        "of the best\n"
    )
    columns = (
        "trials | repeats | cost (95 %) | lost (95 %) | regret (95 %) | less TPE's (95 %) "
        "| winner after | idle"
    )
    if equal_cost:
        columns = (
            "trials | repeats | TPE's trials | regret | TPE's regret | ratio (95 %) | "
            "cost, of TPE's | lost"
        )
    print(f"| file | policy | {columns} |\n" + "|---" * (columns.count("|") + 3) + "|")
    for ours, tpe in pairs:
        row = figures(results, [path], [(ours, tpe)])
        cells = [pool.name, ours.label, f"{row['started']:.0f}", f"{row['repeats']}"]
        if equal_cost:
            cells += [
                f"{row['tpe_started']:.0f}",
                f"{row['regret']:.3f}",
                f"{row['tpe_regret']:.3f}",
            ]
            cells += [
                cell(row, "regret_ratio", ".2f"),
                f"{row['cost_to_tpe']:.2f}",
                f"{row['lost']:.0%}",
            ]
        else:
            cells += [
                cell(row, "cost", ".2f"),
                cell(row, "lost", ".0%"),
                cell(row, "regret", ".3f"),
            ]
            cells += [
                cell(row, "regret_to_tpe", "+.3f"),
                f"{row['arrived']:.2f}",
                f"{row['idle']:.0%}",
            ]
        print(f"| {' | '.join(cells)} |")


def cell(row: dict[str, Any], name: str, form: str) -> str:
    """Return a figure with its interval."""
    low, high = (row[f"{name}_interval"][side] for side in ("low", "high"))
    value, low, high = ("-" if x is None else format(x, form) for x in (row[name], low, high))
    return f"{value} ({low} to {high})"


if __name__ == "__main__":
    sys.exit(main())
