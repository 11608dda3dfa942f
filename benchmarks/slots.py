"""How long slots stand idle: the sweep's own controller on a simulated clock, against the batch
barrier of hydra-optuna-sweeper.

16 slots, 160 trials whose lengths follow their settings (generations, iterations, completion
length: from a quarter of an hour to half a day) and vary by a quarter from trial to trial. Nothing
runs: a launcher on a clock of its own writes what attempts leave. The barrier starts 16 trials,
waits for the last of them, and starts the next 16; same points, same lengths.
"""

import argparse
import heapq
import io
import json
import random
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from grporecipe.errors import ExitCode
from grporecipe.files import append_line, write_json
from grposweep.launchers.base import End, Job, Launcher

SLOTS, TRIALS = 16, 160
SPACE = [
    "lr=1e-6,2e-6,4e-6,8e-6,1.6e-5",
    "batch.num_generations=4,8,16,32",
    "batch.num_iterations=1,2,4",
    "seed=0,1,2",
]
SHARED = [
    "trainer=fake",
    "batch=auto",
    "batch.prompts_per_step=8",
    "schedule.budget_completions=null",
    "schedule.max_steps=100",
]
# for one generation of one iteration; the standard deviation of a length's logarithm
MINUTES, VARIES = 3.75, 0.25


class Clock:
    """Simulated seconds since the epoch."""

    now = 1.8e9

    def __call__(self) -> float:
        return self.now


def length(point: dict[str, Any], identity: str) -> float:
    """Seconds that a trial takes: generating costs by completions, training by completions and
    their reuse.
    """
    generations, iterations = point["batch.num_generations"], point["batch.num_iterations"]
    noise = random.Random(identity).lognormvariate(0.0, VARIES)
    return float(60 * MINUTES * generations * (1 + iterations) / 2 * noise)


class Simulated(Launcher):
    """A place with many slots, where time is the clock's."""

    kind = "simulated"
    slots = SLOTS

    def __init__(self, clock: Clock) -> None:
        self.clock, self.ends, self.busy = clock, dict[str, float](), 0.0
        self.queue: list[float] = []

    def submit(self, job: Job) -> str:
        """What the attempt will leave, and when it ends."""
        point = json.loads((job.folder / "trial.json").read_text())["point"]
        seconds = length(point, repr(sorted(point.items())))
        name, end = job.folder.name, self.clock.now + seconds
        for event, at in (("start", self.clock.now), ("end", end)):
            append_line(
                job.folder / "runs.jsonl",
                {"event": event, "attempt": job.attempt, "time": at, "devices": 1},
            )
        result = {
            "status": "finished",
            "attempt": job.attempt,
            "objective": random.Random(name).random(),
            "step": 100,
        }
        write_json(job.folder / "result.json", {**result, "seconds": seconds, "failure": None})
        self.ends[name], self.busy = end, self.busy + seconds
        heapq.heappush(self.queue, end)
        return name

    def poll(self, job_id: str) -> End | None:
        """Whether its time has come."""
        return End(ExitCode.FINISHED) if self.ends[job_id] <= self.clock.now else None

    def cancel(self, job_id: str) -> None:
        """There is nothing to end."""

    def advance(self) -> None:
        """To the next end."""
        if self.queue:
            self.clock.now = max(self.clock.now, heapq.heappop(self.queue))


def sweep(sampler: str, here: Path) -> Simulated:
    """The whole command with this place behind it; the place, afterwards."""
    from grposweep.cli.composed import composer
    from grposweep.config.compose import open_session
    from grposweep.config.points import Points
    from grposweep.search.parse import parse_space, split_tokens
    from grposweep.sweep import run
    from grposweep.sweep import run as work
    from grposweep.sweep.validate import validate_sweep

    clock = Clock()
    place = Simulated(clock)
    run.build_launcher = lambda *_: place  # type: ignore[assignment,return-value]
    work.time = type(
        "Simulated", (), {"sleep": lambda _: place.advance(), "monotonic": clock, "time": clock}
    )  # type: ignore[assignment,misc]
    arguments = [
        *SHARED,
        *SPACE,
        f"outputs={here}",
        "name=s",
        f"search.sampler={sampler}",
        f"search.trials={TRIALS}",
    ]
    with open_session() as session:
        space, fixed = parse_space(list(split_tokens(arguments)), {}, session.loader)
        points = Points(composer(session.loader, "config"), fixed)
        run.run_sweep(validate_sweep(space, points, fixed), fixed, "s")
    return place


def barrier(lengths: list[float]) -> float:
    """The makespan where each batch waits for its longest trial, in seconds."""
    return sum(max(lengths[first : first + SLOTS]) for first in range(0, len(lengths), SLOTS))


def measure(sampler: str) -> None:
    """One row."""
    with tempfile.TemporaryDirectory() as scratch:
        began = Clock.now
        place = sweep(sampler, Path(scratch))
        makespan = max(place.ends.values()) - began
        trials = sorted((Path(scratch) / "s" / "trials").iterdir())
        points = [json.loads((trial / "trial.json").read_text())["point"] for trial in trials]
    lengths = [length(point, repr(sorted(point.items()))) for point in points]
    idle, waiting = (1 - sum(lengths) / (SLOTS * whole) for whole in (makespan, barrier(lengths)))
    print(
        f"| {sampler} | {len(lengths)} | {makespan / 3600:.1f} | {idle:.1%} | "
        f"{barrier(lengths) / 3600:.1f} | {waiting:.1%} | {barrier(lengths) / makespan:.2f} |",
        file=sys.__stdout__,
        flush=True,
    )


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samplers", nargs="+", default=["grid", "tpe", "random"])
    options = parser.parse_args()
    print("| sampler | trials | makespan, h | idle | with the barrier, h | idle | ratio |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for sampler in options.samplers:
        # what the sweeps themselves say
        with redirect_stdout(io.StringIO()):
            measure(sampler)


if __name__ == "__main__":
    main()
