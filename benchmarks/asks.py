"""What asking costs: for valid points only, against the wrapped Optuna sampler's own ask; and late
in a long sweep.

Both ask on the same told history, over a space mostly invalid. Aims: no invalid ask; the median
within three times the wrapped sampler's own; with the default sampler and early stopping ask and
tell within 30 ms at 2,000 trials, judge and promote within 10 ms at 4,000 and 50 ms at 20,000. All
are CPU time.
"""

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import optuna

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from grposweep.search.early_stopping import DEFAULT, EFFORT, Curve, State, build_policy
from grposweep.search.parse import parse_space
from grposweep.search.sampler import ValidPoints, distribution
from grposweep.search.space import Point, Space
from grposweep.search.study import SweepStudy

Answer = TypeVar("Answer")

ARGUMENTS = [
    "lr=tag(log,interval(1e-6,1e-2))",
    "batch.num_generations=2,3,4,6,8,12,16",
    "batch.per_device_train_batch_size=1,2,4,6,8,12,16,24",
    "batch.gradient_accumulation_steps=1,2,3,4",
    "kl.beta=interval(0,0.1)",
]

PLAIN = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}


def is_valid(point: Point) -> bool:
    """Whole groups on three processes: 36 % of the combinations."""
    completions = (
        3
        * int(point["batch.per_device_train_batch_size"])
        * int(point["batch.gradient_accumulation_steps"])
    )  # type: ignore[arg-type]  # whole numbers
    return completions % int(point["batch.num_generations"]) == 0  # type: ignore[arg-type]  # a whole number


def value(point: Point) -> float:
    """Something to learn from."""
    return -abs(float(point["lr"]) - 3e-4) * 1e3 + float(point["kl.beta"])  # type: ignore[arg-type]  # numbers


def tell(study: SweepStudy, point: Point) -> None:
    """A finished trial."""
    study.tell(study.add(point, {}), value(point))


def plain_ask(study: optuna.Study, space: Space) -> Point:
    """What Optuna does by itself."""
    trial = study.ask()
    return {dial.name: trial._suggest(dial.name, distribution(dial)) for dial in space.parameters}


def timed(act: Callable[[], Answer]) -> tuple[float, Answer]:
    """Seconds of CPU, which other programs on the machine hardly change, and answer."""
    since = time.process_time()
    answer = act()
    return time.process_time() - since, answer


def measure(name: str, asks: int, history: int) -> None:
    """One row: a study grows to ``history`` trials, and starts again from nothing until ``asks``
    questions have been asked.
    """
    space, _ = parse_space(ARGUMENTS, {})
    valid = ValidPoints(
        is_valid, tuple(point for point in space.finite_points() if is_valid(point))
    )
    ours, theirs, wrong, done = [], [], 0, 0
    while done < asks:
        study = SweepStudy(space, "maximize")
        plain = optuna.create_study(direction="maximize", sampler=PLAIN[name](seed=done))
        for _ in range(min(history, asks - done)):
            seconds, point = timed(lambda study=study, seed=done: study.ask(valid, name, seed))
            assert point is not None
            ours.append(seconds)
            wrong += not is_valid(point)
            seconds, _ = timed(lambda plain=plain: plain_ask(plain, space))
            theirs.append(seconds)
            plain.tell(len(plain.get_trials(deepcopy=False)) - 1, value(point))
            tell(study, point)
            done += 1
    a, b = statistics.median(ours) * 1e3, statistics.median(theirs) * 1e3
    print(
        f"| {name} | {asks:,} | {history} | {wrong} | {a:.2f} | {b:.2f} | {a / b:.2f} |", flush=True
    )


def build_curve(number: int, point: Point, stream: random.Random) -> Curve:
    """A training that ended, was paused after half, or was paused at once, one in three each."""
    count = (10, 5, 1)[number % 3]
    state = State.FINISHED if count == 10 else State.PAUSED
    rises = [
        value(point) * (1 - math.exp(-0.4 * n)) + stream.gauss(0, 0.02) for n in range(1, count + 1)
    ]
    completions = [float(n) for n in range(1, count + 1)]
    return Curve(10.0, completions, rises, 0.0, number=number, state=state, point=point)


def measure_late(name: str, trials: int, rounds: int) -> None:
    """What a free slot and an evaluation cost late in a sweep: median milliseconds of each call."""
    space, _ = parse_space(ARGUMENTS, {})
    valid = ValidPoints(
        is_valid, tuple(point for point in space.finite_points() if is_valid(point))
    )
    stream, way = random.Random(0), build_policy(name, EFFORT)
    spent: dict[str, list[float]] = {
        "foresee": [],
        "ask": [],
        "tell": [],
        "judge": [],
        "promote": [],
    }
    study, curves = SweepStudy(space, "maximize"), []
    for number in range(trials):
        point = next(filter(is_valid, iter(partial(space.draw, stream), None)))
        curves.append(build_curve(study.add(point, {}), point, stream))
        if curves[-1].state == State.FINISHED:
            study.tell(number, curves[-1].held_out[-1])
    # those that finish
    for number in range(trials, trials + 3 * rounds, 3):
        seconds, foreseen = timed(partial(way.predict, curves))
        asked, point = timed(partial(study.ask, valid, "tpe", number, predicted=foreseen))
        assert point is not None
        curve = replace(
            build_curve(number - number % 3, point, stream), number=study.add(point, {})
        )
        judged, _ = timed(partial(way.decide, replace(curve, state=State.RUNNING), curves, True))
        told, _ = timed(partial(study.tell, curve.number, curve.held_out[-1]))
        curves.append(curve)
        promoted, _ = timed(partial(way.promote, curves, True))
        for call, time_ in zip(spent, (seconds, asked, told, judged, promoted), strict=True):
            spent[call].append(time_)
    row = " | ".join(f"{statistics.median(values) * 1e3:.1f}" for values in spent.values())
    both = statistics.median(
        a + b + c for a, b, c in zip(spent["foresee"], spent["ask"], spent["tell"], strict=True)
    )
    print(f"| {name} | {trials:,} | {row} | {both * 1e3:.1f} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asks", type=int, nargs=2, default=[100_000, 5_000], help="random, TPE")
    parser.add_argument("--late", type=int, nargs="+", default=[2_000, 4_000, 20_000])
    parser.add_argument("--rounds", type=int, default=100, help="trials late in a sweep")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(
        "| sampler | asks | trials in the study | invalid asks | ours, median ms | the "
        "sampler's own | ratio |"
    )
    print("|---|---|---|---|---|---|---|")
    measure("random", options.asks[0], 500)
    measure("tpe", options.asks[1], 500)
    print(
        "\n| search.stopping | trials | foresee, ms | ask | tell | judge | promote | ask and "
        "tell in all |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for trials in options.late:
        measure_late(DEFAULT, trials, options.rounds)


if __name__ == "__main__":
    main()
