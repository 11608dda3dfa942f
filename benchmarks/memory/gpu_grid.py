"""The memory estimator against a GPU: real GRPO steps of TRL over a grid of points, some of which
run out of memory.

``python benchmarks/memory/gpu_grid.py`` on a machine with one GPU of at least 24 GiB; nothing is
downloaded: weights are random, of the real shape. Each point runs in a process of its own
(gpu_point.py), and its line goes to grid.jsonl next to this file as soon as it is known:
``torch.cuda.max_memory_reserved`` next to the estimate. Points that have their line are not run
again, so with ``--seconds 180`` the grid is done in pieces; each prints the whole comparison so
far. Most points train on random rollouts, which takes seconds; a few generate theirs. ``--list``
shows the points with their estimates, which needs no GPU.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from gpu_point import STEPS, Point  # noqa: E402  # it is in this folder

from grporecipe.memory.catalog import GPUS  # noqa: E402
from grporecipe.memory.estimate import CONTEXT, GIB, estimate  # noqa: E402

# of what was reserved
TOLERANCE = 0.15
# processes that import while another one measures
AHEAD = 4
# seconds for one point
LONGEST = 200
# weights of 7 billion parameters are written and read in seconds there
MEMORY = Path("/dev/shm")
HEAD = (
    "| model | micro-batch | completion | with | estimate GiB | reserved GiB | allocated GiB | "
    "error |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Outcome:
    """What a GPU said: GiB reserved at most, or that it ran out of memory; anything else is an
    error of the run.
    """

    point: Point
    reserved_gib: float | None
    ran_out: bool = False
    error: str = ""
    allocated_gib: float | None = None

    def is_close(self) -> bool:
        """Whether the estimate is within the tolerance; of a run that ran out there is nothing to
        compare.
        """
        return (
            self.reserved_gib is None
            or abs(estimate_gib(self.point) / self.reserved_gib - 1) <= TOLERANCE
        )

    def was_called_safe(self, gpu_gib: float) -> bool:
        """Whether the estimator would have let a point start that ran out of memory: there must be
        none.
        """
        return self.ran_out and estimate_gib(self.point) + CONTEXT / GIB <= gpu_gib


def estimate_gib(point: Point) -> float:
    """What it needs, without CUDA's context, which torch does not count; without the generation of
    rollouts that are given.
    """
    memory = estimate(point.setting)
    # the model is known
    assert memory is not None
    return (
        max(
            size
            for phase, size in memory.phases.items()
            if point.generates or phase != "generation"
        )
        - CONTEXT
    ) / GIB


def grid(gpu_gib: float) -> list[Point]:
    """The points: each switch on its own and together, seven models, and some that this GPU just
    holds, or does not.
    """
    return sorted(
        {*_small(), *_medium(), *_large(), *_edge(gpu_gib)},
        key=lambda point: (point.model, estimate_gib(point)),
    )


def _small() -> Iterator[Point]:
    for checkpoints in (False, True):
        for lora in (False, True):
            for kl in (False, True):
                yield Point("qwen2.5-0.5b", 8, 256, checkpoints, lora, kl)
    for batch, completion in ((8, 1024), (16, 512), (32, 512), (64, 1024)):
        yield Point("qwen2.5-0.5b", batch, completion, batch * completion > 16_384, False, False)
    yield Point("qwen2.5-0.5b", 32, 256, True, True, False, generates=True)
    for batch in (16, 64, 128):
        yield Point("smollm2-135m", batch, 256, False, False, batch == 64)
    yield Point("smollm2-135m", 256, 128, True, True, False, generates=True)


def _medium() -> Iterator[Point]:
    for checkpoints, lora, kl in (
        (False, False, False),
        (True, False, True),
        (True, True, True),
        (False, True, False),
    ):
        yield Point("qwen2.5-1.5b", 8, 512, checkpoints, lora, kl)
        yield Point("qwen3-0.6b", 16, 256, checkpoints, lora, kl)
    yield Point("llama-3.2-1b", 8, 1024, True, False, False)


def _large() -> Iterator[Point]:
    yield Point("llama-3.2-3b", 8, 512, True, True, False)
    yield Point("qwen3-4b", 8, 512, True, True, True)
    yield Point("qwen2.5-7b", 8, 256, True, True, False)
    # full fine-tuning: 57 GiB before the first activation
    yield Point("qwen2.5-7b", 8, 512, True, False, False)


def _edge(gpu_gib: float) -> Iterator[Point]:
    """Micro-batches that the estimator puts around the GPU's memory: below nine tenths, and above
    it.
    """
    small, medium, large = "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-4b"
    full = (
        (small, False, 0.85),
        (small, False, 1.15),
        (medium, False, 0.85),
        (medium, False, 1.25),
    )
    for model, lora, share in (*full, (small, True, 1.4), (large, True, 1.15)):
        points = (Point(model, batch, 512, False, lora, False) for batch in range(8, 4096, 8))
        yield next(point for point in points if estimate_gib(point) >= share * gpu_gib)


class Worker:
    """A process that has imported everything and waits for its point."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "gpu_point.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, point: Point, weights: Path) -> Outcome:
        """What became of the point."""
        asked = json.dumps({"point": asdict(point), "weights": str(weights)})
        try:
            out, log = self._process.communicate(asked + "\n", timeout=LONGEST)
        except subprocess.TimeoutExpired:
            self.end()
            return Outcome(point, None, error=f"more than {LONGEST} seconds")
        return read_outcome(point, out, log)

    def end(self) -> None:
        """It is not needed."""
        self._process.kill()
        self._process.communicate()


