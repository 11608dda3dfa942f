"""What a sweep searches: dials with their values, and the points they span. No Hydra, no Optuna."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Label = str | int | float | bool | None
Point = dict[str, Label]  # dial -> value, active dials only


@dataclass(frozen=True)
class Choice:
    """A finite dial. ``labels`` name the values in tables and studies; ``values`` are what the configuration gets."""

    labels: tuple[Label, ...]
    values: tuple[Any, ...]

    def value(self, label: Label) -> Any:
        """The configuration's value behind a label (1 and 1.0 and True are different labels)."""
        for known, value in zip(self.labels, self.values, strict=True):
            if known == label and type(known) is type(label):
                return value
        return self.values[self.labels.index(label)]


@dataclass(frozen=True)
class Interval:
    """A continuous or integer dial over [low, high]; ``log`` searches its logarithm."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def at(self, share: float) -> float | int:
        """The value at a share of the way from low to high, on the dial's own scale."""
        value = self.low * (self.high / self.low) ** share if self.log else self.low + (self.high - self.low) * share
        return round(value) if self.integer else value


@dataclass(frozen=True)
class Parameter:
    """One searched key; ``when`` maps other dials to the labels under which it is asked at all."""

    name: str
    domain: Choice | Interval
    when: Mapping[str, tuple[Label, ...]] = field(default_factory=dict)

    def is_active(self, point: Point) -> bool:
        """Whether the point so far asks this dial."""
        return all(name in point and point[name] in labels for name, labels in self.when.items())

    def describe(self) -> dict[str, Any]:
        """The dial as ``sweep.yaml`` and the sweep's identity hold it."""
        if isinstance(self.domain, Choice):
            content: dict[str, Any] = {"dial": self.name, "choices": list(self.domain.labels)}
        else:
            domain = self.domain
            content = {"dial": self.name, "low": domain.low, "high": domain.high}
            content |= {"log": True} if domain.log else {}
            content |= {"integer": True} if domain.integer else {}
        return content | ({"when": {name: list(labels) for name, labels in self.when.items()}} if self.when else {})


@dataclass(frozen=True)
class Space:
    """All dials, unconditional ones first, each conditional one after those it depends on."""

    dials: tuple[Parameter, ...] = ()

    @cached_property
    def is_finite(self) -> bool:
        """Whether every dial has a list of values."""
        return all(isinstance(dial.domain, Choice) for dial in self.dials)

    def finite_points(self) -> Iterator[Point]:
        """Every assignment of the finite dials, in the order of Hydra's own grid (the last dial moves fastest)."""
        yield from self._extend({}, 0)

    def _extend(self, point: Point, index: int) -> Iterator[Point]:
        if index == len(self.dials):
            yield dict(point)
            return
        dial = self.dials[index]
        if isinstance(dial.domain, Interval) or not dial.is_active(point):
            yield from self._extend(point, index + 1)
            return
        for label in dial.domain.labels:
            yield from self._extend(point | {dial.name: label}, index + 1)

    def finite_part(self, point: Point) -> Point:
        """The point without its continuous dials: what the grid of finite dials judged."""
        finite = {dial.name for dial in self.dials if isinstance(dial.domain, Choice)}
        return {name: label for name, label in point.items() if name in finite}

    def values(self, point: Point) -> dict[str, Any]:
        """The configuration values behind a point's labels."""
        domains = {dial.name: dial.domain for dial in self.dials}
        return {
            name: domain.value(label) if isinstance(domain := domains[name], Choice) else label
            for name, label in point.items()
        }

    def describe(self) -> list[dict[str, Any]]:
        """The space as ``sweep.yaml`` and the sweep's identity hold it."""
        return [dial.describe() for dial in self.dials]


def read_space(description: Iterable[Mapping[str, Any]]) -> Space:
    """The space behind ``Space.describe``: its labels stand for themselves, since the values behind them are not told.

    Raises KeyError or TypeError for what is no description.
    """
    return Space(tuple(_read_dial(content) for content in description))


def _read_dial(content: Mapping[str, Any]) -> Parameter:
    if "choices" in content:
        labels = tuple(content["choices"])
        domain: Choice | Interval = Choice(labels, labels)
    else:
        domain = Interval(content["low"], content["high"], bool(content.get("log")), bool(content.get("integer")))
    return Parameter(content["dial"], domain, {name: tuple(labels) for name, labels in content.get("when", {}).items()})


def freeze(point: Point) -> tuple[tuple[str, str, Label], ...]:
    """A point as a key of sets and dictionaries, in which 1, 1.0 and True stay apart."""
    return tuple(sorted((name, type(label).__name__, label) for name, label in point.items()))


def build_space(dials: list[Parameter]) -> Space:
    """A space from dials in any order.

    Raises ValueError where a condition names a dial that is not there, or conditions form a circle.
    """
    done: list[Parameter] = []
    waiting = list(dials)
    while waiting:
        names = {dial.name for dial in done}
        ready = [dial for dial in waiting if set(dial.when) <= names]
        if not ready:
            dial = waiting[0]
            raise ValueError(f"{dial.name} waits for {', '.join(dial.when)}, which the space does not search before it")
        done += ready
        waiting = [dial for dial in waiting if dial not in ready]
    return Space(tuple(done))
