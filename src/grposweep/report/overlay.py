"""Several curves in one terminal chart: a letter each, over axes that they share."""

from collections.abc import Mapping

from grposweep.report.chart import Series

SHARED = "*"  # where two curves meet


def overlay(curves: Mapping[str, Series], width: int = 60, height: int = 10, unit: str = "completions") -> list[str]:
    """The curves under their letters, between their measurements straight; none where there is no point."""
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
    """A curve's value at x, straight between its measurements; None outside of them."""
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return None
