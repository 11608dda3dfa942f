"""The files of a running attempt (metrics.jsonl, heartbeat, control.json), its objectives, and its
rollout schedule.

Rank 0 writes the files, whichever trainer runs. No torch here.
"""

import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

from grporecipe.errors import UnknownMetricError
from grporecipe.files import Json, append_line, as_number, no_link, read_lines, without
from grporecipe.model.planning import (
    completions_per_rollout,
    micro_steps_per_generation,
    rollouts_per_epoch,
    steps_per_epoch,
)
from grporecipe.model.setting import Setting
from grposweep.schema import Search, sign_of
from grposweep.storage import paths
from grposweep.storage.completions import rewind_lines
from grposweep.storage.provenance import TIMES
from grposweep.storage.records import ControlRequest


def finite_scalars(values: Json) -> Json:
    """Return the values for strict JSON: NaN and infinities become null."""
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()
    }


@dataclass
class MetricsFile:
    """metrics.jsonl of one trial, as one attempt writes it."""

    folder: Path
    attempt: int

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / paths.METRICS

    def write(self, kind: str, step: int, completions: int | None, values: Json) -> Json:
        """Append one line; ``completions`` are the training completions generated so far (None:
        unknown).
        """
        head = {
            "attempt": self.attempt,
            "step": step,
            "completions": completions,
            "kind": kind,
            "time": time.time(),
        }
        line = {**head, **without(finite_scalars(values), head)}
        append_line(self.path, line)
        return line

    def rewind(self, step: int | None) -> None:
        """Drop what lies after a checkpoint's step (all of it for None): these steps are about to
        happen again.
        """
        rewind_lines(self.path, step)

    def lines(self) -> list[Json]:
        """Return all lines, including those of earlier attempts."""
        return list(read_lines(self.path, step=int))


@dataclass
class HeartbeatFile:
    """A file that changes while an attempt lives. Its counter shows life, not a clock."""

    folder: Path
    total: int
    # of those that may beat at once
    writer: str = "attempt"
    counter: int = 0
    best: float | None = None
    written: float = field(default=-math.inf)

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / paths.HEARTBEAT

    def beat(self, step: int, force: bool = False) -> None:
        """Count; write at most once a second."""
        self.counter += 1
        if not force and time.monotonic() - self.written < 1.0:
            return
        best = {} if self.best is None else {"best": self.best}
        # Rename without fsync: a heartbeat lost with the machine is no loss. Each writer has a
        # draft of its own: a program's watcher and the callback inside it both beat at the start,
        # and one would rename the other's draft away.
        draft = self.path.with_name(f".{self.path.name}.{self.writer}.new")
        with open(draft, "wb", opener=no_link) as file:
            file.write(
                json.dumps(
                    {"step": step, "total": self.total, "counter": self.counter, **best}
                ).encode()
            )
        draft.replace(self.path)
        self.written = time.monotonic()


@dataclass
class ControlFile:
    """The controller's request to a running attempt; read again only when control.json has
    changed.
    """

    folder: Path
    seen: tuple[int, int] | None = None
    request: ControlRequest = field(default_factory=ControlRequest)

    def asks_to_stop(self, step: int) -> bool:
        """Return whether the request is to end at this step."""
        self._refresh()
        return self.request.stops_at(step)

    def _refresh(self) -> None:
        try:
            stat = (self.folder / paths.CONTROL).stat()
            # The inode as well as the time: two writes within a clock tick are renames of two
            # files.
            if (stat.st_mtime_ns, stat.st_ino) != self.seen:
                self.request = ControlRequest.read(self.folder)
                self.seen = (stat.st_mtime_ns, stat.st_ino)
        except FileNotFoundError:
            self.request = ControlRequest()
            self.seen = None


@dataclass(frozen=True)
class Objective:
    """The objective of a trial: the mean of a metric over its last evaluations, and its value
    before training.
    """

    objective: float | None
    objective_se: float | None
    start: float | None
    start_se: float | None
    # search.at=best: the step that the objective is of,
    best_step: int | None = None
    # and what was subtracted from the best value (None: its noise is not known)
    optimism: float | None = None
    # of eval_reward, the optimizer steps of the evaluations that count
    evaluated: Sequence[int] = ()

    def as_dict(self) -> dict[str, float | None]:
        """Return the known fields under the names of result.json."""
        shown = without(vars(self), ("evaluated",))
        return {
            n: value
            for n, value in shown.items()
            if value is not None or n not in ("best_step", "optimism")
        }


def find_objective(lines: list[Json], search: Search, metric: str | None = None) -> Objective:
    """Return the objective of these lines. They are read from disk, so a resumed attempt includes
    its past.

    The standard error is the mean of the evaluations' own: an upper bound, since they share their
    prompts.
    """
    metric = metric or str(search.metric)
    marked = [line for line in lines if metric in line]
    first = marked[0] if marked and marked[0]["step"] == 0 else {}
    start = as_number(first.get(metric))
    start_error = as_number(first.get(f"{metric}_se"))
    recent = marked[-search.last :]
    best = None
    if search.at == "best" and (best := find_best(marked, search, metric)) is not None:
        recent = best.lines
    value = _mean([line[metric] for line in recent])
    error = _mean([line.get(f"{metric}_se") for line in recent])
    steps = [line["step"] for line in recent]
    by_prompt = steps if metric == "eval_reward" else ()
    if best is None or value is None:
        return Objective(value, error, start, start_error, evaluated=by_prompt)
    unbiased = value - (best.optimism or 0.0) * sign_of(search.direction)
    return Objective(unbiased, error, start, start_error, steps[-1], best.optimism, by_prompt)


