"""How long people wait for a look at a sweep: ``status`` of 1,000 trials, the report of 500, and
how large that is.

The folders are written file by file as a sweep leaves them, with TRL's metrics: a line per step and
one more an evaluation.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT / "tests")]

from made import Made, make_sweep  # noqa: E402 - a module of the tests

REPEATS = 3


def seconds(here: Path, *arguments: str) -> tuple[float, float]:
    """Of the whole command, from its start to its end: on the clock, and of a CPU."""
    since, before = time.perf_counter(), cpu_seconds()
    subprocess.run(
        [sys.executable, "-m", "grposweep", *arguments],
        cwd=here,
        stdout=subprocess.DEVNULL,
        check=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT / "src"), "TERM": "dumb"},
    )
    return time.perf_counter() - since, cpu_seconds() - before


def cpu_seconds() -> float:
    """What the commands so far have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(
    what: str, measure: Callable[[], tuple[float, float]], size: Callable[[], str] = lambda: ""
) -> None:
    """One line of the table."""
    found = [measure() for _ in range(REPEATS)]
    clock, cpu = sorted(pair[0] for pair in found), statistics.median(pair[1] for pair in found)
    print(
        f"| {what} | {statistics.median(clock):.2f} | {clock[0]:.2f} | {clock[-1]:.2f} | "
        f"{cpu:.2f} | {size()} |",
        flush=True,
    )


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps of a trial")
    steps = parser.parse_args().steps
    print("| command | median s | min | max | CPU s | size |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        sizes = {"steps": steps, "evaluations": 20}
        make_sweep(here / "outputs" / "thousand", Made(trials=1000, running=8, queued=2, **sizes))
        make_sweep(here / "outputs" / "five", Made(trials=491, running=8, replicates=3, **sizes))
        report = here / "outputs" / "five" / "report.html"
        row("`status`, 1,000 trials", lambda: seconds(here, "status", "thousand"))
        row("`status --json`, 1,000 trials", lambda: seconds(here, "status", "thousand", "--json"))
        row("`show 12`, 1,000 trials", lambda: seconds(here, "show", "thousand", "12"))
        row("`list`, 1,500 trials in two sweeps", lambda: seconds(here, "list"))
        row(
            "`report`, 500 trials",
            lambda: seconds(here, "report", "five"),
            lambda: f"{report.stat().st_size / 1e6:.1f} MB",
        )


if __name__ == "__main__":
    main()
