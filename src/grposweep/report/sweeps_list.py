"""The list of the sweeps in and below folders."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from grporecipe.errors import UserError
from grporecipe.terminal import short
from grposweep.report.tables import FOLD, NUMBER, Row, build_table
from grposweep.report.view import SweepView, read_sweep
from grposweep.storage.folders import last_change, latest_sweeps


def read_sweeps(*folders: Path) -> tuple[list[SweepView], list[str]]:
    """Read the sweeps in and below folders, the latest first, dry runs and fake ones last; and say
    for each unreadable one why.

    Raises UserError if there is none.
    """
    views = []
    damaged = []
    for sweep in latest_sweeps(*folders):
        try:
            views.append(read_sweep(sweep))
        except UserError as error:
            damaged.append(str(error))
        except PermissionError as error:
            # another user's: it hides no other sweep
            damaged.append(f"{error.filename} cannot be read ({error.strerror})")
    views.sort(key=lambda view: view.is_dry or view.is_fake)
    if not views and not damaged:
        looked = ", ".join(str(folder.resolve()) for folder in folders)
        raise UserError(
            f"no sweep in {looked} or below. Name a folder that has some (outputs by default)."
        )
    return views, damaged


def sweeps_table(views: Iterable[SweepView]) -> Table:
    """Return one row per sweep: name, progress, trials, best, cost and last change."""
    last = ("last change", {"no_wrap": True})
    columns = (("sweep", FOLD), ("trials", NUMBER), ("cost", NUMBER), last)
    return build_table(columns, map(_row, views))


def _row(view: SweepView) -> Row:
    state = "at work" if view.controller else view.progress_text
    if view.is_fake:
        state = f"fake trainer, {state}"
    best = view.best_point
    if best is not None:
        state += f", best {best.brief}, {short(best.first.point)}"
    return (
        Text.assemble(view.name, "\n", (state, "dim")),
        f"{view.ended:,}/{view.planned:,}",
        f"{view.gpu_hours:.3g} {view.hours_unit[:5]}",
        datetime.fromtimestamp(last_change(view.path)).strftime("%Y-%m-%d %H:%M"),
    )