def read_outcome(point: Point, out: str, log: str) -> Outcome:
    """What a process said in its last line; CUDA may also run out where Python cannot catch it."""
    lines = out.strip().splitlines()
    try:
        return Outcome(point, **json.loads(lines[-1]))
    except (IndexError, ValueError, TypeError):
        ran_out = "out of memory" in log.lower()
        return Outcome(
            point, None, ran_out, "" if ran_out else (log.strip().splitlines() or ["no output"])[-1]
        )


def run_points(points: list[Point], seconds: float) -> Iterator[Outcome]:
    """One after the other, as many as there is time for; one model's weights lie in memory or on
    the disk at a time.
    """
    end = time.monotonic() + seconds
    waiting, made_for = [Worker() for _ in range(AHEAD)], ""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        weights = Path(name)
        for point in points:
            if time.monotonic() + expected_seconds(point) > end:
                continue
            if point.model != made_for:
                shutil.rmtree(weights)
                weights.mkdir()
            made_for, worker = point.model, waiting.pop(0)
            waiting.append(Worker())
            yield worker.run(point, weights)
        for worker in waiting:
            worker.end()


def expected_seconds(point: Point) -> float:
    """Roughly: weights, two steps, and 30 ms a token of each rollout that is generated."""
    return 5 + (STEPS * point.completion * 0.03 if point.generates else 0)


def read_outcomes(path: Path, gpu: str) -> list[Outcome]:
    """What an earlier call has measured on such a GPU; errors are to be tried again."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [
        Outcome(
            Point(**line["point"]),
            line["reserved_gib"],
            line["ran_out"],
            allocated_gib=line.get("allocated_gib"),
        )
        for line in lines
        if line["gpu"] == gpu and not line["error"]
    ]


def _switches(point: Point) -> tuple[tuple[str, bool], ...]:
    return (
        ("checkpointing", point.checkpoints),
        ("LoRA", point.lora),
        ("KL", point.kl),
        ("generated", point.generates),
    )


def row(outcome: Outcome, gpu_gib: float) -> str:
    """One line of the table."""
    point, guess = outcome.point, estimate_gib(outcome.point)
    ways = ", ".join(name for name, on in _switches(point) if on)
    if outcome.error:
        seen = f"error: {outcome.error}"
    elif outcome.reserved_gib is None:
        seen = "out of memory" + (", CALLED SAFE" if outcome.was_called_safe(gpu_gib) else "")
    else:
        allocated = "" if outcome.allocated_gib is None else f"{outcome.allocated_gib:.2f}"
        seen = f"{outcome.reserved_gib:.2f} | {allocated} | {guess / outcome.reserved_gib - 1:+.1%}"
    return (
        f"| {point.model} | {point.batch} | {point.completion} | {ways or 'none'} | "
        f"{guess:.2f} | {seen} |"
    )


def compare(outcomes: list[Outcome], wanted: int, gpu: str, gpu_gib: float) -> int:
    """Print the comparison; 0 where every point was measured and every estimate holds."""
    print("\n".join((HEAD, *(row(outcome, gpu_gib) for outcome in outcomes))))
    measured = [outcome for outcome in outcomes if not outcome.error]
    ran_out = sum(outcome.ran_out for outcome in measured)
    kept = [outcome for outcome in measured if outcome.reserved_gib is not None]
    close, unsafe = (
        sum(outcome.is_close() for outcome in kept),
        sum(o.was_called_safe(gpu_gib) for o in measured),
    )
    print(
        f"\n{gpu}, {gpu_gib:.1f} GiB: {len(measured)} of {wanted} points measured; {close} of "
        f"{len(kept)} estimates within "
        f"{TOLERANCE:.0%}; {ran_out} ran out of memory, {unsafe} of them called safe"
    )
    return int(len(measured) < wanted or close < len(kept) or unsafe > 0)


def find_gpu() -> tuple[str, float] | None:
    """Its name and GiB, asked for in another process: CUDA's context would take memory from the
    points.
    """
    code = (
        "import torch; p = torch.cuda.get_device_properties(0); print(p.name); "
        "print(p.total_memory)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    name, size = done.stdout.strip().splitlines()[-2:]
    return name, int(size) / GIB


def main() -> int:
    """The whole grid, or the part of it that there is time for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--list", action="store_true", help="only the points and their estimates, for an H200"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop in time; the next call continues"
    )
    parser.add_argument(
        "--to", type=Path, default=HERE / "grid.jsonl", help="the lines, earlier calls' among them"
    )
    asked = parser.parse_args()
    if asked.list:
        points = grid(GPUS["H200"])
        print(
            "\n".join(
                (HEAD, *(row(Outcome(point, None, error="not run"), 0.0) for point in points))
            )
        )
        print(
            f"\n{len(points)} points, about {sum(map(expected_seconds, points)) / 60:.0f} minutes"
        )
        return 0
    found = find_gpu()
    if found is None:
        print("no GPU is visible: --list shows the points", file=sys.stderr)
        return 2
    gpu, gpu_gib = found
    points, outcomes = grid(gpu_gib), read_outcomes(asked.to, gpu)
    done = {outcome.point for outcome in outcomes}
    with asked.to.open("a") as file:
        for outcome in run_points([point for point in points if point not in done], asked.seconds):
            outcomes.append(outcome)
            line: dict[str, Any] = {
                "gpu": gpu,
                "estimate_gib": estimate_gib(outcome.point),
                **asdict(outcome),
            }
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(row(outcome, gpu_gib), file=sys.stderr, flush=True)
    return compare(outcomes, len(points), gpu, gpu_gib)


if __name__ == "__main__":
    sys.exit(main())
