"""One factor at a time: the base configuration, then every value of every dial with all others left as they are."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from grposweep.errors import BadInput
from grposweep.fixes import render_problem
from grposweep.rules import errors
from grposweep.search.judge import Judge, Verdict
from grposweep.search.space import Choice, Label, Point, Space

BASELINE: Point = {}  # no dial is turned


def single_points(space: Space) -> Iterator[Point]:
    """The baseline, then one value of one dial at a time, in the order of the space."""
    yield dict(BASELINE)
    for dial in space.dials:
        if isinstance(dial.domain, Choice):
            for label in dial.domain.labels:
                yield {dial.name: label}


@dataclass(frozen=True)
class OneByOne:
    """The verdicts on these points: what ``Census`` says of a grid, for a list that is short enough to look at."""

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


def judge_one_by_one(judge: Judge) -> OneByOne:
    """Judge the baseline and what differs from it in one dial.

    Raises BadInput where the baseline itself is invalid, or a dial has a condition: only one dial is ever turned.
    """
    for dial in judge.space.dials:
        if dial.when:
            raise BadInput(
                f"{dial.name} is asked only under {', '.join(dial.when)}, and search=one_factor turns one dial at a time. "
                "Drop the condition, and set what it needs in the base configuration."
            )
    verdicts = tuple(judge.verdict(point) for point in single_points(judge.space))
    if broken := errors(verdicts[0].problems):
        text = render_problem(verdicts[0].setting, broken[0], judge.ignore)
        raise BadInput(f"search=one_factor compares with the base configuration, which is invalid itself. {text}")
    return OneByOne(judge, verdicts)


def _codes(verdict: Verdict) -> set[str]:
    return {problem.code for problem in errors(verdict.problems)}
