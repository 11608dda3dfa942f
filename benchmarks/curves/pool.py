"""Recorded curves as something to search: the space that their points span, and what training at
one of them showed.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from grporecipe.errors import UserError
from grposweep.search.space import Choice, Interval, Label, Parameter, Point, Space, freeze

SIGNALS = ("train_reward", "kl", "entropy", "grad_norm", "zero_std", "truncated", "update_size")
# a positive dial over at least this ratio is searched on a logarithmic scale
WIDE = 8.0


@dataclass(frozen=True)
class Recorded:
    """One training as it was recorded; all lists have one entry per evaluation, or none."""

    completions: list[float]
    held_out: list[float]
    start: float | None
    seconds: float
    errors: list[float | None]
    signals: dict[str, list[float | None]]


@dataclass(frozen=True)
class Place:
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
    places: list[Place]
    space: Space = field(init=False)

    def __post_init__(self) -> None:
        self.space = span([place.point for place in self.places])

    @cached_property
    def best(self) -> float:
        """The worth of the best point."""
        return max(place.truth for place in self.places)

    @cached_property
    def tolerance(self) -> float:
        """One per cent of the best point's worth."""
        return 0.01 * abs(self.best)

    @property
    def close(self) -> int:
        """How many points are within the tolerance of the best one."""
        return sum(place.truth >= self.best - self.tolerance for place in self.places)

    def nearest(self, point: Point, left: Sequence[int]) -> int:
        """Of the places left, the one nearest to a suggestion (dials on their own scales, each from
        0 to 1).
        """
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
    ones = [
        float(x != y) if isinstance(x, str) else float(x or 0) for x, y in zip(a, b, strict=True)
    ]
    return ones, [0.0 if isinstance(x, str) else float(x or 0) for x in b]


def span(points: Sequence[Point]) -> Space:
    """The space behind points: an interval for numbers, a choice for anything else; what never
    varies is no dial.
    """
    names = list(dict.fromkeys(name for point in points for name in point))
    return Space(
        tuple(
            dial for name in names if (dial := _dial(name, [point.get(name) for point in points]))
        )
    )


def _dial(name: str, labels: list[Label]) -> Parameter | None:
    known = list({freeze({name: label}): label for label in labels}.values())
    numbers = [
        label for label in known if isinstance(label, int | float) and not isinstance(label, bool)
    ]
    if len(known) < 2:
        return None
    if len(numbers) < len(known):
        return Parameter(name, Choice(tuple(known), tuple(known)))
    low, high = min(numbers), max(numbers)
    whole = all(isinstance(number, int) for number in numbers)
    return (
        Parameter(name, Interval(low, high, log=low > 0 and high / low >= WIDE, integer=whole))
        if low < high
        else None
    )


def read_pool(path: Path) -> Pool:
    """The curves of one file. Raises UserError for what is none."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({error}). Name a file of recorded curves, one JSON object "
            "per line."
        ) from error
    places: dict[object, Place] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            point, training = _read_line(f"{path}, line {number}", line)
            places.setdefault(freeze(point), Place(point, [])).trainings.append(training)
    if len(places) < 2:
        raise UserError(
            f"{path}: {len(places)} recorded points; a search needs at least two. Record more "
            "of them."
        )
    return Pool(path.stem, list(places.values()))


def _read_line(where: str, line: str) -> tuple[Point, Recorded]:
    try:
        content = json.loads(line)
        held_out = content["held_out"]
        steps = content.get("steps") or list(range(1, len(held_out) + 1))
        per_step = float(content["completions_per_step"])
        if (
            not held_out
            or len(steps) != len(held_out)
            or not dict(content["point"])
            or per_step <= 0
        ):
            raise ValueError("held_out and steps need one number an evaluation, point its dials")
        training = Recorded(
            completions=[step * per_step for step in steps],
            held_out=[_number(value) for value in held_out],
            start=None if content.get("start") is None else float(content["start"]),
            seconds=float(content.get("seconds") or 0.0),
            errors=list(content.get("held_out_se") or ()),
            signals={name: list(content[name]) for name in SIGNALS if content.get(name)},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{where}: this is no recorded curve ({type(error).__name__}: {error}). A line "
            "needs point, steps, held_out and "
            "completions_per_step, as benchmarks/curves/record.py writes them."
        ) from error
    return dict(content["point"]), training


def _number(value: Any) -> float:
    """A reward; what was not a number is as bad as none."""
    number = -math.inf if value is None else float(value)
    return number if math.isfinite(number) else -1e9