@dataclass(frozen=True)
class BestEvaluations:
    """The evaluations of the best mean, and how much of that mean is the noise that made it the
    best (None: unknown).
    """

    lines: list[Json]
    optimism: float | None


def find_best(marked: list[Json], search: Search, metric: str) -> BestEvaluations | None:
    """Return the best mean of ``search.last`` successive evaluations of a trained model; None
    without one.

    ``marked`` are the lines that have the metric; the one before training is no result of it.
    """
    evaluated = [
        line for line in marked if line["step"] > 0 and as_number(line[metric]) is not None
    ]
    last = min(search.last, len(evaluated))
    if not evaluated:
        return None
    sign = sign_of(search.direction)
    values = [sign * float(line[metric]) for line in evaluated]
    means = _windows(values, last)
    first = means.index(max(means))
    noise = [as_number(line.get(f"{metric}_noise")) for line in evaluated]
    errors = [error for error in noise if error is not None]
    gain = optimism(values, errors, last) if len(errors) == len(evaluated) else None
    return BestEvaluations(evaluated[first : first + last], gain)


DRAWS = 1_000


def optimism(values: list[float], errors: list[float], last: int = 1) -> float:
    """Return the expected excess of the largest of noisy means over its true value (never
    negative).

    A parametric bootstrap. The values scatter more than what they measure, so they are first drawn
    together by the share of their variance that noise explains. ``errors`` are the standard errors
    of the values; their noise must be independent.
    """
    middle = sum(values) / len(values)
    spread = sum((value - middle) ** 2 for value in values) / max(len(values) - 1, 1)
    noise = sum(error**2 for error in errors) / len(errors)
    share = math.sqrt(max(1 - noise / spread, 0.0)) if spread else 0.0
    truth = [middle + share * (value - middle) for value in values]
    means, chance, gained = _windows(truth, last), random.Random(0), 0.0
    for _ in range(DRAWS):
        drawn = _windows(
            [value + chance.gauss(0, error) for value, error in zip(truth, errors, strict=True)],
            last,
        )
        index = max(range(len(drawn)), key=drawn.__getitem__)
        gained += drawn[index] - means[index]
    return max(gained / DRAWS, 0.0) if len(means) > 1 else 0.0


def _windows(values: list[float], last: int) -> list[float]:
    """Return the means of so many successive values."""
    return [sum(values[at : at + last]) / last for at in range(len(values) - last + 1)]


def check_objective(lines: list[Json], metric: str, objective: Objective) -> None:
    """Raise an error with the reason if a finished trial has no objective."""
    if objective.objective is not None:
        return
    if any(metric in line for line in lines):
        raise FloatingPointError(
            f"{metric} was not a number in the last evaluation: the training diverged."
        )
    reported = chain.from_iterable(line.items() for line in lines)
    names = sorted({name for name, value in reported if isinstance(value, float)} - set(TIMES))
    if near := get_close_matches(metric, names, n=3, cutoff=0.7):
        raise UnknownMetricError(
            f"search.metric={metric}, but no evaluation reported it. Did you mean "
            f"{' or '.join(near)}? Set search.metric={near[0]}."
        )
    if not names:
        raise UnknownMetricError(
            f"search.metric={metric}, but this trial reported no metric. Those of a script are "
            "read from the trainer_state.json of its checkpoints: set save_strategy: steps in its "
            "recipe, or give it grposweep's Callback."
        )
    raise UnknownMetricError(
        f"search.metric={metric}, but no evaluation reported it: this trial's metrics are "
        f"{', '.join(names)}. Set search.metric to one of them (and schedule.evaluations above 0 "
        "for those that begin with eval_)."
    )


def _mean(values: list[Any]) -> float | None:
    numbers = [number for number in map(as_number, values) if number is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(values) else None


@dataclass(frozen=True)
class RolloutSchedule:
    """Steps are optimizer steps, counted from the start of the trial.

    An epoch ends with a whole rollout, but its last step may be short; so rollouts are counted from
    the epoch's start, not from the trial's.
    """

    # micro-steps per optimizer step
    accumulation: int
    # micro-steps per rollout, with its reuse
    micro_steps: int
    # a rollout
    completions: int
    # None: unknown, one endless epoch
    epoch_steps: int | None
    epoch_rollouts: int

    def is_boundary(self, step: int) -> bool:
        """Return whether TRL generates again after this step. Only here its resume is exact."""
        return self._in_epoch(step) * self.accumulation % self.micro_steps == 0

    def completions_at(self, step: int) -> int:
        """Completions generated by the end of this step."""
        rollouts = ceil(self._in_epoch(step) * self.accumulation / self.micro_steps)
        return (self.epochs_at(step) * self.epoch_rollouts + rollouts) * self.completions

    def epochs_at(self, step: int) -> int:
        """Whole epochs behind this step."""
        return step // self.epoch_steps if self.epoch_steps else 0

    def _in_epoch(self, step: int) -> int:
        return step % self.epoch_steps if self.epoch_steps else step


def build_rollout_schedule(setting: Setting) -> RolloutSchedule:
    """Return the rollout schedule of a valid setting with solved sizes."""
    return RolloutSchedule(
        accumulation=setting.gradient_accumulation_steps,
        micro_steps=micro_steps_per_generation(setting) * setting.num_iterations,
        completions=completions_per_rollout(setting) or 0,
        epoch_steps=steps_per_epoch(setting),
        epoch_rollouts=rollouts_per_epoch(setting) or 0,
    )
