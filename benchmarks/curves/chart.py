"""Draw cost against regret, a panel per file, from what replay.py printed or kept.

    python benchmarks/curves/replay.py FILE... --policy
    rank@0.3,rank@0.5,rank@0.7,tpe,hyperband,median --keep kept
    python benchmarks/curves/chart.py kept chart.svg --trials 24

The input is a folder of ``--keep`` or a file with the output of ``--format json``. Policies with an
effort are one line.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from figures import Repeat, describe

# px
WIDTH, COLUMNS, LEFT, TOP, RADIUS = 900, 3, 44, 26, 5.5
PANEL_WIDTH, PANEL_HEIGHT = WIDTH / COLUMNS, 220.0
PLOT_WIDTH, PLOT_HEIGHT = PANEL_WIDTH - LEFT - 16, PANEL_HEIGHT - TOP - 36
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d1f", "#56b4e9", "#7f7f7f", "#e69f00")
OURS, OUR_COLOUR = "ours, by effort", "#111111"
# finishes everything: drawn as a line
REFERENCE = "tpe"
HALO = 'font-size="10" stroke="white" stroke-width="3" paint-order="stroke"'
DASHED = 'stroke-dasharray="5 4"'
FEWEST_TICKS = 3

# one policy's on one file, as replay.py prints them; with its name
Figures = dict[str, Any]


def read_figures(path: Path, trials: int) -> dict[str, list[Figures]]:
    """Return the figures of each policy by file; of a folder, over the seeds that all policies
    have.
    """
    found: dict[str, list[Figures]] = defaultdict(list)
    if path.is_file():
        for name, row in json.loads(path.read_text()).items():
            for file, figures in row["files"].items():
                found[file].append({**figures, "policy": name.partition("@")[0]})
        return found
    groups: dict[str, list[dict[int, Repeat]]] = defaultdict(list)
    for kept in sorted(path.glob(f"*.{trials}.1.jsonl")):
        repeats = [Repeat(**json.loads(line)) for line in kept.read_text().splitlines()]
        groups[repeats[0].file].append({repeat.seed: repeat for repeat in repeats})
    for file, searches in groups.items():
        # others would not compare like with like
        seeds = sorted(set.intersection(*({*search} for search in searches)))
        for search in searches if seeds else ():
            same = [search[seed] for seed in seeds]
            found[file].append({**describe([same], [same]), "policy": same[0].policy})
    return found


def draw(found: dict[str, list[Figures]]) -> str:
    """Return the chart as SVG."""
    others = sorted(
        {row["policy"] for rows in found.values() for row in rows if row["effort"] is None}
    )
    colours = dict(zip(others, COLOURS * len(others), strict=False))
    height = math.ceil(len(found) / COLUMNS) * PANEL_HEIGHT + 60
    parts = []
    for index, (file, rows) in enumerate(found.items()):
        x, y = index % COLUMNS * PANEL_WIDTH, index // COLUMNS * PANEL_HEIGHT
        parts.append(f'<g transform="translate({x:.0f},{y:.0f})">{panel(file, rows, colours)}</g>')
    parts.append(f'<g transform="translate(0,{height - 40:.0f})">{legend(colours)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}" '
        'font-family="DejaVu Sans, Arial, sans-serif" font-size="11"><rect width="100%" '
        'height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def panel(file: str, rows: list[Figures], colours: dict[str, str]) -> str:
    """Return one file's panel: axes, the line over efforts, and a marker per policy."""
    top = 1.1 * max(max(row["regret"] for row in rows), 1e-6)
    step = tick_step(top)

    def place(row: Figures) -> tuple[float, float]:
        return LEFT + row["cost"] * PLOT_WIDTH, TOP + (1 - row["regret"] / top) * PLOT_HEIGHT

    bottom, right = TOP + PLOT_HEIGHT, LEFT + PLOT_WIDTH
    parts = [text(LEFT, TOP - 10, file, 'font-weight="bold" font-size="12"')]
    for n in range(int(top / step) + 1):
        y = TOP + (1 - n * step / top) * PLOT_HEIGHT
        parts.append(line([(LEFT, y), (right, y)], "#e3e3e3", 1))
        parts.append(text(LEFT - 5, y + 4, f"{n * step:.3g}", 'text-anchor="end" fill="#555"'))
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(
            text(
                LEFT + tick * PLOT_WIDTH,
                bottom + 14,
                f"{tick:g}",
                'text-anchor="middle" fill="#555"',
            )
        )
    parts.append(line([(LEFT, bottom), (right, bottom)], "#999", 1))
    parts.append(
        text(LEFT + PLOT_WIDTH / 2, bottom + 28, "cost", 'text-anchor="middle" fill="#555"')
    )
    ours = sorted(
        (row for row in rows if row["effort"] is not None), key=lambda row: float(row["effort"])
    )
    parts.append(line([place(row) for row in ours], OUR_COLOUR, 2))
    for row in sorted(rows, key=lambda row: row["effort"] is not None):
        x, y = place(row)
        if row["policy"] == REFERENCE:
            parts.append(line([(LEFT, y), (right, y)], colours[REFERENCE], 1.5, DASHED))
        else:
            parts.append(
                marker(x, y, OUR_COLOUR if row in ours else colours[row["policy"]], row["lost"])
            )
    for row in ours:
        x, y = place(row)
        parts.append(text(x, y - RADIUS - 4, f"{row['effort']:g}", f'text-anchor="middle" {HALO}'))
    return "".join(parts)


