"""Judging a sweep's space before anything starts: which points are valid, which rules the others break, what would mend them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from grposweep.config.points import Points
from grposweep.config.read import prepared_key, read_setting
from grposweep.config.schema import Experiment
from grposweep.errors import BadInput
from grposweep.fixes import find_fixes
from grposweep.rules import Problem, check, errors
from grposweep.search.space import Choice, Interval, Point, Space, freeze
from grposweep.setting import Setting

MOST_POINTS = 20_000  # of the finite part; more would take minutes to compose


@dataclass(frozen=True)
class Verdict:
    """One point with its experiment, its setting and what is wrong with it."""

    point: Point
    experiment: Experiment
    setting: Setting
    problems: tuple[Problem, ...]

    @property
    def is_valid(self) -> bool:
        """Whether no error prunes it."""
        return not errors(self.problems)


@dataclass
class Judge:
    """Judges points, remembering verdicts; ``prepared`` holds the counted prompts of each model and task."""

    space: Space
    points: Points
    prepared: Mapping[str, Any] = field(default_factory=dict)
    _known: dict[object, Verdict] = field(default_factory=dict)

    def verdict(self, point: Point) -> Verdict:
        """The verdict on one point.

        Raises BadInput where the configuration does not exist at all (unknown key or option).
        """
        key = freeze(point)
        if key not in self._known:
            experiment = self.points.experiment(self.space.values(point))
            setting = read_setting(experiment, self.prepared.get(prepared_key(experiment)))
            problems = tuple(check(setting, experiment.rules.ignore))
            self._known[key] = Verdict(point, experiment, setting, problems)
        return self._known[key]

    def is_valid(self, point: Point) -> bool:
        """Whether a point breaks no rule."""
        return self.verdict(point).is_valid

    def learn(self, prepared: Mapping[str, Any]) -> None:
        """Judge anew with what preparation counted."""
        self.prepared = prepared
        self._known.clear()

    def finite(self) -> list[Verdict]:
        """Verdicts on every combination of the finite dials, valid where some value of the continuous ones is.

        Raises BadInput for a space with more combinations than can be judged.
        """
        verdicts = []
        for index, point in enumerate(self.space.finite_points()):
            if index >= MOST_POINTS:
                raise BadInput(
                    f"the space has more than {MOST_POINTS} combinations of its finite dials, which cannot be listed. "
                    f"Search some of them as intervals, or fewer values."
                )
            probes = [self.verdict(probe) for probe in self._probes(point)]
            found = next((probe for probe in probes if probe.is_valid), probes[0])
            verdicts.append(found if found.is_valid else replace(found, point=point))
        return verdicts

    def _probes(self, point: Point) -> list[Point]:
        """A finite combination with its active continuous dials in the middle, at the lower, at the upper end."""
        probes = []
        for share in (0.5, 0.0, 1.0):
            filled: Point = dict(point)
            for dial in self.space.dials:
                if isinstance(dial.domain, Interval) and dial.is_active(filled):
                    filled[dial.name] = dial.domain.at(share)
            probes.append(filled)
        return probes if len(probes[0]) > len(point) else [point]


@dataclass(frozen=True)
class Finding:
    """One rule that prunes points: how many, and the first of them with its fixes."""

    code: str
    count: int
    point: Point
    message: str
    fixes: tuple[str, ...]


def summarise(verdicts: list[Verdict]) -> list[Finding]:
    """The invalid points by rule, most first; each with its first example and that example's verified fixes."""
    counts: Counter[str] = Counter()
    first: dict[str, tuple[Verdict, Problem]] = {}
    for verdict in verdicts:
        for problem in errors(verdict.problems):
            counts[problem.code] += 1
            first.setdefault(problem.code, (verdict, problem))
    return [_finding(count, *first[code]) for code, count in counts.most_common()]


def _finding(count: int, verdict: Verdict, problem: Problem) -> Finding:
    """A rule's first example, with what would mend it there."""
    fixes = tuple(str(fix) for fix in find_fixes(verdict.setting, problem, verdict.experiment.rules.ignore))
    return Finding(problem.code, count, verdict.point, problem.message, fixes or (problem.broken.instead,))


def reasons(verdict: Verdict) -> list[dict[str, Any]]:
    """An invalid point's problems as ``invalid.jsonl`` and the study keep them."""
    ignore = verdict.experiment.rules.ignore
    return [
        {
            "code": problem.code,
            "message": problem.message,
            "fixes": [dict(fix.keys) for fix in find_fixes(verdict.setting, problem, ignore)],
        }
        for problem in errors(verdict.problems)
    ]


def check_dials(space: Space, points: Points) -> None:
    """Every value of every dial on its own must exist and fit its key's type.

    Raises BadInput for the first that does not, before a grid is composed.
    """
    for dial in space.dials:
        for value in dial.domain.values if isinstance(dial.domain, Choice) else (dial.domain.at(0.0),):
            points.experiment({dial.name: value})
