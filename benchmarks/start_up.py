"""How long a user waits for a command: whole processes, seconds on the clock and of a CPU, medians.

    python benchmarks/start_up.py [--against CHECKOUT] [--repeats 5]

``--against`` runs another checkout's commands in turn with this one's, with the same packages, and
prints its seconds too.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "tests")]

from grposweep.report.view import SweepReader  # noqa: E402 - of this checkout
from made import Made, make_sweep  # noqa: E402 - a module of the tests

RECIPE = str(PROJECT / "docs" / "recipe.yaml")
RUN = "run.py"
FAKE = ("trainer=fake", "schedule.budget_completions=64", "search.effort=1", "name=again")
# What a user types, and the exit code.
COMMANDS = (
    (("--help",), 0),
    (("lint", RECIPE, "--processes", "8"), 1),
    (("plan", RECIPE, "--processes", "8"), 1),
    (("fit", RECIPE, "--processes", "8", "--gpu", "A100"), 0),
    (("list",), 0),
    (("status", "thousand"), 0),
    (("best", "thousand"), 0),
    (("show", "thousand", "12"), 0),
    (("space", "lr=1e-4,1e-3", "batch=small,medium"), 0),
    ((RUN, "--help"), 0),
    ((RUN, "--cfg", "job"), 0),
    ((RUN, "lr=1e-3", *FAKE), 0),
    ((RUN, "lrr=1e-3"), 2),
    ((RUN, "lr=0"), 2),
    ((RUN, "batch.num_generations=5"), 2),
)


def cpu_seconds() -> float:
    """Return the CPU seconds of the commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(checkout: Path, here: Path, words: tuple[str, ...], code: int) -> tuple[float, float]:
    """Run a command of a checkout; return its seconds on the clock and of a CPU.

    Raises ValueError if its exit code is another.
    """
    shutil.rmtree(here / "outputs" / "again", ignore_errors=True)
    program = (
        [str(checkout / "src" / RUN), *words[1:]]
        if words[0] == RUN
        else ["-m", "grposweep", *words]
    )
    # without bytecode a checkout that was never imported would be compiled at each start
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    since, before = time.perf_counter(), cpu_seconds()
    done = subprocess.run(
        [sys.executable, *program],
        cwd=here,
        capture_output=True,
        check=False,
        env={**kept, "PYTHONPATH": str(checkout / "src"), "TERM": "dumb"},
    )
    if done.returncode != code:
        raise ValueError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr.decode()}")
    return time.perf_counter() - since, cpu_seconds() - before


def main() -> None:
    """Print one row a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    checkouts = [PROJECT, *([options.against.resolve()] if options.against else [])]
    print(f"| command | median s | CPU s |{' before, s | CPU s |' * (len(checkouts) - 1)}")
    print(f"|---{'|---|---' * len(checkouts)}|")
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        thousand = here / "outputs" / "thousand"
        make_sweep(thousand, Made(trials=1000, running=8, queued=2, steps=200, evaluations=20))
        reader = SweepReader(thousand)
        reader.read()
        # as its controller would have
        reader.complete_summary()
        for words, code in COMMANDS:
            # the first of each is not counted: it compiles and fills caches
            rounds = [
                [
                    second
                    for checkout in checkouts
                    for second in measure(checkout, here, words, code)
                ]
                for _ in range(options.repeats + 1)
            ]
            medians = map(statistics.median, zip(*rounds[1:], strict=True))
            name = " ".join(Path(word).name if word == RECIPE else word for word in words)
            print(f"| `{name}` | {' | '.join(f'{median:.2f}' for median in medians)} |", flush=True)


if __name__ == "__main__":
    main()