def legend(colours: dict[str, str]) -> str:
    """Return the names of the colours, and what the filled part of a marker is."""
    parts, x = [], float(LEFT)
    for name, colour in {OURS: OUR_COLOUR, **colours}.items():
        is_line = name == REFERENCE
        parts.append(
            line([(x - 8, 0), (x + 8, 0)], colour, 2, DASHED)
            if is_line
            else marker(x, 0, colour, 0.0)
        )
        parts.append(text(x + 12, 4, name))
        x += 32 + 6.6 * len(name)
    share = marker(LEFT, 22, "#555", 0.25)
    said = (
        "regret of the best finished point against cost; filled: share of sweeps that lost "
        "the best started point by over 1 %"
    )
    return "".join(parts) + share + text(LEFT + 10, 26, said, 'fill="#555"')


def marker(x: float, y: float, colour: str, filled: float) -> str:
    """Return a circle with a filled sector from the top, clockwise."""
    circle = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" stroke="{colour}" '
        'stroke-width="1.8" fill="'
    )
    if filled in (0, 1):
        return f'{circle}{colour if filled else "white"}"/>'
    end_x, end_y = (
        x + RADIUS * math.sin(2 * math.pi * filled),
        y - RADIUS * math.cos(2 * math.pi * filled),
    )
    arc = f"A{RADIUS} {RADIUS} 0 {int(filled > 0.5)} 1 {end_x:.2f} {end_y:.2f}"
    return f'{circle}white"/><path d="M{x:.1f} {y:.1f}V{y - RADIUS:.2f}{arc}Z" fill="{colour}"/>'


def line(points: list[tuple[float, float]], colour: str, width: float, more: str = "") -> str:
    """Return a polyline."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}" {more}/>'
    )


def text(x: float, y: float, words: str, more: str = "") -> str:
    """Return a piece of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def tick_step(top: float) -> float:
    """Return a round distance between ticks from 0 to ``top``."""
    unit = 10.0 ** math.floor(math.log10(top))
    return next(unit * share for share in (2, 1, 0.5, 0.2) if top / (unit * share) >= FEWEST_TICKS)


def main() -> int:
    """Draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="a folder of --keep, or a file of --format json")
    parser.add_argument("out", type=Path, help="the SVG to write")
    parser.add_argument(
        "--trials",
        type=int,
        default=24,
        help="of the sweeps in a folder, with one slot (default 24)",
    )
    options = parser.parse_args()
    found = read_figures(options.source, options.trials)
    if not found:
        print(
            f"{options.source}: it has no sweep of {options.trials} trials. Name a folder of "
            "--keep.",
            file=sys.stderr,
        )
        return 2
    options.out.write_text(draw(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
