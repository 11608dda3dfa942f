"""The sweeps below a folder, a line each, the latest first.

What ``grposweep status``, ``show``, ``list`` and ``report`` do: read, draw, print.
"""

import json
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from grposweep.errors import UserError
from grposweep.labels import count, short
from grposweep.report.cost import ended, standing, target
from grposweep.report.status import status_json, status_screen
from grposweep.report.trial_screen import trial_screen
from grposweep.report.view import SweepView, open_sweep, read_sweep
from grposweep.storage.folders import find_sweeps, last_change


def read_sweeps(folder: Path) -> tuple[list[SweepView], list[str]]:
    """The sweeps in and below a folder, the latest first; and what cannot be read, in words.

    Raises UserError where there is neither.
    """
    views, damaged = [], []
    for sweep in sorted(find_sweeps(folder), key=lambda sweep: -last_change(sweep.path)):
        try:
            views.append(read_sweep(sweep))
        except UserError as error:
            damaged.append(str(error))
    if not views and not damaged:
        raise UserError(f"no sweep in {folder.resolve()} or below. Name a folder that has some (outputs by default).")
    return views, damaged


def sweeps_table(views: Iterable[SweepView]) -> Table:
    """Name, standing, trials, best, cost and when something last happened."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("sweep", overflow="fold")
    table.add_column("trials", justify="right", no_wrap=True)
    table.add_column("best", overflow="fold")
    table.add_column("GPU h", justify="right", no_wrap=True)
    table.add_column("last change", no_wrap=True)
    for view in views:
        best = "" if view.best is None else f"{view.best.objective:.4f} {short(view.best.point)}"
        when = datetime.fromtimestamp(last_change(view.path)).strftime("%Y-%m-%d %H:%M")
        state = "at work" if view.controller else standing(view)
        table.add_row(
            Text.assemble(view.name, "\n", (state, "dim")), f"{ended(view):,}/{target(view):,}", Text(best),
            f"{view.gpu_hours:.3g}", when,
        )  # fmt: skip
    return table


WATCH_SECONDS = 2.0
WIDTH = 80  # without a terminal


def show_status(named: str | None, outputs: Path, watch: bool, as_json: bool, out: TextIO) -> None:
    """Print a sweep's status once, or again and again until nothing more is to come.

    Raises UserError where there is no such sweep, or no terminal to watch it in.
    """
    view, console = open_sweep(named, outputs), build_console()
    if as_json:
        print(json.dumps(status_json(view)), file=out)
    elif not watch:
        console.print(status_screen(view))
    elif console.is_terminal:
        _watch(view, console)
    else:
        raise UserError("--watch needs a terminal. Without one, ask again with 'grposweep status', or with --json.")


def _watch(view: SweepView, console: Console) -> None:
    with Live(status_screen(view), console=console, auto_refresh=False) as live:
        while view.controller or ended(view) < target(view):
            time.sleep(WATCH_SECONDS)
            view = read_sweep(view.path)
            live.update(status_screen(view), refresh=True)


def show_trial(wanted: str, named: str | None, outputs: Path) -> None:
    """Print everything about one trial.

    Raises UserError where there is no such sweep or trial.
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

    Raises UserError where there is no such sweep, or the file cannot be written.
    """
    from grposweep.report.html import write_report  # jinja2: not for status

    view = open_sweep(named, outputs)
    path = write_report(view, output)
    size = f"{path.stat().st_size / 1e6:.1f} MB, {count(len(view.trials), 'trial')}"
    build_console().print(f"{path} ({size})", markup=False, soft_wrap=True)


def build_console() -> Console:
    """The terminal; 80 columns where there is none, so that what is piped reads like a screen."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH, soft_wrap=False)
