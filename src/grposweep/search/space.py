"""What a sweep searches: parameters with their values, and the points that they span. No Hydra, no
Optuna.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from random import Random
from typing import Any, Literal

from grporecipe.files import only

Label = str | int | float | bool | None
Direction = Literal["maximize", "minimize"]
# parameter -> label, active parameters only
Point = dict[str, Label]


@dataclass(frozen=True)
class Choice:
    """A finite parameter. ``labels`` name the values in tables and studies; ``values`` are what the
    configuration gets.
    """

    labels: tuple[Label, ...]
    values: tuple[Any, ...]

    def value(self, label: Label) -> Any:
        """Return the configuration's value behind a label (1, 1.0 and True are different
        labels).
        """
        for choice, value in zip(self.labels, self.values, strict=True):
            if choice == label and type(choice) is type(label):
                return value
        return self.values[self.labels.index(label)]


@dataclass(frozen=True)
class Interval:
    """A continuous or integer parameter over [low, high]; ``log`` searches its logarithm."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def at(self, share: float) -> float | int:
        """Return the value at a share of the way from low to high, on the parameter's own scale."""
        value = (
            self.low * (self.high / self.low) ** share
            if self.log
            else self.low + (self.high - self.low) * share
        )
        return round(value) if self.integer else value


@dataclass(frozen=True)
class Parameter:
    """One searched key; ``when`` maps other parameters to the labels under which it is active."""

    name: str
    domain: Choice | Interval
    when: Mapping[str, tuple[Label, ...]] = field(default_factory=dict)

    def is_active(self, point: Point) -> bool:
        """Return whether the parameter is active, given the point so far."""
        return not self.when or all(
            name in point and point[name] in labels for name, labels in self.when.items()
        )

    def describe(self) -> dict[str, Any]:
        """Return the parameter as ``sweep.yaml`` and the sweep's identity hold it."""
        domain = self.domain
        content: dict[str, Any] = {"parameter": self.name}
        if isinstance(domain, Choice):
            content["choices"] = list(domain.labels)
        else:
            content |= {"low": domain.low, "high": domain.high}
            if domain.log:
                content["log"] = True
            if domain.integer:
                content["integer"] = True
        if self.when:
            content["when"] = {name: list(labels) for name, labels in self.when.items()}
        return content


