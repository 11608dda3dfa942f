"""Counting a finite space's valid and invalid points without visiting each: per rule, over the dials that it reads.

Every rule is judged on the combinations of just those dials that its fields depend on; the verdicts are then spread over
the whole grid as arrays. A million points cost about as much as the largest of these combinations.

One factor at a time: the base configuration, then every value of every dial with all others left as they are.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from grposweep.check import errors
from grposweep.errors import UserError
from grposweep.fixes import render_problem
from grposweep.rules.registry import Rule, choose
from grposweep.search.space import Choice, Label, Parameter, Point, Space
from grposweep.search.validity import Judge, Verdict

MOST_POINTS = 50_000_000  # one byte each
PROBES = 3  # values tried of a continuous dial: the middle, both ends

Flags = np.ndarray[Any, np.dtype[np.bool_]]


class _Absent:
    """The label of a conditional dial that is not asked."""


ABSENT = _Absent()


@dataclass(frozen=True)
class GridAxis:
    """One dial as an axis of the grid; a conditional one has a place for not being asked, a continuous one its probes."""

    dial: Parameter
    labels: tuple[Any, ...]

    @property
    def is_probed(self) -> bool:
        """Whether the labels are only samples of a continuous dial."""
        return not isinstance(self.dial.domain, Choice)


@dataclass
class GridValidity:
    """The verdict on every combination of a space's finite dials; valid where some probe of the continuous ones is."""

    judge: Judge
    axes: tuple[GridAxis, ...]
    exists: Flags  # which places of the grid are points at all: a dial is absent exactly where its condition fails
    broken: dict[str, Flags] = field(default_factory=dict)  # by rule, broadcastable over the grid

    @property
    def total(self) -> int:
        """How many combinations there are."""
        return int(self._over_probes(self.exists).sum())

    @property
    def invalid(self) -> int:
        """How many of them no probe makes valid."""
        return self.total - self.valid

    @property
    def valid(self) -> int:
        """How many of them are valid."""
        return int(self._over_probes(self._valid_places()).sum())

    def by_rule(self) -> dict[str, int]:
        """How many combinations each rule prunes by itself, most first."""
        counts = {code: self._pruned_by(code) for code in self.broken}
        return dict(sorted(((code, n) for code, n in counts.items() if n), key=lambda item: -item[1]))

    def valid_points(self) -> Iterator[Point]:
        """The valid combinations in the order of Hydra's grid, continuous dials at their first valid probe."""
        yield from self._places(self._valid_places())

    def invalid_points(self, code: str | None = None) -> Iterator[Point]:
        """Invalid combinations (of one rule), in the same order; continuous dials in the middle."""
        bad = self.exists & ~self._valid_places()
        if code is not None:
            bad = bad & self.broken[code]
        if self._probed:
            bad = bad & ~self._over_probes(self._valid_places(), keep=True)
        yield from self._places(bad)

    def first(self, code: str) -> Verdict:
        """The first combination that a rule prunes."""
        return self.judge.verdict(next(self.invalid_points(code)))

    def valid_by_label(self) -> dict[str, dict[Label, tuple[int, int]]]:
        """For each finite dial and label: how many of its combinations are valid, of how many."""
        valid, found = self._valid_places(), {}
        for index, axis in enumerate(self.axes):
            if axis.is_probed:
                continue
            others = tuple(i for i in range(len(self.axes)) if i != index)
            good = self._over_probes(valid, keep=True).sum(axis=others)
            whole = self._over_probes(self.exists, keep=True).sum(axis=others)
            found[axis.dial.name] = {
                label: (int(good[place]), int(whole[place]))
                for place, label in enumerate(axis.labels)
                if label is not ABSENT
            }
        return found

    @property
    def _probed(self) -> tuple[int, ...]:
        return tuple(index for index, axis in enumerate(self.axes) if axis.is_probed)

    def _valid_places(self) -> Flags:
        bad = np.zeros_like(self.exists)
        for flags in self.broken.values():
            bad |= flags
        return self.exists & ~bad

    def _pruned_by(self, code: str) -> int:
        spared = self._over_probes(self.exists & ~self.broken[code])
        return int((self._over_probes(self.exists) & ~spared).sum())

    def _over_probes(self, flags: Flags, keep: bool = False) -> Flags:
        """Reduce the probes of continuous dials: a combination counts where any of them does."""
        return np.asarray(flags.any(axis=self._probed, keepdims=keep)) if self._probed else flags

    def _places(self, flags: Flags) -> Iterator[Point]:
        """The points at marked places, one for each finite combination."""
        seen: set[tuple[int, ...]] = set()
        finite = [index for index in range(len(self.axes)) if index not in self._probed]
        for place in np.argwhere(flags):
            key = tuple(int(place[index]) for index in finite)
            if self._probed and key in seen:
                continue
            seen.add(key)
            yield {
                axis.dial.name: label
                for axis, index in zip(self.axes, place, strict=True)
                if (label := axis.labels[int(index)]) is not ABSENT
            }


