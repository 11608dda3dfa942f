"""Draw the recorded curves of SmolLM2 by learning rate as docs/curves.svg; gpu_report.py calls it.

python benchmarks/gpu/curves_chart.py
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "curves"))

from chart import line, text  # noqa: E402  # it is in the folder above

PICTURE = HERE.parents[1] / "docs" / "curves.svg"
# px
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 900, 330, 46, 40, 44, 250
# Learning rates up to the number; their colour and what the curves show.
BANDS = (
    (5e-6, "#56b4e9", "up to 5e-6: still rising at the end"),
    (2e-5, "#009e73", "5e-6 to 2e-5: the best"),
    (1.0, "#d55e00", "above 2e-5: most collapse"),
)


def draw(curves: list[dict[str, Any]]) -> str:
    """Return the held-out reward by optimizer step of each curve of one card as SVG."""
    last = max(curve["steps"][-1] for curve in curves)
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(step: float, value: float) -> tuple[float, float]:
        return LEFT + wide * step / last, TOP + high * (1 - value)

    title = f"SmolLM2-135M learns to add: {len(curves)} trials on one {curves[0]['card']}"
    parts = [text(LEFT, 20, title, 'font-weight="bold" font-size="14"')]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(line([place(0, tick), place(last, tick)], "#e3e3e3", 1))
        parts.append(
            text(LEFT - 6, place(0, tick)[1] + 4, f"{tick:g}", 'text-anchor="end" fill="#555"')
        )
    for step in (0, *curves[0]["steps"]):
        parts.append(
            text(
                place(step, 0)[0],
                HEIGHT - BOTTOM + 16,
                f"{step}",
                'text-anchor="middle" fill="#555"',
            )
        )
    under = "share of right held-out answers, by optimizer step (64 completions each)"
    parts.append(text(LEFT + wide / 2, HEIGHT - 10, under, 'text-anchor="middle" fill="#555"'))
    for curve in curves:
        colour = next(colour for most, colour, _ in BANDS if curve["point"]["lr"] <= most)
        values = [curve["start"], *curve["held_out"]]
        parts.append(
            line(
                [place(*pair) for pair in zip((0, *curve["steps"]), values, strict=True)],
                colour,
                1.6,
            )
        )
    for index, (_, colour, words) in enumerate(BANDS):
        y = TOP + 20 + 24 * index
        parts.append(line([(WIDTH - RIGHT + 16, y), (WIDTH - RIGHT + 40, y)], colour, 3))
        parts.append(text(WIDTH - RIGHT + 46, y + 4, words))
    parts.append(text(WIDTH - RIGHT + 16, TOP - 2, "learning rate", 'font-weight="bold"'))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" '
        'font-family="DejaVu Sans, Arial, sans-serif" font-size="11.5"><rect width="100%" '
        'height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>\n"
    )


def draw_recorded(results: Path) -> str:
    """Return the picture of the curves of the first card that has some; no text without any."""
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    curves = [line for line in lines if line["part"] == "curves"]
    return draw([curve for curve in curves if curve["card"] == curves[0]["card"]]) if curves else ""


if __name__ == "__main__":
    PICTURE.write_text(draw_recorded(HERE / "results.jsonl"))