@dataclass(frozen=True)
class Space:
    """All parameters: unconditional ones first, each conditional one after those that it depends
    on.
    """

    parameters: tuple[Parameter, ...] = ()
    # all points, if they are listed; empty if the parameters span them
    points: tuple[Point, ...] = ()

    @cached_property
    def names(self) -> list[str]:
        """Return the names of all parameters."""
        return [parameter.name for parameter in self.parameters]

    @cached_property
    def is_finite(self) -> bool:
        """Return whether every parameter has a list of values."""
        return all(isinstance(parameter.domain, Choice) for parameter in self.parameters)

    @cached_property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of every parameter that has a list of them, by name."""
        return {p.name: p.domain.values for p in self.parameters if isinstance(p.domain, Choice)}

    def finite_points(self) -> Iterator[Point]:
        """Yield every assignment of the finite parameters in the order of Hydra's own grid (the
        last one changes fastest).
        """
        yield from self.points or self.assignments(self.choices)

    def assignments(self, names: Container[str]) -> Iterator[Point]:
        """Yield every assignment of the finite parameters among these."""
        return self.combinations(
            lambda p: p.domain.labels if p.name in names and isinstance(p.domain, Choice) else None
        )

    @cached_property
    def size(self) -> int:
        """Return the number of assignments of the finite parameters. Only labels that others depend
        on are tried one by one.
        """
        if self.points:
            return len(self.points)
        asked = set().union(*[parameter.when for parameter in self.parameters])
        free = [p for p in self.parameters if p.name in self.choices and p.name not in asked]
        size = 0
        for point in self.assignments(asked):
            size += prod(len(self.choices[p.name]) for p in free if p.is_active(point))
        return size

    def weight(self, point: Point) -> int:
        """Return the inverse of the probability with which the finite part of a point is drawn."""
        return prod(len(self.choices[name]) for name in point if name in self.choices)

    def combinations(
        self, labels_of: Callable[[Parameter], Sequence[Label] | None]
    ) -> Iterator[Point]:
        """Yield every assignment of these labels to the active parameters; a parameter without
        labels (None) is left out.
        """
        points = iter([Point()])
        for parameter in self.parameters:
            labels = labels_of(parameter)
            if labels is not None:
                points = _extend(points, parameter, labels)
        return points

    def draw(self, random: Random) -> Point:
        """Return a random point."""
        point: Point = {}
        for parameter in self.parameters:
            if parameter.is_active(point):
                domain = parameter.domain
                if isinstance(domain, Choice):
                    point[parameter.name] = random.choice(domain.labels)
                else:
                    point[parameter.name] = domain.at(random.random())
        return point

    def finite_part(self, point: Point) -> Point:
        """Return the point without its continuous parameters."""
        return only(point, self.choices)

    def values(self, point: Point) -> dict[str, Any]:
        """Return the configuration values behind a point's labels."""
        domains = {parameter.name: parameter.domain for parameter in self.parameters}
        values: dict[str, Any] = {}
        for name, label in point.items():
            domain = domains[name]
            values[name] = domain.value(label) if isinstance(domain, Choice) else label
        return values

    def describe(self) -> list[dict[str, Any]]:
        """Return the space as ``sweep.yaml`` holds it."""
        return [parameter.describe() for parameter in self.parameters]

    def identity(self) -> list[dict[str, Any]]:
        """Return the space as the sweep's identity holds it: of listed points the keys, so that a
        longer list extends a sweep.
        """
        if self.points:
            return [{"parameter": p.name, "listed": True} for p in self.parameters]
        return self.describe()


def _extend(
    points: Iterable[Point], parameter: Parameter, labels: Sequence[Label]
) -> Iterator[Point]:
    """Yield each point with each label of a parameter, which may be inactive there."""
    for point in points:
        if not parameter.is_active(point):
            yield point
            continue
        for label in labels:
            yield {**point, parameter.name: label}


def read_space(description: Iterable[Mapping[str, Any]]) -> Space:
    """Return the space behind ``Space.describe``; labels stand for themselves, since the values are
    not recorded.

    Raises KeyError or TypeError for a malformed description.
    """
    return Space(tuple(map(_read_parameter, description)))


def _read_parameter(content: Mapping[str, Any]) -> Parameter:
    if "choices" in content:
        labels = tuple(content["choices"])
        domain: Choice | Interval = Choice(labels, labels)
    else:
        domain = Interval(
            content["low"], content["high"], bool(content.get("log")), bool(content.get("integer"))
        )
    return Parameter(
        content["parameter"],
        domain,
        {name: tuple(labels) for name, labels in content.get("when", {}).items()},
    )


def freeze(point: Point) -> tuple[tuple[str, str, Label], ...]:
    """Return a point as a hashable key, in which 1, 1.0 and True differ."""
    return tuple(sorted((name, type(label).__name__, label) for name, label in point.items()))


def build_space(parameters: list[Parameter]) -> Space:
    """Return a space of parameters given in any order.

    Raises ValueError if a condition names an unknown parameter, or if conditions form a cycle.
    """
    done: list[Parameter] = []
    waiting = list(parameters)
    while waiting:
        names = {parameter.name for parameter in done}
        ready = [parameter for parameter in waiting if set(parameter.when) <= names]
        if not ready:
            parameter = waiting[0]
            raise ValueError(
                f"{parameter.name} waits for {', '.join(parameter.when)}, which the space does "
                "not search before it"
            )
        done += ready
        waiting = [parameter for parameter in waiting if parameter not in ready]
    return Space(tuple(done))
