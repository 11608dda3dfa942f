"""summary.jsonl: what was read of each ended trial, so that `list`, `status` and `best` need not
parse its files again.

A row counts only while every file of the trial is the same by inode, size and date. A damaged trial
has no row. Without rows the trials are read.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from grporecipe.files import Json, append_line, read_lines
from grposweep.report.trial_view import State, TrialView
from grposweep.storage import paths
from grposweep.storage.folders import TrialFolder
from grposweep.storage.records import read_fields
from grposweep.storage.results import TrialResult

# provenance.json holds a copy of trial.json
FILES = (
    paths.RESULT,
    paths.ATTEMPTS,
    paths.RUNS,
    paths.CONTROL,
    paths.HEARTBEAT,
    paths.TRIAL,
    paths.PROVENANCE,
    paths.METRICS,
    paths.CONFIG,
    paths.PLAN,
)
FIELDS = ("experiment", "point", "attributes", "state", "step", "total", "seconds", "gpu_seconds")
Stamps = Sequence[Sequence[int] | None]


def stamp_files(trial: Path) -> Stamps:
    """Return inode, bytes and date in nanoseconds of each file that is read or checked; None for a
    missing one.
    """
    return [_stamp(f"{trial}/{name}") for name in FILES]


def _stamp(path: str) -> list[int] | None:
    try:
        stat = os.stat(path)  # noqa: PTH116 - ten for each of thousands of trials
    except OSError:
        return None
    # a replaced file has another inode
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns]


def read_rows(sweep: Path) -> dict[str, Json]:
    """Return the newest row of each trial by the name of its folder."""
    return {
        row["trial"]: row
        for row in read_lines(sweep / paths.SUMMARY, trial=str, files=list, result=dict)
    }


def add_row(sweep: Path, view: TrialView, files: Stamps) -> None:
    """Append an ended trial. ``files`` were stamped before they were read."""
    fields = {name: getattr(view, name) for name in FIELDS}
    row = {"trial": view.name, "files": files, **fields, "result": view.result.as_dict()}
    append_line(sweep / paths.SUMMARY, row)


def recall(folder: TrialFolder, row: Json) -> TrialView | None:
    """Return the trial of a row; None if one of its files has changed, or if the row is damaged."""
    if row["files"] != stamp_files(folder.path):
        return None
    try:
        return TrialView(
            folder.path,
            folder.number,
            state=State(row["state"]),
            result=TrialResult.parse(row["result"]),
            is_recalled=True,
            **read_fields(TrialView, row),
        )
    except (KeyError, TypeError, ValueError):
        return None
