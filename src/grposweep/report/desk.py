"""What ``grposweep status``, ``show``, ``list`` and ``report`` do: read, draw, print."""

import json
import time
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.live import Live

from grposweep.errors import BadInput
from grposweep.report.folders import read_sweeps, sweeps_table
from grposweep.report.progress import ended, target
from grposweep.report.read import SweepView, open_sweep, read_sweep
from grposweep.report.show import trial_screen
from grposweep.report.status import status_json, status_screen
from grposweep.report.words import count

WATCH_SECONDS = 2.0
WIDTH = 80  # without a terminal


def show_status(named: str | None, outputs: Path, watch: bool, as_json: bool, out: TextIO) -> None:
    """Print a sweep's status once, or again and again until nothing more is to come.

    Raises BadInput where there is no such sweep, or no terminal to watch it in.
    """
    view, console = open_sweep(named, outputs), build_console()
    if as_json:
        print(json.dumps(status_json(view)), file=out)
    elif not watch:
        console.print(status_screen(view))
    elif console.is_terminal:
        _watch(view, console)
    else:
        raise BadInput("--watch needs a terminal. Without one, ask again with 'grposweep status', or with --json.")


def _watch(view: SweepView, console: Console) -> None:
    with Live(status_screen(view), console=console, auto_refresh=False) as live:
        while view.controller or ended(view) < target(view):
            time.sleep(WATCH_SECONDS)
            view = read_sweep(view.path)
            live.update(status_screen(view), refresh=True)


def show_trial(wanted: str, named: str | None, outputs: Path) -> None:
    """Print everything about one trial.

    Raises BadInput where there is no such sweep or trial.
    """
    view, console = open_sweep(named, outputs), build_console()
    trial = view.trial(wanted)
    console.print(trial_screen(view, trial))
    if trial.command:
        console.print("\nrepeat it", style="bold")
        console.print(trial.command, markup=False, soft_wrap=True)  # a line broken by us could not be copied


def show_sweeps(folder: Path) -> None:
    """Print the sweeps below a folder, and which of them cannot be read."""
    views, damaged = read_sweeps(folder)
    console = build_console()
    if views:
        console.print(sweeps_table(views))
    for why in damaged:
        console.print(why, style="yellow", markup=False, soft_wrap=True)


def show_report(named: str | None, outputs: Path, output: Path | None) -> None:
    """Write a sweep's report and say where it is.

    Raises BadInput where there is no such sweep, or the file cannot be written.
    """
    from grposweep.report.page import write_report  # jinja2: not for status

    view = open_sweep(named, outputs)
    path = write_report(view, output)
    size = f"{path.stat().st_size / 1e6:.1f} MB, {count(len(view.trials), 'trial')}"
    build_console().print(f"{path} ({size})", markup=False, soft_wrap=True)


def build_console() -> Console:
    """The terminal; 80 columns where there is none, so that what is piped reads like a screen."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH, soft_wrap=False)
