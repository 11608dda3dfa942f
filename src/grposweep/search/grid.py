"""Validate all points of a grid.

It is counted without visiting each point. Every rule is evaluated on the combinations of just those parameters that its
fields depend on, and the results are broadcast over the whole grid as arrays. A million points cost about as much as the
largest of these combinations.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from grporecipe.errors import UserError
from grporecipe.rules.registry import Rule, choose
from grposweep.search.space import Choice, Label, Parameter, Point
from grposweep.search.validity import SpaceValidity, Validator

MOST_POINTS = 50_000_000  # one byte each
PROBES = (0.5, 0.0, 1.0)  # of a continuous parameter's way from low to high: the middle, both ends

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class _Absent:
    """The label of a conditional parameter that is not active."""


ABSENT = _Absent()


@dataclass(frozen=True)
class GridAxis:
    """One parameter as an axis of the grid; a conditional one has a place for being absent, a continuous one its probes."""

    parameter: Parameter
    labels: tuple[Any, ...]

    @property
    def is_probed(self) -> bool:
        """Return whether the labels are only samples of a continuous parameter."""
        return not isinstance(self.parameter.domain, Choice)


@dataclass
class GridValidity(SpaceValidity):
    """The validity of every combination of a space's finite parameters; valid if some probe of the continuous ones is."""

    validator: Validator
    axes: tuple[GridAxis, ...]
    exists: Flags  # which places of the grid are points at all: a parameter is absent exactly where its condition fails
    broken: dict[str, Flags] = field(default_factory=dict)  # by rule, broadcastable over the grid

    @property
    def total(self) -> int:
        """Return the number of combinations."""
        return int(self._over_probes(self.exists).sum())

    @property
    def valid(self) -> int:
        """Return how many of them are valid."""
        return int(self._over_probes(self._valid_places()).sum())

    def by_rule(self) -> dict[str, int]:
        """Return how many combinations each rule prunes by itself, most first."""
        spared = {code: self._over_probes(self.exists & ~flags) for code, flags in self.broken.items()}
        counts = {code: int((self._over_probes(self.exists) & ~flags).sum()) for code, flags in spared.items()}
        return dict(sorted(((code, n) for code, n in counts.items() if n), key=lambda item: -item[1]))

    def valid_points(self) -> Iterator[Point]:
        """Yield the valid combinations in the order of Hydra's grid, continuous parameters at their first valid probe."""
        yield from self._places(self._valid_places())

    def invalid_points(self, code: str | None = None) -> Iterator[Point]:
        """Yield invalid combinations (of one rule) in the same order, continuous parameters in the middle."""
        bad = self.exists & ~self._valid_places()
        if code is not None:
            bad = bad & self.broken[code]
        if self._probed:
            bad = bad & ~self._over_probes(self._valid_places(), keep=True)
        yield from self._places(bad)

    def valid_by_label(self) -> dict[str, dict[Label, tuple[int, int]]]:
        """Return for each finite parameter and label how many of its combinations are valid, of how many."""
        valid, counts = self._valid_places(), {}
        for index, axis in enumerate(self.axes):
            if axis.is_probed:
                continue
            others = tuple(i for i in range(len(self.axes)) if i != index)
            good = self._over_probes(valid, keep=True).sum(axis=others)
            whole = self._over_probes(self.exists, keep=True).sum(axis=others)
            counts[axis.parameter.name] = {
                label: (int(good[place]), int(whole[place]))
                for place, label in enumerate(axis.labels)
                if label is not ABSENT
            }
        return counts

    @property
    def _probed(self) -> tuple[int, ...]:
        return tuple(index for index, axis in enumerate(self.axes) if axis.is_probed)

    def _valid_places(self) -> Flags:
        bad = np.zeros_like(self.exists)
        for flags in self.broken.values():
            bad |= flags
        return self.exists & ~bad

    def _over_probes(self, flags: Flags, keep: bool = False) -> Flags:
        """Reduce the probes of continuous parameters: a combination counts if any of them does."""
        return np.asarray(flags.any(axis=self._probed, keepdims=keep)) if self._probed else flags

    def _places(self, flags: Flags) -> Iterator[Point]:
        """Yield the points at marked places, one for each finite combination."""
        seen: set[tuple[int, ...]] = set()
        finite = [index for index in range(len(self.axes)) if index not in self._probed]
        for place in np.argwhere(flags):
            key = tuple(int(place[index]) for index in finite)
            if self._probed and key in seen:
                continue
            seen.add(key)
            yield {
                axis.parameter.name: label
                for axis, index in zip(self.axes, place, strict=True)
                if (label := axis.labels[int(index)]) is not ABSENT
            }


