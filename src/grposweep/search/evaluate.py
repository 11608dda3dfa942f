"""Validate the points of a space, one by one: those of a list, of one factor at a time, or of a
grid. A larger grid is sampled.

One factor at a time means the base configuration, then every value of every parameter with all
others left as they are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from random import Random
from typing import NamedTuple

from grporecipe.errors import UserError
from grporecipe.files import without
from grporecipe.model.effect import describe_lack
from grporecipe.rules.check import errors
from grporecipe.rules.fixes import render_problem
from grposweep.schema import Experiment
from grposweep.search.space import Choice, Interval, Label, Parameter, Point, Space, freeze
from grposweep.search.validity import ValidationResult, Validator

# points that are judged one by one
MOST_LISTED = 10_000
# points of a larger space
SAMPLED = 2_000
# of a continuous parameter's way from low to high: the middle, both ends
PROBES = (0.5, 0.0, 1.0)
# points of a space with ranges, after some with their middle and ends
SAMPLED_IN_RANGES, MOST_PROBES = 100, 9
# valid points in which a value of a sampled space is looked for
TRIED = 50


class Lack(NamedTuple):
    """At how many valid points a key changes nothing, of how many, why, and what would change
    that.
    """

    points: int
    of: int
    why: str
    revived: str

    @property
    def is_dead(self) -> bool:
        """Return whether no valid point reads the key."""
        return self.points == self.of


@dataclass(frozen=True, slots=True)
class JudgedPoint:
    """A point with the rules that it breaks, and the keys that change nothing there."""

    point: Point
    codes: frozenset[str]
    # each key with the need that it lacks
    lacking: Mapping[str, str]


@dataclass(frozen=True)
class SpaceValidity:
    """The points that a sweep may try, each judged by itself.

    ``is_sampled``: they were drawn from a space with too many. All counts are of the drawn ones.
    """

    validator: Validator
    judged: Sequence[JudgedPoint]
    is_sampled: bool = False

    @property
    def total(self) -> int:
        """Return the number of points."""
        return len(self.judged)

    @cached_property
    def _valid(self) -> list[JudgedPoint]:
        return [judged for judged in self.judged if not judged.codes]

    @property
    def valid(self) -> int:
        """Return how many of them are valid."""
        return len(self._valid)

    @property
    def size(self) -> int:
        """Return the number of points of the space."""
        return self.validator.space.size if self.is_sampled else self.total

    @property
    def share(self) -> float:
        """Return the estimated share of valid points. A point of a smaller branch is drawn more
        often, and counts less.
        """
        weight = self.validator.space.weight
        valid = sum(weight(judged.point) for judged in self._valid)
        return valid / sum(weight(judged.point) for judged in self.judged)

    def describe(self) -> str:
        """Return the counts in words, or the estimate."""
        if self.is_sampled:
            share = f"about {self.share:.0%} of {self.size:,} points valid"
            return f"{share}, from {self.total:,} sampled"
        if self.ranges and self.size == 1:
            return f"{self.ranges['']} of {self.ranges.total()} sampled points of the range valid"
        return f"{self.total:,} points, {self.valid:,} valid, {self.invalid:,} invalid"

    def valid_points(self) -> Iterator[Point]:
        """Return the valid ones in their order; of several that are one training the first."""
        first: dict[object, Point] = {}
        for judged in self._valid:
            point = judged.point
            read = without(point, judged.lacking)
            first.setdefault(freeze(read), point)
        return iter(first.values())

    @property
    def repeated(self) -> int:
        """Return how many valid points are the training of an earlier one."""
        return self.valid - len(list(self.valid_points()))

    @cached_property
    def lacks(self) -> dict[str, Lack]:
        """Return the parameters that change nothing at some valid points, and the shared keys that
        change nothing at any.
        """
        names = self.validator.space.names
        found = {}
        for name in (*names, *self.validator.points.shared):
            active = sum(name in valid.point or name not in names for valid in self._valid)
            idle = [valid for valid in self._valid if name in valid.lacking]
            if idle and (len(idle) == active or name in names):
                setting = self.validator.validate(idle[0].point).setting
                lack = describe_lack(setting, idle[0].lacking[name])
                found[name] = Lack(len(idle), active, *lack)
        return found

    @property
    def is_dead(self) -> bool:
        """Return whether no parameter changes anything at any valid point."""
        dead = {name for name, lack in self.lacks.items() if lack.is_dead}
        names = self.validator.space.names
        return bool(names) and dead.issuperset(names)

    def describe_lacks(self) -> list[str]:
        """Return a line for each key that changes nothing, with what would revive it."""
        lines = []
        for name, lack in self.lacks.items():
            line = f"{name}: {lack.why}, at {lack.points:,} of {lack.of:,} valid points."
            if lack.is_dead:
                line = (
                    f"{name}: {lack.why}, so it changes nothing. {lack.revived}, or leave it out."
                )
            lines.append(line)
        return lines

    @cached_property
    def ranges(self) -> Counter[str]:
        """Return how many points each rule prunes, of those that are drawn from a space with
        ranges and of their ends; ``""`` counts the valid ones.
        """
        space = self.validator.space
        counts = Counter[str]()
        if space.is_finite:
            return counts
        random = Random(f"{self.validator.points.base.search.seed}:ranges")
        probes = islice(_probes(space, next(space.finite_points())), MOST_PROBES)
        for point in (*probes, *(space.draw(random) for _ in range(SAMPLED_IN_RANGES))):
            counts.update(_codes(self.validator.validate(point)) or [""])
        return counts

    def invalid_points(self, code: str | None = None) -> Iterator[Point]:
        """Return the invalid ones (of one rule)."""
        for judged in self.judged:
            if judged.codes and (code is None or code in judged.codes):
                yield judged.point

    def by_rule(self) -> dict[str, int]:
        """Return how many points each rule prunes by itself, most first."""
        codes = chain.from_iterable(judged.codes for judged in self.judged)
        return dict(Counter(codes).most_common())

    def valid_by_label(self) -> dict[str, dict[Label, tuple[int, int]]]:
        """Return for each finite parameter and label how many of its points are valid, of how
        many.
        """
        counts: dict[str, dict[Label, tuple[int, int]]] = {}
        for judged in self.judged:
            for name, label in self.validator.space.finite_part(judged.point).items():
                valid, total = counts.setdefault(name, {}).get(label, (0, 0))
                counts[name][label] = valid + (not judged.codes), total + 1
        return counts

    @property
    def invalid(self) -> int:
        """Return how many points are invalid."""
        return self.total - self.valid

    def first(self, code: str) -> ValidationResult:
        """Return the first point that a rule makes invalid."""
        return self.validator.validate(next(self.invalid_points(code)))

    def distinct(self, *sections: str) -> list[Experiment]:
        """Return one experiment for each combination of the parameters in these sections, among the
        valid points and, of a sampled space, for those not drawn.
        """
        space = self.validator.space
        names = {name for name in space.names if name.split(".")[0] in sections}
        most = None if names else 1
        points = {}
        for point in islice(self.valid_points(), most):
            points[freeze({name: point[name] for name in names & point.keys()})] = point
        if self.is_sampled:
            tried = list(islice(self.valid_points(), TRIED))
            for combination in islice(space.assignments(names), MOST_LISTED):
                for point in tried:
                    changed = point | combination
                    if freeze(combination) in points:
                        break
                    if changed.keys() == point.keys() and self.validator.is_valid(changed):
                        points[freeze(combination)] = changed
        return [self.validator.validate(point).experiment for point in points.values()]


def validate_points(validator: Validator) -> SpaceValidity:
    """Validate a whole space: the points that it lists, the only one of a single run, its grid, or
    a sample of it.
    """
    space = validator.space
    finite: Iterable[Point] = space.finite_points()
    is_sampled = not space.points and space.size > MOST_LISTED
    if is_sampled:
        random = Random(f"{validator.points.base.search.seed}:space")
        drawn = (space.finite_part(space.draw(random)) for _ in range(SAMPLED))
        finite = {freeze(point): point for point in drawn}.values()
    points = []
    for combination in finite:
        # the first valid probe of the continuous parameters, or their middle
        probed = list(_probes(space, combination))
        points.append(next(filter(validator.is_valid, probed), probed[0]))
    return SpaceValidity(validator, _judge(validator, points), is_sampled)


def _judge(validator: Validator, points: Iterable[Point]) -> list[JudgedPoint]:
    judged = []
    for point in points:
        result = validator.validate(point)
        judged.append(JudgedPoint(point, _codes(result), result.lacks))
    return judged


def _probes(space: Space, combination: Point) -> Iterator[Point]:
    """Yield a combination of the finite parameters with every combination of probes of the
    continuous ones.
    """
    if space.is_finite:
        yield combination
        return

    def labels_of(parameter: Parameter) -> Sequence[Label]:
        if isinstance(parameter.domain, Interval):
            return list(map(parameter.domain.at, PROBES))
        # none for an inactive parameter
        return [combination.get(parameter.name)]

    yield from space.combinations(labels_of)


def _codes(result: ValidationResult) -> frozenset[str]:
    return frozenset(problem.code for problem in errors(result.problems))


def validate_one_factor(validator: Validator) -> SpaceValidity:
    """Validate the baseline and every point that differs from it in one parameter.

    Raises UserError if the baseline itself is invalid. Raises it also if a parameter has a
    condition, because only one parameter is changed at a time.
    """
    # the baseline changes nothing
    points: list[Point] = [{}]
    for parameter in validator.space.parameters:
        if parameter.when:
            raise UserError(
                f"{parameter.name} is asked only under {', '.join(parameter.when)}, and "
                "search=one_factor turns one parameter at a time. Drop the condition, and set what "
                "it needs in the base configuration."
            )
        if isinstance(parameter.domain, Choice):
            points += [{parameter.name: label} for label in parameter.domain.labels]
    baseline = validator.validate(points[0])
    problems = errors(baseline.problems)
    if problems:
        text = render_problem(baseline.setting, problems[0], validator.ignore)
        raise UserError(
            "search=one_factor compares with the base configuration, which is invalid itself. "
            f"{text}"
        )
    return SpaceValidity(validator, _judge(validator, points))
