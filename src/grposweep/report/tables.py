"""Shared parts of terminal screens: the console, durations, tables and curves."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from rich import box
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from grporecipe.files import Config, Json
from grporecipe.terminal import printable

# of screens about a sweep when they are piped, unless $COLUMNS is set
SCREEN_COLUMNS = 80
# of what a sweep or plan prints without a terminal, unless $COLUMNS is set
LOG_COLUMNS = 100


class SafeConsole(Console):
    """A console on which text from files cannot steer the terminal: only rich itself sends control
    characters.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield the segments of what is shown, their control characters as text."""
        for text, style, control in super().render(renderable, options):
            if not control:
                text = printable(text)
            yield Segment(text, style, control)


def build_console(columns: int | None = None) -> Console:
    """Return a console for the terminal. Without one it is as wide as $COLUMNS, by default
    ``columns`` or 100.
    """
    console = SafeConsole(highlight=False, markup=False, emoji=False)
    if console.file.isatty():
        # rich takes 80 columns for granted
        if console.is_dumb_terminal:
            console.size = ConsoleDimensions(*shutil.get_terminal_size())
    elif "COLUMNS" not in os.environ:
        # rich reads it
        console.width = columns or LOG_COLUMNS
    return console


def print_lines(console: Console, *lines: str, style: str = "") -> None:
    """Print the lines that are not empty, without line breaks of ours: a command can be copied."""
    for line in filter(None, lines):
        console.print(line, style=style, soft_wrap=True)


def format_duration(seconds: float | None) -> str:
    """Format seconds as 3.2 s, 45 s, 12:05 or 2 h 05; empty for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d}" if hours else f"{minutes}:{rest:02d}"


# a title, and options of rich's ``add_column``
Column = str | tuple[str, Config]
FOLD: Config = {"overflow": "fold"}
RIGHT: Config = {"justify": "right"}
NUMBER: Config = {"justify": "right", "no_wrap": True}


class Styled(NamedTuple):
    """A row of a table in a style of its own."""

    cells: Sequence[RenderableType]
    style: str


Row = Sequence[RenderableType] | Styled


def build_table(
    columns: Iterable[Column], rows: Iterable[Row], caption: str = "", **options: Any
) -> Table:
    """Return rows as a table in the style of all screens; text in a cell is shown as it is.

    Args:
        columns: titles, with options of rich's ``add_column``.
        rows: their cells.
        caption: lines below the table.
        options: those of rich's ``Table``.

    """
    style: Json = {
        "box": box.SIMPLE_HEAD,
        "pad_edge": False,
        "title_justify": "left",
        "title_style": "bold",
        "caption": caption or None,
        "caption_justify": "left",
    }
    table = Table(**{**style, **options})
    for column in columns:
        title, settings = (column, {}) if isinstance(column, str) else column
        table.add_column(title, **settings)
    return _fill(table, rows)


def folded_table(titles: Iterable[str], rows: Iterable[Row], **options: Any) -> Table:
    """Return a table in which long cells continue on further lines."""
    return build_table([(title, FOLD) for title in titles], rows, **options)


def build_grid(rows: Iterable[Row], gap: int = 2, columns: Iterable[Config] = ()) -> Table:
    """Return rows without titles and lines, ``gap`` characters apart."""
    grid = Table.grid(padding=(0, gap))
    for settings in columns:
        grid.add_column(**settings)
    return _fill(grid, rows)


def _fill(table: Table, rows: Iterable[Row]) -> Table:
    for row in rows:
        cells, style = row if isinstance(row, Styled) else (row, "")
        table.add_row(*map(_as_it_is, cells), style=style)
    return table


def _as_it_is(cell: RenderableType) -> RenderableType:
    return Text(cell) if isinstance(cell, str) else cell


BRAILLE = 0x2800
# bits of a character, by row and column
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
# columns before a curve
AXIS = 10
# two curves meet
SHARED = "*"

Series = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Fitted:
    """A drawing as wide as the console allows, up to 60 columns and its axis; ``draw`` gets the
    width.
    """

    draw: Callable[[int], list[str]]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the lines."""
        yield Text("\n".join(self.draw(max(min(60, options.max_width - AXIS), 1))))


def draw_curve(
    series: Series, width: int = 60, height: int = 8, axis: str = "completions"
) -> list[str]:
    """Return a curve of at least one point over ``axis`` in Braille dots, as lines of text."""
    x, y = _ranges(series)
    letters = [[BRAILLE] * width for _ in range(height)]
    dots = [
        (round(_share(a, x) * (2 * width - 1)), round((1 - _share(b, y)) * (4 * height - 1)))
        for a, b in series
    ]
    for (a, b), (c, d) in zip(dots, dots[1:] or dots, strict=False):
        steps = max(abs(c - a), abs(d - b), 1)
        for step in range(steps + 1):
            column = round(a + (c - a) * step / steps)
            row = round(b + (d - b) * step / steps)
            letters[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    rows = ["".join(map(chr, row)).replace(chr(BRAILLE), " ") for row in letters]
    return _frame(rows, width, x, y, axis)


def draw_curves(
    curves: Mapping[str, Series], width: int = 60, height: int = 10, axis: str = "completions"
) -> list[str]:
    """Return curves over ``axis`` under their letters, interpolated linearly, as lines of text.
    One has a point at least.
    """
    x, y = _ranges([*chain.from_iterable(curves.values())])
    rows = [[" "] * width for _ in range(height)]
    span = y[1] - y[0] or 1.0
    for letter, series in curves.items():
        points = sorted(series)
        for column in range(width):
            value = at(points, x[0] + (x[1] - x[0]) * column / max(width - 1, 1))
            if value is not None:
                row = rows[round((y[1] - value) / span * (height - 1))]
                row[column] = letter if row[column] == " " else SHARED
    return _frame(list(map("".join, rows)), width, x, y, axis)


def at(points: Series, x: float) -> float | None:
    """Interpolate a curve linearly at x; None outside of its points."""
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None


def _frame(
    rows: Sequence[str], width: int, x: tuple[float, float], y: tuple[float, float], axis: str
) -> list[str]:
    """Return the rows with labelled axes."""
    labels = [f"{y[1]:8.4f}", *[" " * 8] * (len(rows) - 2), f"{y[0]:8.4f}"]
    lines = [f"{label} │{row.rstrip()}" for label, row in zip(labels, rows, strict=True)]
    left = f"{x[0]:,.0f}"
    right = f"{x[1]:,.0f} {axis}"
    return [*lines, f"{'':8} └{left}{right:>{max(width - len(left), len(right) + 1)}}"]


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5


def _ranges(points: Series) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the least and the largest of both coordinates."""
    x, y = zip(*points, strict=True)
    return (min(x), max(x)), (min(y), max(y))