def evaluate_grid(validator: Validator) -> GridValidity:
    """Validate a whole grid.

    Raises UserError for a space with more combinations than memory should hold.
    """
    axes = tuple(_axis(parameter) for parameter in validator.space.parameters)
    shape = tuple(len(axis.labels) for axis in axes)
    if prod(shape) > MOST_POINTS:
        raise UserError(
            f"the space has {prod(shape):,} combinations, more than the {MOST_POINTS:,} that can be judged at once. "
            f"Search some parameters as intervals, or fewer values of them."
        )
    grid = GridValidity(validator, axes, _exists(axes, shape))
    for parameters, rules in _rules_by_parameters(validator).items():
        for code, flags in _broken(validator, axes, parameters, rules).items():
            if flags.any():
                grid.broken[code] = flags
    return grid


def _axis(parameter: Parameter) -> GridAxis:
    if isinstance(parameter.domain, Choice):
        labels: tuple[Any, ...] = parameter.domain.labels
    else:
        labels = tuple(parameter.domain.at(share) for share in PROBES)
    return GridAxis(parameter, (*labels, ABSENT) if parameter.when else labels)


def _exists(axes: tuple[GridAxis, ...], shape: tuple[int, ...]) -> Flags:
    """Mark the places that are points: each conditional parameter is absent exactly when its condition fails."""
    exists = np.ones(shape, dtype=np.bool_)
    by_name = {axis.parameter.name: index for index, axis in enumerate(axes)}
    for index, axis in enumerate(axes):
        if not axis.parameter.when:
            continue
        active: Any = np.ones((1,) * len(axes), dtype=np.bool_)
        for name, labels in axis.parameter.when.items():
            other = by_name[name]
            active = active & _along([label in labels for label in axes[other].labels], other, len(axes))
        present = _along([label is not ABSENT for label in axis.labels], index, len(axes))
        exists &= present == active
    return exists


def _along(flags: list[bool], index: int, dimensions: int) -> Flags:
    """Return a vector as an array that broadcasts along one axis."""
    return np.array(flags, dtype=np.bool_).reshape([-1 if i == index else 1 for i in range(dimensions)])


def _rules_by_parameters(validator: Validator) -> dict[frozenset[str], list[Rule]]:
    """Return the rules that can prune, by the parameters that their fields depend on."""
    needs = {
        rule: frozenset().union(*(validator.fields.parameters(name) for name in rule.reads))
        for rule in choose(validator.ignore, (), validator.fields.framework)
        if rule.severity == "error" and not rule.reads & validator.fields.unknown
    }
    rules_of: dict[frozenset[str], list[Rule]] = {}
    for rule, parameters in sorted(needs.items(), key=lambda item: -len(item[1])):
        # Making a setting costs more than judging it: a rule joins another that reads all its parameters and more.
        rules_of.setdefault(next((known for known in rules_of if parameters <= known), parameters), []).append(rule)
    return rules_of


def _broken(
    validator: Validator, axes: tuple[GridAxis, ...], parameters: frozenset[str], rules: list[Rule]
) -> dict[str, Flags]:
    """Return the combinations of these parameters that break each of these rules."""
    shape = tuple(len(axis.labels) if axis.parameter.name in parameters else 1 for axis in axes)
    flags = {rule.code: np.zeros(shape, dtype=np.bool_) for rule in rules}
    labels = [axis.labels if axis.parameter.name in parameters else (ABSENT,) for axis in axes]
    judges = [(rule.find, flags[rule.code]) for rule in rules]
    for place in product(*(range(size) for size in shape)):
        point = {
            axis.parameter.name: label
            for axis, names, index in zip(axes, labels, place, strict=True)
            if (label := names[index]) is not ABSENT
        }
        setting = validator.fields.setting(point)
        for breaks, broken in judges:
            if breaks(setting):
                broken[place] = True
    return flags
