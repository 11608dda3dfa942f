"""The runs of a trial: when each began and ended, and on how many devices. Written by rank 0; read by cost accounting.

An attempt has several runs if its job is restarted. runs.jsonl is a file of its own, because two writers on two machines
tear what they append to a shared folder: attempts.jsonl is the controller's.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from grposweep.files import append_line, read_lines
from grposweep.storage import paths


@dataclass(frozen=True)
class RunRecord:
    """One line pair of runs.jsonl. Clock times in seconds; without an ``end`` the run goes on, or died without noting it.

    ``restarts`` is how often the job had been restarted by then.
    """

    attempt: int
    devices: int
    restarts: int
    start: float
    end: float | None = None


def start_run(folder: Path, attempt: int, devices: int, restarts: int = 0) -> None:
    """Note that a run begins now; an earlier one that could not note its own end has ended at its last sign of life."""
    before = read_runs(folder)
    if before and before[-1].end is None:
        append_line(
            folder / paths.RUNS, {"event": "end", "attempt": before[-1].attempt, "time": _last_sign(folder, before[-1])}
        )
    line = {"event": "start", "attempt": attempt, "time": time.time(), "devices": devices, "restarts": restarts}
    append_line(folder / paths.RUNS, line)


def end_run(folder: Path, attempt: int) -> None:
    """Note that it ends now."""
    append_line(folder / paths.RUNS, {"event": "end", "attempt": attempt, "time": time.time()})


def read_runs(folder: Path) -> list[RunRecord]:
    """All runs of a trial, in order."""
    found: list[RunRecord] = []
    for line in read_lines(folder / paths.RUNS, attempt=int, time=int | float):
        if line.get("event") == "start":
            devices, restarts = (
                line[name] if isinstance(line.get(name), int) else 0 for name in ("devices", "restarts")
            )
            found.append(RunRecord(line["attempt"], devices, restarts, line["time"]))
        elif found and found[-1].end is None:
            found[-1] = replace(found[-1], end=line["time"])
    return found


def cost(folder: Path, is_running: bool = False) -> tuple[float, float]:
    """How long a trial ran in seconds, all its runs together; and the same with each run's times the devices it held."""
    lengths = [(run.devices, _length(folder, run, is_running)) for run in read_runs(folder)]
    return sum(length for _, length in lengths), sum(devices * length for devices, length in lengths)


def seconds(folder: Path, is_running: bool = False) -> float:
    """How long a trial ran, all its runs together."""
    return cost(folder, is_running)[0]


def device_seconds(folder: Path, is_running: bool = False) -> float:
    """What a trial has cost: its runs' seconds, each times the devices that it held."""
    return cost(folder, is_running)[1]


def _length(folder: Path, run: RunRecord, is_running: bool) -> float:
    end = run.end if run.end is not None else time.time() if is_running else _last_sign(folder, run)
    return max(end - run.start, 0.0)


def _last_sign(folder: Path, run: RunRecord) -> float:
    """When an unfinished run last moved its heartbeat; its start where it never did."""
    try:
        return max((folder / paths.HEARTBEAT).stat().st_mtime, run.start)
    except FileNotFoundError:
        return run.start