def evaluate_grid(judge: Judge) -> GridValidity:
    """Judge a whole space.

    Raises UserError for a space with more combinations than memory should hold.
    """
    axes = tuple(_axis(dial) for dial in judge.space.dials)
    shape = tuple(len(axis.labels) for axis in axes)
    if prod(shape) > MOST_POINTS:
        raise UserError(
            f"the space has {prod(shape):,} combinations, more than the {MOST_POINTS:,} that can be judged at once. "
            f"Search some dials as intervals, or fewer values of them."
        )
    census = GridValidity(judge, axes, _exists(axes, shape))
    for dials, rules in _rules_by_dials(judge).items():
        for code, flags in _broken(judge, axes, dials, rules).items():
            if flags.any():
                census.broken[code] = flags
    return census


def _axis(dial: Parameter) -> GridAxis:
    if isinstance(dial.domain, Choice):
        labels: tuple[Any, ...] = dial.domain.labels
    else:
        labels = tuple(dial.domain.at(share) for share in (0.5, 0.0, 1.0)[:PROBES])
    return GridAxis(dial, (*labels, ABSENT) if dial.when else labels)


def _exists(axes: tuple[GridAxis, ...], shape: tuple[int, ...]) -> Flags:
    """A place is a point where each conditional dial is absent exactly when its condition fails."""
    exists = np.ones(shape, dtype=np.bool_)
    by_name = {axis.dial.name: index for index, axis in enumerate(axes)}
    for index, axis in enumerate(axes):
        if not axis.dial.when:
            continue
        active: Any = np.ones((1,) * len(axes), dtype=np.bool_)
        for name, labels in axis.dial.when.items():
            other = by_name[name]
            active = active & _along([label in labels for label in axes[other].labels], other, len(axes))
        present = _along([label is not ABSENT for label in axis.labels], index, len(axes))
        exists &= present == active
    return exists


def _along(flags: list[bool], index: int, dimensions: int) -> Flags:
    """A vector as an array that broadcasts along one axis."""
    return np.array(flags, dtype=np.bool_).reshape([-1 if i == index else 1 for i in range(dimensions)])


def _rules_by_dials(judge: Judge) -> dict[frozenset[str], list[Rule]]:
    """The rules that can prune, by the dials that their fields depend on."""
    needs = {
        rule: frozenset().union(*(judge.fields.dials(name) for name in rule.reads))
        for rule in choose(judge.ignore, (), judge.fields.framework)
        if rule.severity == "error"
    }
    found: dict[frozenset[str], list[Rule]] = {}
    for rule, dials in sorted(needs.items(), key=lambda item: -len(item[1])):
        # Making a setting costs more than judging it: a rule joins another that reads all its dials and more.
        found.setdefault(next((known for known in found if dials <= known), dials), []).append(rule)
    return found


