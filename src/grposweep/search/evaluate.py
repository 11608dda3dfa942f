"""Validate all points of a space: those of a list or one factor at a time one by one, those of a grid as arrays.

One factor at a time means the base configuration, then every value of every parameter with all others left as they are.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from grporecipe.errors import UserError
from grporecipe.rules.check import errors
from grporecipe.rules.fixes import render_problem
from grposweep.search.space import Choice, Label, Point, Space
from grposweep.search.validity import SpaceValidity, ValidationResult, Validator


@dataclass(frozen=True)
class ListedValidity(SpaceValidity):
    """The results of these points, one by one."""

    validator: Validator
    results: tuple[ValidationResult, ...]

    @property
    def total(self) -> int:
        """Return the number of points."""
        return len(self.results)

    @property
    def valid(self) -> int:
        """Return how many of them are valid."""
        return sum(result.is_valid for result in self.results)

    def valid_points(self) -> Iterator[Point]:
        """Return the valid ones, the baseline first."""
        return (result.point for result in self.results if result.is_valid)

    def invalid_points(self, code: str | None = None) -> Iterator[Point]:
        """Return the invalid ones (of one rule)."""
        return (v.point for v in self.results if not v.is_valid and (code is None or code in _codes(v)))

    def by_rule(self) -> dict[str, int]:
        """Return how many points each rule prunes by itself, most first."""
        return dict(Counter(code for result in self.results for code in _codes(result)).most_common())

    def valid_by_label(self) -> dict[str, dict[Label, tuple[int, int]]]:
        """Return for each parameter and label how many of its points are valid, of how many."""
        counts: dict[str, dict[Label, tuple[int, int]]] = {}
        for result in self.results:
            for name, label in result.point.items():
                valid, total = counts.setdefault(name, {}).get(label, (0, 0))
                counts[name][label] = valid + int(result.is_valid), total + 1
        return counts


def _codes(result: ValidationResult) -> set[str]:
    return {problem.code for problem in errors(result.problems)}


def validate_points(validator: Validator) -> SpaceValidity:
    """Validate a whole space: the points that it lists, the only one of a single run, or its grid.

    Raises UserError as ``evaluate_grid`` does.
    """
    listed = validator.space.points
    if listed or not validator.space.parameters:
        return ListedValidity(validator, tuple(map(validator.validate, listed or [{}])))
    from grposweep.search.grid import evaluate_grid  # numpy: 0.1 s that a single run that is refused should not pay

    return evaluate_grid(validator)


def single_points(space: Space) -> Iterator[Point]:
    """Yield the baseline, which changes nothing, then one value of one parameter at a time, in the order of the space."""
    yield {}
    for parameter in space.parameters:
        if isinstance(parameter.domain, Choice):
            for label in parameter.domain.labels:
                yield {parameter.name: label}


def validate_one_factor(validator: Validator) -> ListedValidity:
    """Validate the baseline and every point that differs from it in one parameter.

    Raises UserError if the baseline itself is invalid. Raises it also if a parameter has a condition, because only one
    parameter is changed at a time.
    """
    for parameter in validator.space.parameters:
        if parameter.when:
            raise UserError(
                f"{parameter.name} is asked only under {', '.join(parameter.when)}, and search=one_factor turns one parameter "
                "at a time. "
                "Drop the condition, and set what it needs in the base configuration."
            )
    results = tuple(validator.validate(point) for point in single_points(validator.space))
    if broken := errors(results[0].problems):
        text = render_problem(results[0].setting, broken[0], validator.ignore)
        raise UserError(f"search=one_factor compares with the base configuration, which is invalid itself. {text}")
    return ListedValidity(validator, results)
