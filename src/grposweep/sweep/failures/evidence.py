"""What an attempt left behind: gathered from its trial folder, or written down by hand in tests."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from grposweep.files import read_json, read_lines
from grposweep.launch.base import End

TAIL_BYTES = 65_536  # of each log: tracebacks of several threads fit
METRICS = 5  # last lines of metrics.jsonl


@dataclass(frozen=True)
class Evidence:
    """Everything that speaks about an attempt's end."""

    code: int = 0
    """Its exit code; negative: the signal that ended it."""
    state: str = ""
    """The launcher's word where an exit code does not say it (``launch.base.End.kind``), or ``hang``."""
    error: str = ""
    """``kind: message`` of the failure in result.json."""
    progress: bool | None = None
    """Whether the heartbeat still moved shortly before the end; None: unknown."""
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The last lines of every rank's log, the job's and, where it can be had, the kernel's."""
    metrics: Sequence[Mapping[str, Any]] = ()
    """The last lines of metrics.jsonl."""


def log_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each log before an attempt starts: what stands there already is an earlier attempt's."""
    return {path.name: path.stat().st_size for path in sorted((folder / "logs").glob("*.log"))}


def read_evidence(
    folder: Path, end: End, progress: bool | None = None, before: Mapping[str, int] | None = None
) -> Evidence:
    """The evidence in a trial folder; ``before`` are the ``log_sizes`` from when the attempt began."""
    sizes = before or {}
    logs = {path.name: _tail(path, sizes.get(path.name, 0)) for path in sorted((folder / "logs").glob("*.log"))}
    metrics = tuple(deque(read_lines(folder / "metrics.jsonl"), maxlen=METRICS))
    return Evidence(end.code, end.kind, _error(folder), progress, logs, metrics)


def _error(folder: Path) -> str:
    """What result.json says of a failure; nothing where it says nothing."""
    failure = (read_json(folder / "result.json") or {}).get("failure")
    return f"{failure.get('kind', '')}: {failure.get('message', '')}" if isinstance(failure, dict) else ""


def _tail(path: Path, start: int) -> list[str]:
    """The last lines of a file from byte ``start`` on, the first of them whole where the file is longer than a tail."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = start if start <= size else 0  # somebody made it shorter: all of it is new
        begin = max(start, size - TAIL_BYTES)
        file.seek(begin)
        text = file.read().decode("utf-8", errors="replace")
    lines = chain.from_iterable(
        line.split("\r") for line in text.split("\n")
    )  # progress bars return to the line's start
    return list(lines)[1 if begin > start else 0 :]
