"""Preparing models and data once, before the first trial, in a process or job of its own."""

from collections.abc import Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import Progress

from grposweep.config.compose import render_experiment
from grposweep.errors import ExitCode, UserError
from grposweep.files import read_json, write_json, write_text
from grposweep.launchers.base import Launcher
from grposweep.schema import Experiment
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder


class Interrupted(Protocol):
    """Counts requests to stop."""

    count: int


def prepare(
    folder: SweepFolder,
    experiments: Mapping[str, Experiment],
    launcher: Launcher,
    console: Console,
    interrupts: Interrupted,
) -> bool:
    """Have every model and task prepared that is not yet; False if the user interrupted it.

    Raises UserError with what preparation found wrong.
    """
    missing = {key: experiment for key, experiment in experiments.items() if key not in folder.prepared()}
    if not missing:
        return True
    (folder.path / paths.PREPARE_FOLDER).mkdir(exist_ok=True)
    for key, experiment in missing.items():
        write_text(folder.path / paths.PREPARE_FOLDER / f"{key}.yaml", render_experiment(experiment))
    write_json(folder.path / paths.PREPARE, {"entries": {key: f"{paths.PREPARE_FOLDER}/{key}.yaml" for key in missing}})
    log = folder.path / paths.PREPARE_FOLDER / "log"
    log.unlink(missing_ok=True)
    (folder.path / paths.PREPARE_ERROR).unlink(missing_ok=True)
    (folder.path / paths.PREPARE_PROGRESS).unlink(missing_ok=True)
    preparer = launcher.preparation(next(iter(missing.values())).cluster)
    preparer.start(folder.path, log)
    console.print(f"preparing model and data ({preparer.where})", highlight=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        while (code := preparer.poll()) is None:
            if interrupts.count:
                preparer.end()
                console.print("interrupted while preparing; the same command begins it again", highlight=False)
                return False
            found = read_json(folder.path / paths.PREPARE_PROGRESS) or {}
            bar.update(
                task, description=found.get("what", ""), completed=found.get("done", 0), total=found.get("total")
            )
    if code:
        raise UserError(_message(folder, code))
    return True


def _message(folder: SweepFolder, code: int) -> str:
    """What preparation said, or where to read it."""
    found = folder.path / paths.PREPARE_ERROR
    if code == ExitCode.BAD_INPUT and found.exists():
        return found.read_text(encoding="utf-8").strip()
    log = folder.path / paths.PREPARE_FOLDER / "log"
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:] if log.exists() else []
    return f"preparing model and data failed (exit code {code}): {' / '.join(tail)}. Its whole output is in {log}."
