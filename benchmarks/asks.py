"""What asking for valid points only costs: our ask against the wrapped Optuna sampler's own, over a space mostly invalid.

Both ask on the same told history. Aims: no invalid ask; the median within three times the wrapped sampler's own.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import optuna

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from grposweep.search.parse import parse_space
from grposweep.search.sampler import Valid, build_sampler, distribution
from grposweep.search.space import Point, Space
from grposweep.search.study import SweepStudy

ARGUMENTS = [
    "lr=tag(log,interval(1e-6,1e-2))",
    "batch.num_generations=2,3,4,6,8,12,16",
    "batch.per_device_train_batch_size=1,2,4,6,8,12,16,24",
    "batch.gradient_accumulation_steps=1,2,3,4",
    "kl.beta=interval(0,0.1)",
]


def is_valid(point: Point) -> bool:
    """Whole groups on three processes: 36 % of the combinations."""
    completions = 3 * int(point["batch.per_device_train_batch_size"]) * int(point["batch.gradient_accumulation_steps"])  # type: ignore[arg-type]  # whole numbers
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
    return {dial.name: trial._suggest(dial.name, distribution(dial)) for dial in space.dials}


def timed(act: Callable[[], Point | None]) -> tuple[float, Point | None]:
    """Seconds and answer."""
    since = time.perf_counter()
    answer = act()
    return time.perf_counter() - since, answer


def measure(name: str, asks: int, history: int) -> None:
    """One row: a study grows to ``history`` trials and is started anew until ``asks`` questions have been asked."""
    space, _ = parse_space(ARGUMENTS, {})
    valid = Valid(is_valid, tuple(point for point in space.finite_points() if is_valid(point)))
    ours, theirs, wrong, done = [], [], 0, 0
    while done < asks:
        with tempfile.TemporaryDirectory() as scratch:
            study = SweepStudy(Path(scratch) / "journal", space, "maximize")
            plain = optuna.create_study(direction="maximize", sampler=build_sampler(name, random.Random(done)))
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
    print(f"| {name} | {asks:,} | {history} | {wrong} | {a:.2f} | {b:.2f} | {a / b:.2f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--asks", type=int, nargs=2, default=[100_000, 5_000], help="random, TPE")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print("| sampler | asks | trials in the study | invalid asks | ours, median ms | the sampler's own | ratio |")
    print("|---|---|---|---|---|---|---|")
    measure("random", options.asks[0], 500)
    measure("tpe", options.asks[1], 500)


if __name__ == "__main__":
    main()
