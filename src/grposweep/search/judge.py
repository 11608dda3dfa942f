"""Judging points: which are valid, which rules the others break, and what would mend them; by look-up, not by composing."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from grposweep.config.checks import check_words
from grposweep.config.points import Points
from grposweep.config.schema import Experiment
from grposweep.errors import BadInput
from grposweep.fixes import find_fixes
from grposweep.rules import REGISTRY, Problem, check, errors
from grposweep.search.fields import Fields
from grposweep.search.space import Choice, Interval, Label, Point, Space
from grposweep.setting import Setting


class Judge:
    """Judges a space's points; ``learn`` adds what preparation counted for each model and task."""

    def __init__(self, space: Space, points: Points, prepared: Mapping[str, Any] | None = None) -> None:
        self.space, self.points = space, points
        self.ignore = tuple(points.base.rules.ignore)
        self.learn(prepared or {})

    def learn(self, prepared: Mapping[str, Any]) -> None:
        """Judge with these counts from now on."""
        self._last: Verdict | None = None  # asked for several times in a row; composing its experiment takes 20 ms
        self.fields = Fields(self.space, self.points, prepared)

    def verdict(self, point: Point, seed: int | None = None) -> "Verdict":
        """The verdict on one point, on another seed than the configured one where one is given.

        Raises BadInput where the configuration does not exist at all (unknown key or option).
        """
        if self._last is None or (self._last.point, self._last.seed) != (point, seed):
            setting = self.fields.setting(point)
            if seed is not None:
                setting = setting.altered({"seed": seed})
            self._last = Verdict(point, setting, tuple(check(setting, self.ignore)), self, seed)
        return self._last

    def is_valid(self, point: Point) -> bool:
        """Whether a point breaks no rule."""
        return self.verdict(point).is_valid

    def check_dials(self) -> None:
        """Every value of every dial on its own must exist and fit its key's type.

        Raises BadInput for the first that does not, before anything is judged; and for unknown rules to ignore.
        """
        unknown = [
            code for code in self.ignore if code not in REGISTRY and code not in {known[:2] for known in REGISTRY}
        ]
        if unknown:
            raise BadInput(f"rules.ignore: there is no rule {unknown[0]}. 'grposweep rules' lists them.")
        for dial in self.space.dials:
            if isinstance(dial.domain, Choice):
                for value in dial.domain.values:
                    check_words(self.points.experiment({dial.name: value}))
            else:
                self._check_interval(dial.name, dial.domain)

    def _check_interval(self, name: str, domain: Interval) -> None:
        """An interval's inner values must fit as well: a whole number's key takes no fractions."""
        try:
            for share in (0.0, 1.0, 1 / math.pi):
                check_words(self.points.experiment({name: domain.at(share)}))
        except BadInput as error:
            if "Integer" not in str(error):
                raise
            text = f"interval({domain.low:g},{domain.high:g})"
            raise BadInput(
                f"{name}={text} has fractions, and this key takes whole numbers. Set '{name}=int({text})'."
            ) from error


class Verdicts(Protocol):
    """The verdicts on all points that a sweep may try: a grid's are counted (Census), a short list's looked at (OneByOne)."""

    @property
    def judge(self) -> Judge: ...
    @property
    def total(self) -> int: ...
    @property
    def valid(self) -> int: ...
    @property
    def invalid(self) -> int: ...
    def valid_points(self) -> Iterator[Point]: ...
    def invalid_points(self, code: str | None = None) -> Iterator[Point]: ...
    def by_rule(self) -> dict[str, int]: ...
    def first(self, code: str) -> "Verdict": ...
    def valid_by_label(self) -> dict[str, dict[Label, tuple[int, int]]]: ...


@dataclass(frozen=True)
class Verdict:
    """One point with its setting and what is wrong with it."""

    point: Point
    setting: Setting
    problems: tuple[Problem, ...]
    judge: Judge
    seed: int | None = None  # a replicate's

    @property
    def is_valid(self) -> bool:
        """Whether no error prunes it."""
        return not errors(self.problems)

    @cached_property
    def experiment(self) -> Experiment:
        """The point's whole experiment, composed when somebody wants it (20 ms)."""
        return self.judge.points.experiment(self.values)

    @property
    def values(self) -> dict[str, Any]:
        """The configuration values that make it of the base configuration."""
        return self.judge.space.values(self.point) | ({} if self.seed is None else {"seed": self.seed})

    def reasons(self) -> list[dict[str, Any]]:
        """What is wrong, as ``invalid.jsonl`` and the study keep it."""
        return [
            {"code": problem.code, "message": problem.message, "fixes": [dict(fix.keys) for fix in fixes]}
            for problem, fixes in self.mended()
        ]

    def mended(self) -> list[tuple[Problem, list[Any]]]:
        """Each error with its verified fixes."""
        return [(p, find_fixes(self.setting, p, self.judge.ignore)) for p in errors(self.problems)]
