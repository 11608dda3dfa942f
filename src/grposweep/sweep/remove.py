"""Remove a sweep, or the checkpoints and model of single trials: list them with sizes, ask, delete.

Forks, reruns and warm starts keep copies of what they need, so no other sweep loses anything.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grporecipe.errors import ExitCode, UserError
from grporecipe.files import delete_folder
from grporecipe.terminal import count, say
from grposweep.launchers import find_jobs
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder, find_sweep
from grposweep.storage.lease import is_held

LARGE = (paths.CHECKPOINTS, paths.MODEL)  # of a trial: what is not needed to report on it
REST = "configuration, metrics and logs"


@dataclass(frozen=True)
class Size:
    """Files of one kind, and the bytes that their removal frees."""

    kind: str
    files: int
    size: int

    def __str__(self) -> str:
        return f"  {self.kind}: {count(self.files, 'file')}, {render_size(self.size)}"


def remove(named: str, trials: Sequence[str], outputs: Path, asks: bool) -> int:
    """Remove the sweep, or what is large of its trials that are named; return the exit code.

    Raises UserError if the sweep does not exist, is being run, or has no such trial, or if the question cannot be asked.
    """
    sweep = find_sweep(named, outputs)
    chosen = [_find_trial(sweep, name) for name in trials]
    _check_idle(sweep)
    sizes = measure([folder.path / name for folder in chosen for name in LARGE] if chosen else [sweep.path])
    if not sizes:
        say(f"{sweep.path.name}: these trials have neither checkpoints nor a model")
        return ExitCode.FINISHED
    what = f"{count(len(chosen), 'trial')} of {sweep.path}" if chosen else f"{sweep.path} as a whole"
    say("\n".join((f"{what}, {render_size(sum(kind.size for kind in sizes))}:", *map(str, sizes))))
    if asks and not agrees("Remove it?"):
        say("nothing was removed")
        return ExitCode.FAILED
    for folder in chosen:
        folder.delete_checkpoints()
        folder.delete_model()
    if not chosen:
        _delete_sweep(sweep.path)
    say("removed")
    return ExitCode.FINISHED


def measure(places: Sequence[Path]) -> list[Size]:
    """Return the files below some folders by kind: checkpoints, models, and the rest.

    A file that is linked from elsewhere too frees nothing, as does a second name of a file that was counted.
    """
    sizes_of: dict[str, list[int]] = {}
    for place in places:
        for folder, _, files in os.walk(place):
            kind = next((name for name in LARGE if name in Path(folder).parts[len(place.parts) - 1 :]), REST)
            for file in files:
                stat = (Path(folder) / file).lstat()
                sizes_of.setdefault(kind, []).append(stat.st_blocks * 512 // stat.st_nlink)
    return [Size(kind, len(sizes), sum(sizes)) for kind, sizes in sorted(sizes_of.items())]


def render_size(size: int) -> str:
    """Return bytes as people read them."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 // 10 else f"{size / 2**20:.1f} MiB"


def _find_trial(sweep: SweepFolder, name: str) -> TrialFolder:
    for folder in sweep.trials():
        if name in (str(folder.number), folder.path.name):
            return folder
    numbers = ", ".join(str(folder.number) for folder in sweep.trials())
    raise UserError(f"{name} is no trial of {sweep.path.name}. It has {numbers or 'none'}.")


def _check_idle(sweep: SweepFolder) -> None:
    jobs = sum(map(len, find_jobs(sweep.path).values()))
    if not jobs and not is_held(sweep.lease):
        return
    still = f"it has {count(jobs, 'job')} that waits or runs" if jobs else "its controller runs"
    raise UserError(
        f"{sweep.path.name}: {still}, and would write again what is removed. Stop the sweep with Ctrl-C, or its jobs with "
        f"grposweep cancel {sweep.path.name}."
    )


def agrees(question: str) -> bool:
    """Ask the user a question, and return whether the answer is yes. Raises UserError without a terminal."""
    if not sys.stdin.isatty():
        raise UserError("the input is no terminal, so the question cannot be asked. Add --yes.")
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _delete_sweep(path: Path) -> None:
    """Delete a sweep's folder, its description last: until then the same command finds it again."""
    for child in path.iterdir():
        if child.is_dir() and not child.is_symlink():
            delete_folder(child, path)
        elif child.name != paths.SWEEP:
            child.unlink(missing_ok=True)
    shutil.rmtree(path)
