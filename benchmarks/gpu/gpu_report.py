"""Put what run.py measured into RESULTS.md, under the card's name: ``make gpu-report``.

    python benchmarks/gpu/gpu_report.py [FOLDER ...]

Each FOLDER (default: build/gpu) holds results.jsonl and grid.jsonl. Their lines are added to those
of this folder, so tables of several cards and days stand together. Curves go to
benchmarks/curves/sums.jsonl, and those of the first card to docs/curves.svg.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parent
sys.path[:0] = [str(BENCHMARKS / "memory"), str(HERE.parents[1] / "src")]

from curves_chart import PICTURE, draw_recorded  # noqa: E402  # it is in this folder
from gpu_grid import CONTEXT, GIB, HEAD, TOLERANCE, Outcome, read_outcomes, row  # noqa: E402  # it is in this folder

RESULTS, GRID = HERE / "results.jsonl", BENCHMARKS / "memory" / "grid.jsonl"
# of a curve's line; the others are the curve
RUN_KEYS = ("part", "card", "trial", "mps")
# GiB that torch can have
SIZES = {"NVIDIA H100 80GB HBM3": 79.2, "NVIDIA H200": 139.8}
TITLE = """# On GPUs

`make gpu` measures this and `make gpu-report` writes it; sums.py is the task, with SmolLM2-135M-Instruct. Float32 weights under
bfloat16 autocast, optimizer steps of 64 completions of at most 16 tokens. Each table names its card.
"""


def read(path: Path) -> list[str]:
    """Return the lines of a file; none if there is none."""
    return path.read_text().splitlines() if path.is_file() else []


def add(source: Path, target: Path) -> None:
    """Add the lines of a file that another lacks."""
    target.write_text(
        "".join(f"{line}\n" for line in dict.fromkeys([*read(target), *read(source)]))
    )


def write_tests(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield one line for each test, with its last outcome."""
    last = {line["test"]: line for line in lines}
    counts = Counter(line["outcome"] for line in last.values())
    yield (
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} were skipped.\n"
    )
    yield "| test | outcome | seconds |\n|---|---|---|"
    for name, line in last.items():
        why = f": {' '.join(line['why'].split())}" if line["outcome"] != "passed" else ""
        yield f"| `{name}` | {line['outcome']}{why} | {line['seconds']:.0f} |"


def write_packing(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the seconds of a step by how trials share the card."""
    yield (
        "| trials at once | NVIDIA's MPS | seconds a step | seconds a step of one trial's "
        "share |\n|---|---|---|---|"
    )
    for line in lines:
        mps = "yes" if line["mps"] else "no"
        yield (
            f"| {line['trials']} | {mps} | {line['step_seconds']:.2f} | "
            f"{line['seconds_a_trial_step']:.2f} |"
        )


def write_curves(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the curves by learning rate."""
    steps = max((line["steps"] for line in lines), key=len)
    names = " | ".join(f"step {step}" for step in steps)
    yield (
        f"| lr | num_generations | beta | start | {names} | GPU seconds "
        f"|\n|---|---|---|---|{'---|' * (len(steps) + 1)}"
    )
    for line in sorted(lines, key=lambda line: line["point"]["lr"]):
        point, values = line["point"], " | ".join(f"{value:.3f}" for value in line["held_out"])
        start = f"{line['start']:.3f}"
        yield (
            f"| {point['lr']:.2g} | {point['num_generations']} | {point['beta']:g} | {start} | "
            f"{values} | {line['seconds']:.0f} |"
        )


def write_search(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what the default search found, and its share of full training."""
    for line in lines:
        results = line["results"]
        finished = sum(result["status"] == "finished" for result in results)
        best = max(
            (result["objective"] for result in results if result["objective"] is not None),
            default=math.nan,
        )
        yield (
            f"{len(results)} trials started and {finished} finished before time was over; "
            f"{line['share']:.0%} of all steps trained; the best value so far: {best:.3f}."
        )


def write_memory(card: str, outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the grid of memory."""
    yield HEAD
    yield from (row(outcome, SIZES.get(card, 0.0)) for outcome in outcomes)
    kept = [outcome for outcome in outcomes if outcome.reserved_gib is not None]
    ran_out = [outcome for outcome in outcomes if outcome.ran_out]
    safe = sum(outcome.was_called_safe(SIZES.get(card, 0.0)) for outcome in ran_out)
    yield (
        f"\n{sum(map(Outcome.is_close, kept))} of {len(kept)} estimates are within {TOLERANCE:.0%} "
        f"of what was reserved, without CUDA's context ({CONTEXT / GIB:.1f} GiB). {len(ran_out)} "
        f"points ran out of memory, {safe} of them called safe."
    )


WRITERS = {
    "tests": write_tests,
    "packing": write_packing,
    "curves": write_curves,
    "search": write_search,
}


def render(results: Path, grid: Path) -> str:
    """Return the text of RESULTS.md for the lines of two files."""
    lines = [json.loads(line) for line in read(results)]
    text = [TITLE]
    for card in dict.fromkeys(line["card"] for line in lines):
        text.append(f"## {card}\n")
        for part, writer in WRITERS.items():
            found = [line for line in lines if line["card"] == card and line["part"] == part]
            if found:
                text += [f"### {part.capitalize()}\n", *writer(found), ""]
        if outcomes := read_outcomes(grid, card):
            text += ["### Memory\n", *write_memory(card, outcomes), ""]
    return "\n".join(text)


def main(folders: list[Path]) -> None:
    """Add the lines of all folders, and write RESULTS.md and the curves."""
    for folder in folders:
        add(folder / "grid.jsonl", GRID)
        add(folder / "results.jsonl", RESULTS)
    (HERE / "RESULTS.md").write_text(render(RESULTS, GRID))
    curves = [json.loads(line) for line in read(RESULTS) if '"part": "curves"' in line]
    kept = ({key: value for key, value in line.items() if key not in RUN_KEYS} for line in curves)
    (BENCHMARKS / "curves" / "sums.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in kept)
    )
    PICTURE.write_text(draw_recorded(RESULTS))


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]] or [HERE.parents[1] / "build" / "gpu"])