def _broken(judge: Judge, axes: tuple[GridAxis, ...], dials: frozenset[str], rules: list[Rule]) -> dict[str, Flags]:
    """Which combinations of these dials break which of these rules."""
    shape = tuple(len(axis.labels) if axis.dial.name in dials else 1 for axis in axes)
    flags = {rule.code: np.zeros(shape, dtype=np.bool_) for rule in rules}
    labels = [axis.labels if axis.dial.name in dials else (ABSENT,) for axis in axes]
    judges = [(rule.find, flags[rule.code]) for rule in rules]
    for place in product(*(range(size) for size in shape)):
        point = {
            axis.dial.name: label
            for axis, names, index in zip(axes, labels, place, strict=True)
            if (label := names[index]) is not ABSENT
        }
        setting = judge.fields.setting(point)
        for breaks, broken in judges:
            if breaks(setting):
                broken[place] = True
    return flags


BASELINE: Point = {}  # no dial is turned


def single_points(space: Space) -> Iterator[Point]:
    """The baseline, then one value of one dial at a time, in the order of the space."""
    yield dict(BASELINE)
    for dial in space.dials:
        if isinstance(dial.domain, Choice):
            for label in dial.domain.labels:
                yield {dial.name: label}


@dataclass(frozen=True)
class OneFactorGrid:
    """The verdicts on these points: what ``GridValidity`` says of a grid, for a list that is short enough to look at."""

    judge: Judge
    verdicts: tuple[Verdict, ...]

    @property
    def total(self) -> int:
        """How many points there are."""
        return len(self.verdicts)

    @property
    def valid(self) -> int:
        """How many of them are valid."""
        return sum(verdict.is_valid for verdict in self.verdicts)

    @property
    def invalid(self) -> int:
        """How many are not."""
        return self.total - self.valid

    def valid_points(self) -> Iterator[Point]:
        """The valid ones, the baseline first."""
        return (verdict.point for verdict in self.verdicts if verdict.is_valid)

    def invalid_points(self, code: str | None = None) -> Iterator[Point]:
        """The invalid ones (of one rule)."""
        return (v.point for v in self.verdicts if not v.is_valid and (code is None or code in _codes(v)))

    def by_rule(self) -> dict[str, int]:
        """How many points each rule prunes by itself, most first."""
        return dict(Counter(code for verdict in self.verdicts for code in _codes(verdict)).most_common())

    def first(self, code: str) -> Verdict:
        """The first point that a rule prunes."""
        return next(verdict for verdict in self.verdicts if code in _codes(verdict))

    def valid_by_label(self) -> dict[str, dict[Label, tuple[int, int]]]:
        """For each dial and label: whether it is valid (1 of 1) or not (0 of 1)."""
        found: dict[str, dict[Label, tuple[int, int]]] = {}
        for verdict in self.verdicts:
            for name, label in verdict.point.items():
                found.setdefault(name, {})[label] = (int(verdict.is_valid), 1)
        return found


def validate_one_factor(judge: Judge) -> OneFactorGrid:
    """Judge the baseline and what differs from it in one dial.

    Raises UserError where the baseline itself is invalid, or a dial has a condition: only one dial is ever turned.
    """
    for dial in judge.space.dials:
        if dial.when:
            raise UserError(
                f"{dial.name} is asked only under {', '.join(dial.when)}, and search=one_factor turns one dial at a time. "
                "Drop the condition, and set what it needs in the base configuration."
            )
    verdicts = tuple(judge.verdict(point) for point in single_points(judge.space))
    if broken := errors(verdicts[0].problems):
        text = render_problem(verdicts[0].setting, broken[0], judge.ignore)
        raise UserError(f"search=one_factor compares with the base configuration, which is invalid itself. {text}")
    return OneFactorGrid(judge, verdicts)


def _codes(verdict: Verdict) -> set[str]:
    return {problem.code for problem in errors(verdict.problems)}
