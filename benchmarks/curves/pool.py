"""Recorded curves as something to search: the space that their points span, and what training at one of them showed."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from grposweep.errors import UserError
from grposweep.search.early_stopping import PlannedTraining
from grposweep.search.space import Choice, Interval, Label, Parameter, Point, Space, freeze

SIGNALS = ("train_reward", "kl", "entropy", "grad_norm", "zero_std", "truncated", "update_size")
WIDE = 8.0  # a positive dial over at least this ratio is searched on a logarithmic scale


@dataclass(frozen=True)
class Recorded:
    """One training as it was recorded; all lists have one entry per evaluation, or none."""

    completions: list[float]
    held_out: list[float]
    start: float | None
    seconds: float
    errors: list[float | None]
    signals: dict[str, list[float | None]]
    per_step: float = 1.0  # completions per optimizer step


@dataclass(frozen=True)
class NodeContext:
    """A recorded point with all its trainings, which differ in their seeds."""

    point: Point
    trainings: list[Recorded]

    @cached_property
    def truth(self) -> float:
        """What the point is worth: its final held-out reward, the mean over its seeds."""
        return fmean(training.held_out[-1] for training in self.trainings)


@dataclass
class Pool:
    """All recorded points of one task."""

    name: str
    places: list[NodeContext]
    space: Space = field(init=False)

    def __post_init__(self) -> None:
        self.space = span([place.point for place in self.places])

    @cached_property
    def best(self) -> float:
        """The worth of the best point."""
        return max(place.truth for place in self.places)

    @cached_property
    def tolerance(self) -> float:
        """One per cent of it."""
        return 0.01 * abs(self.best)

    @cached_property
    def error(self) -> float:
        """The standard error of a point's worth, as the best quarter of the points shows it."""
        best = sorted((p for p in self.places if len(p.trainings) > 1), key=lambda p: -p.truth)
        ends = [[training.held_out[-1] for training in place.trainings] for place in best[: len(best) // 4 + 1]]
        return math.sqrt(fmean([variance(values) / len(values) for values in ends])) if ends else 0.0

    @property
    def close(self) -> int:
        """How many points are that close to it."""
        return sum(place.truth >= self.best - self.tolerance for place in self.places)

    @cached_property
    def completions(self) -> float:
        """Of one training at every point."""
        return sum(fmean(training.completions[-1] for training in place.trainings) for place in self.places)

    @cached_property
    def seconds(self) -> float:
        """Likewise."""
        return sum(fmean(training.seconds for training in place.trainings) for place in self.places)

    @cached_property
    def _usual(self) -> PlannedTraining:
        trainings = [training for place in self.places for training in place.trainings]
        per_step = fmean(training.per_step for training in trainings)
        return PlannedTraining(0.0, per_step, 1.0, fmean(training.completions[-1] for training in trainings))

    def plan(self, point: Point) -> PlannedTraining:
        """What a sweep's plan would say of a point, as far as its parameters tell."""
        usual = self._usual
        sizes = [point.get(name) for name in ("num_generations", "prompts_per_step")]
        per_step = usual.completions_per_step
        if all(isinstance(size, int) for size in sizes):
            per_step = math.prod(sizes) / float(point.get("num_iterations") or 1)  # type: ignore[type-var]  # numbers
        return PlannedTraining(float(point.get("lr") or 0.0), per_step, float(sizes[0] or 1), usual.total)

    def regret(self, finished: Iterable[int]) -> float:
        """How far the best of these points is from the best of all; with none, the worst there is."""
        worst = min(place.truth for place in self.places)
        return self.best - max((self.places[index].truth for index in finished), default=worst)

    def nearest(self, point: Point, left: Sequence[int]) -> int:
        """Of the places left, the one nearest to a suggestion (dials on their own scales, each from 0 to 1)."""
        wanted = self._coordinates(point)
        distances = {i: math.dist(*_numbers(wanted, self._known[i])) for i in left}
        return min(left, key=distances.__getitem__)

    @cached_property
    def _known(self) -> list[list[float | Label]]:
        return [self._coordinates(place.point) for place in self.places]

    def _coordinates(self, point: Point) -> list[float | Label]:
        return [_coordinate(dial, point.get(dial.name)) for dial in self.space.parameters]


def _coordinate(dial: Parameter, label: Label) -> float | Label:
    domain = dial.domain
    if isinstance(domain, Choice):
        return str(label)
    value, low, high = float(label or 0), domain.low, domain.high
    if domain.log:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)


def _numbers(a: list[float | Label], b: list[float | Label]) -> tuple[list[float], list[float]]:
    """Two places as vectors; different labels are one apart."""
    ones = [float(x != y) if isinstance(x, str) else float(x or 0) for x, y in zip(a, b, strict=True)]
    return ones, [0.0 if isinstance(x, str) else float(x or 0) for x in b]


def span(points: Sequence[Point]) -> Space:
    """The space behind points: an interval for numbers, a choice for anything else; what never varies is no dial."""
    names = list(dict.fromkeys(name for point in points for name in point))
    return Space(tuple(dial for name in names if (dial := _dial(name, [point.get(name) for point in points]))))


def _dial(name: str, labels: list[Label]) -> Parameter | None:
    known = list({freeze({name: label}): label for label in labels}.values())
    numbers = [label for label in known if isinstance(label, int | float) and not isinstance(label, bool)]
    if len(known) < 2:
        return None
    if len(numbers) < len(known):
        return Parameter(name, Choice(tuple(known), tuple(known)))
    low, high = min(numbers), max(numbers)
    whole = all(isinstance(number, int) for number in numbers)
    return (
        Parameter(name, Interval(low, high, log=low > 0 and high / low >= WIDE, integer=whole)) if low < high else None
    )


def read_pool(path: Path) -> Pool:
    """The curves of one file. Raises UserError for what is none."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}). Name a file of recorded curves, one JSON object per line."
        ) from error
    places: dict[object, NodeContext] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            point, training = _read_line(f"{path}, line {number}", line)
            places.setdefault(freeze(point), NodeContext(point, [])).trainings.append(training)
    if len(places) < 2:
        raise UserError(f"{path}: {len(places)} recorded points; a search needs at least two. Record more of them.")
    return Pool(path.stem, list(places.values()))


def _read_line(where: str, line: str) -> tuple[Point, Recorded]:
    try:
        content = json.loads(line)
        held_out = content["held_out"]
        steps = content.get("steps") or list(range(1, len(held_out) + 1))
        per_step = float(content["completions_per_step"])
        if not held_out or len(steps) != len(held_out) or not dict(content["point"]) or per_step <= 0:
            raise ValueError("held_out and steps need one number an evaluation, point its dials")
        training = Recorded(
            completions=[step * per_step for step in steps],
            held_out=[_number(value) for value in held_out],
            start=None if content.get("start") is None else float(content["start"]),
            seconds=float(content.get("seconds") or 0.0),
            errors=list(content.get("held_out_se") or ()),
            signals={name: list(content[name]) for name in SIGNALS if content.get(name)},
            per_step=per_step,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{where}: this is no recorded curve ({type(error).__name__}: {error}). A line needs point, steps, held_out and "
            "completions_per_step, as benchmarks/curves/record.py writes them."
        ) from error
    return dict(content["point"]), training


def _number(value: Any) -> float:
    """A reward; what was not a number is as bad as none."""
    number = -math.inf if value is None else float(value)
    return number if math.isfinite(number) else -1e9
