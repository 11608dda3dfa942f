"""Draw curves in the terminal: a single one in Braille dots, several as letters over shared axes."""

from collections.abc import Iterator, Mapping, Sequence

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bits of a character, by row and column

Series = Sequence[tuple[float, float]]


class Canvas:
    """A grid of dots over [low, high] in both directions."""

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._letters = [[0] * width for _ in range(height)]
        self._columns, self._rows = 2 * width, 4 * height
        self._x, self._y = x, y

    def line(self, series: Series) -> None:
        """Draw the points, each joined to the previous one."""
        dots = [self._dot(x, y) for x, y in series]
        for begin, end in zip(dots, dots[1:] or dots, strict=False):
            for column, row in _between(begin, end):
                self._letters[row // 4][column // 2] |= DOTS[row % 4][column % 2]

    def rows(self) -> list[str]:
        """Return the characters, line by line."""
        return ["".join(chr(BRAILLE + letter) if letter else " " for letter in row).rstrip() for row in self._letters]

    def _dot(self, x: float, y: float) -> tuple[int, int]:
        column = round(_share(x, self._x) * (self._columns - 1))
        return column, round((1 - _share(y, self._y)) * (self._rows - 1))


def draw(series: Series, width: int = 60, height: int = 8, unit: str = "completions") -> list[str]:
    """Return a curve as lines of text; none without points."""
    if not series:
        return []
    x, y = _range([point[0] for point in series]), _range([point[1] for point in series])
    canvas = Canvas(width, height, x, y)
    canvas.line(series)
    labels = [f"{y[1]:8.4f}", *[" " * 8] * (height - 2), f"{y[0]:8.4f}"]
    lines = [f"{label} │{row}" for label, row in zip(labels, canvas.rows(), strict=True)]
    left, right = f"{x[0]:,.0f}", f"{x[1]:,.0f} {unit}"
    return [*lines, f"{'':8} └{left}{right:>{max(width - len(left), len(right) + 1)}}"]


def _between(begin: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    steps = max(abs(end[0] - begin[0]), abs(end[1] - begin[1]), 1)
    for step in range(steps + 1):
        yield tuple(round(a + (b - a) * step / steps) for a, b in zip(begin, end, strict=True))  # type: ignore[misc]


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


SHARED = "*"  # two curves meet


def overlay(curves: Mapping[str, Series], width: int = 60, height: int = 10, unit: str = "completions") -> list[str]:
    """Return the curves under their letters, interpolated linearly, as lines of text; none without points."""
    known = {letter: sorted(points) for letter, points in curves.items() if points}
    if not known:
        return []
    xs, ys = ([point[axis] for points in known.values() for point in points] for axis in (0, 1))
    rows = [[" "] * width for _ in range(height)]
    span = max(ys) - min(ys) or 1.0
    for letter, points in known.items():
        for column in range(width):
            value = at(points, min(xs) + (max(xs) - min(xs)) * column / (width - 1))
            if value is not None:
                row = rows[round((max(ys) - value) / span * (height - 1))]
                row[column] = letter if row[column] == " " else SHARED
    labels = [f"{max(ys):8.4f}", *[" " * 8] * (height - 2), f"{min(ys):8.4f}"]
    left, right = f"{min(xs):,.0f}", f"{max(xs):,.0f} {unit}"
    lines = [f"{label} │{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)]
    return [*lines, f"{'':8} └{left}{right:>{max(width - len(left), len(right) + 1)}}"]


def at(points: Series, x: float) -> float | None:
    """Interpolate a curve linearly at x; None outside of its points."""
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None
