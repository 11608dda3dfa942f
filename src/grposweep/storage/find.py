"""Sweeps by name, by path, or the newest: which folder a person means."""

import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from grposweep.errors import UserError
from grposweep.storage.folders import SweepFolder

DEPTH = 4  # folders below the one that is searched
RERUN = re.compile(r"-\d{4,}-rerun-[0-9a-f]{6}$")  # ends the name of a trial's rerun


def find_sweep(named: str | None, outputs: Path) -> SweepFolder:
    """A sweep's folder by its path, or by its name under ``outputs``; the newest there where none is named.

    Raises UserError where there is no such sweep.
    """
    if named is None:
        return newest_sweep(outputs)
    for path in (Path(named), outputs / named):
        if _is_sweep(path):
            return SweepFolder(path.resolve())
    raise UserError(
        f"{named} is no sweep: neither it nor {outputs / named} has a sweep.yaml. {_instead(outputs, named)}"
    )


def newest_sweep(outputs: Path, reruns: bool = True) -> SweepFolder:
    """The sweep under ``outputs`` that has changed last; ``reruns``: single trials run again are sweeps as well.

    Raises UserError where there is none.
    """
    found = [folder for folder in find_sweeps(outputs) if reruns or not RERUN.search(folder.path.name)]
    if not found:
        raise UserError(f"no sweep in {outputs.resolve()}. {_instead(outputs)}")
    return max(found, key=lambda folder: last_change(folder.path))


def find_sweeps(folder: Path) -> Iterator[SweepFolder]:
    """The sweeps in and below a folder, a few levels deep; none is looked for within a sweep."""
    root = folder.resolve()
    for place, folders, files in os.walk(root):
        here = Path(place)
        if "sweep.yaml" in files:
            folders.clear()
            yield SweepFolder(here)
        elif len(here.relative_to(root).parts) >= DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def last_change(sweep: Path) -> float:
    """When a sweep was begun, or its study last told something: clock time in seconds, by the files' own dates."""
    return max(
        (path.stat().st_mtime for name in ("sweep.yaml", "study.journal") if (path := sweep / name).exists()), default=0
    )


def _is_sweep(path: Path) -> bool:
    try:
        return (path / "sweep.yaml").is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _instead(outputs: Path, named: str = "") -> str:
    names = [folder.path.name for folder in sorted(find_sweeps(outputs), key=lambda f: -last_change(f.path))]
    if near := get_close_matches(named, names, n=1, cutoff=0.5):
        return f"Did you mean {near[0]}?"
    if names:
        return f"Name one of {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}, or a path."
    return "Name a sweep's folder by its path, or go to where its outputs/ are."
