"""What a rule is: a small function with a permanent code, a severity, and the setting fields it reads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from grposweep.recipe import Recipe
from grposweep.setting import Setting

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Broken:
    """What a rule found: what is set, why it cannot work, and what to set where no fix can be verified.

    ``fields`` are the setting fields to blame; ``suggestions`` are changes that may mend it, verified before shown.
    """

    what: str
    why: str
    instead: str
    fields: tuple[str, ...] = ()
    suggestions: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Problem:
    """A broken rule: its code and severity, and what was found."""

    code: str
    severity: Severity
    broken: Broken

    @property
    def message(self) -> str:
        """What is set and why it cannot work, one sentence."""
        return f"{self.broken.what}: {self.broken.why}"


@dataclass(frozen=True)
class Rule:
    """A registered rule; ``reads`` are the setting fields its verdict depends on."""

    code: str
    severity: Severity
    reads: frozenset[str]
    judge: Callable[[Setting], Broken | None]

    @property
    def explanation(self) -> str:
        """The docstring: what the rule says, and its source."""
        return self.judge.__doc__ or ""

    def problem(self, broken: Broken) -> Problem:
        """The problem behind a finding of this rule."""
        return Problem(self.code, self.severity, broken)


REGISTRY: dict[str, Rule] = {}


def rule(
    code: str, severity: Severity, reads: Iterable[str]
) -> Callable[[Callable[[Setting], Broken | None]], Callable[[Setting], Broken | None]]:
    """Register a rule under its permanent code."""

    def add(judge: Callable[[Setting], Broken | None]) -> Callable[[Setting], Broken | None]:
        assert code not in REGISTRY, f"{code} is taken"
        REGISTRY[code] = Rule(code, severity, frozenset(reads), judge)
        return judge

    return add


RecipeJudge = Callable[[Recipe], Iterable[Broken]]


@dataclass(frozen=True)
class RecipeRule:
    """A rule on the recipe itself, for what no setting can express: keys, versions, overwritten values."""

    code: str
    severity: Severity
    judge: RecipeJudge

    @property
    def explanation(self) -> str:
        """The docstring: what the rule says, and its source."""
        return self.judge.__doc__ or ""


RECIPE_RULES: dict[str, RecipeRule] = {}


def recipe_rule(code: str, severity: Severity) -> Callable[[RecipeJudge], RecipeJudge]:
    """Register a rule on recipes under its permanent code; in its findings ``fields`` are native keys."""

    def add(judge: RecipeJudge) -> RecipeJudge:
        assert code not in REGISTRY, f"{code} is taken"
        assert code not in RECIPE_RULES, f"{code} is taken"
        RECIPE_RULES[code] = RecipeRule(code, severity, judge)
        return judge

    return add


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Those that prune a point."""
    return [problem for problem in problems if problem.severity == "error"]
