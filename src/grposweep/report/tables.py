"""Tables for the terminal: the space with its invalid points, and the leaderboard."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Row:
    """One trial as the leaderboard shows it; ``dials`` maps short names to labels."""

    number: int
    status: str  # where it has no objective: why
    dials: dict[str, str]
    objective: float | None = None
    reached: float | None = None  # where one that was stopped early had come to
    error: float | None = None
    start: float | None = None
    start_error: float | None = None
    seconds: float | None = None
    gpu_hours: float = 0.0
    note: str = ""
    fresh: str = ""  # mean ± interval (count) on fresh seeds
    place: int | None = None  # by these, once they have decided
    fate: str = ""  # best, tied, or why it dropped out
    further: Mapping[str, str] = field(default_factory=dict)  # objectives beside the first, with their values


@dataclass(frozen=True)
class InvalidRow:
    """One rule that prunes points: how many, an example, why, and what would mend it."""

    code: str
    count: int
    example: str
    message: str
    fixes: Sequence[str] = field(default_factory=tuple)


def build_console() -> Console:
    """The terminal; where there is none, as wide as $COLUMNS says, or 100 columns, so that logs read like screens."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=100)


def invalid_table(rows: Iterable[InvalidRow], invalid: int, total: int) -> Table:
    """The invalid points by rule."""
    table = Table(
        title=f"{invalid} of {total} points are invalid and will cost nothing",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_lines=True,
        pad_edge=False,
    )
    table.add_column("rule", no_wrap=True)
    table.add_column("why, at one of its points", ratio=1, overflow="fold")
    table.add_column("what would be valid there", ratio=1, overflow="fold")
    for row in rows:
        why = Text(row.message)
        if row.example:
            why.append(f"\n({row.example})", style="dim")
        points = f"{row.count:,} point{'' if row.count == 1 else 's'}"
        table.add_row(f"{row.code}\n{points}", why, Text("\nor ".join(row.fixes)))
    return table


def leaderboard(rows: Sequence[Row], metric: str, direction: str, limit: int = 10) -> Table:
    """Finished trials, best first (on fresh seeds, where these have decided); then those without an objective."""
    sign = -1 if direction == "maximize" else 1
    finished = sorted((r for r in rows if r.objective is not None), key=lambda row: _order(row, sign))
    others = [row for row in rows if row.objective is None]
    dials = list(dict.fromkeys(name for row in rows for name in row.dials))
    starts = {f"{row.start:.4f}" for row in rows if row.start is not None}
    title = f"{metric}, {direction}d" + (f"; before training {starts.pop()}" if len(starts) == 1 else "")
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title=title, title_justify="left", title_style="bold"
    )
    for name in ("", "trial", f"{metric} ± se"):
        table.add_column(name, justify="right", no_wrap=bool(name != f"{metric} ± se"))
    shows_seeds = any(row.fate for row in rows)
    if shows_seeds:
        table.add_column("on fresh seeds ± 95 %", overflow="fold")
    further = list(dict.fromkeys(name for row in rows for name in row.further))
    for name in further:
        table.add_column(name, justify="right", overflow="fold")
    for name in dials:
        table.add_column(name, overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    shows_cost = any(row.gpu_hours * 3600 > (row.seconds or 0) + 1 for row in rows)  # several devices a trial
    if shows_cost:
        table.add_column("GPU h", justify="right", no_wrap=True)

    def add(rank: str, row: Row, value: str, style: str) -> None:
        cost = [f"{row.gpu_hours:.2f}"] if shows_cost else []
        labels = (row.dials.get(name, "") for name in dials)
        seeds = [" ".join(part for part in (row.fresh, row.fate) if part)] if shows_seeds else []
        table.add_row(
            rank,
            str(row.number),
            value,
            *seeds,
            *(row.further.get(n, "") for n in further),
            *labels,
            clock(row.seconds),
            *cost,
            style=style,
        )

    for rank, row in enumerate(finished[:limit], 1):
        value = f"{row.objective:.4f}" + (f" ± {row.error:.4f}" if row.error is not None else "")
        add(str(rank), row, value, "bold" if rank == 1 else "")
    for row in others[:limit]:
        at = "" if row.reached is None else f" at {row.reached:.4f}"
        add("", row, row.status + at, "dim")
    hidden = max(len(finished) - limit, 0) + max(len(others) - limit, 0)
    if hidden:
        table.caption = f"and {hidden} more"
    return table


def _order(row: Row, sign: int) -> tuple[bool, float, float, int]:
    """Those that fresh seeds have placed first, in that order; then by objective."""
    return row.place is None, row.place or 0, sign * (row.objective or 0), row.number


def clock(seconds: float | None) -> str:
    """Seconds as people read them."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d}" if hours else f"{minutes}:{rest:02d}"
