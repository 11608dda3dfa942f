"""The sweeps below a folder, a line each, the latest first."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from grposweep.errors import BadInput
from grposweep.report.progress import ended, standing, target
from grposweep.report.read import SweepView, read_sweep
from grposweep.report.words import short
from grposweep.sweep.find import find_sweeps, last_change


def read_sweeps(folder: Path) -> tuple[list[SweepView], list[str]]:
    """The sweeps in and below a folder, the latest first; and what cannot be read, in words.

    Raises BadInput where there is neither.
    """
    views, damaged = [], []
    for sweep in sorted(find_sweeps(folder), key=lambda sweep: -last_change(sweep.path)):
        try:
            views.append(read_sweep(sweep))
        except BadInput as error:
            damaged.append(str(error))
    if not views and not damaged:
        raise BadInput(f"no sweep in {folder.resolve()} or below. Name a folder that has some (outputs by default).")
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
