"""What a rule is: a small function with a permanent code, a severity, and the setting fields it reads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from grposweep.recipe import Recipe
from grposweep.setting import TRL_FAMILY, TRL_FRAMEWORK, FrameworkTraits, Setting

Severity = Literal["error", "warning"]

# Families in the order that a person meets them, and what each is about.
FAMILIES = {
    "GB": "the training batch",
    "GE": "evaluation",
    "GK": "the KL penalty and its reference",
    "GS": "steps and schedule",
    "GD": "data",
    "GC": "checkpoints and logs",
    "GL": "loss options",
    "GT": "topology and launch",
    "GM": "GPU memory",
    "GV": "keys and versions",
    "GA": "advice",
}


@dataclass(frozen=True)
class Violation:
    """What a rule found: what is set, why it cannot work, and what to set where no fix can be verified.

    ``fields`` are the setting fields to blame; ``suggestions`` are changes that may mend it, verified before shown.
    ``without_effect`` names fields whose change leaves training as it was: a fix of these alone is safe.
    """

    what: str
    why: str
    instead: str
    fields: tuple[str, ...] = ()
    suggestions: Iterable[dict[str, Any]] = ()  # may be found only when somebody asks
    without_effect: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Problem:
    """A broken rule: its code and severity, and what was found."""

    code: str
    severity: Severity
    broken: Violation

    @property
    def message(self) -> str:
        """What is set and why it cannot work, one sentence."""
        return f"{self.broken.what}: {self.broken.why}"


Judge = Callable[[Setting], Violation | None]
Counts = Callable[[Setting], int]  # a mask, see counts.py


@dataclass(frozen=True)
class Rule:
    """A registered rule; ``reads`` are the setting fields its verdict depends on.

    ``of`` names the frameworks it is true of, by name or by trait (``FrameworkTraits.labels``).

    ``counts`` says which numbers of processes satisfy it, for settings that state none; an error whose verdict depends
    on the processes has one.
    """

    code: str
    severity: Severity
    reads: frozenset[str]
    judge: Judge
    counts: Counts | None = None
    of: frozenset[str] = TRL_FAMILY

    @property
    def explanation(self) -> str:
        """The docstring: what the rule says, and its source."""
        return self.judge.__doc__ or ""

    def holds_for(self, framework: FrameworkTraits) -> bool:
        """Return whether the rule is true of a framework."""
        return not self.of.isdisjoint(framework.labels)

    def problem(self, broken: Violation) -> Problem:
        """The problem behind a finding of this rule."""
        return Problem(self.code, self.severity, broken)


REGISTRY: dict[str, Rule] = {}


def rule(
    code: str,
    severity: Severity,
    reads: Iterable[str],
    counts: Counts | None = None,
    of: frozenset[str] = TRL_FAMILY,
) -> Callable[[Judge], Judge]:
    """Register a rule under its permanent code."""

    def add(judge: Judge) -> Judge:
        assert code not in REGISTRY, f"{code} is taken"
        REGISTRY[code] = Rule(code, severity, frozenset(reads), judge, counts, of)
        choose.cache_clear()
        return judge

    return add


@lru_cache(maxsize=256)
def choose(
    ignore: tuple[str, ...] = (), select: tuple[str, ...] = (), framework: FrameworkTraits = TRL_FRAMEWORK
) -> tuple[Rule, ...]:
    """A framework's rules that are switched on, by code: those selected (all, if none is), without those ignored.

    Both take codes (``GB101``) and families (``GB``).
    """
    return tuple(
        rule
        for code, rule in sorted(REGISTRY.items())
        if rule.holds_for(framework)
        and (not select or code in select or code[:2] in select)
        and code not in ignore
        and code[:2] not in ignore
    )


RecipeJudge = Callable[[Recipe], Iterable[Violation]]


@dataclass(frozen=True)
class RecipeRule:
    """A rule on the recipe itself, for what no setting can express: keys, versions, overwritten values."""

    code: str
    severity: Severity
    judge: RecipeJudge
    of: frozenset[str] = TRL_FAMILY

    @property
    def explanation(self) -> str:
        """The docstring: what the rule says, and its source."""
        return self.judge.__doc__ or ""

    def holds_for(self, framework: FrameworkTraits) -> bool:
        """Return whether the rule is true of a framework."""
        return not self.of.isdisjoint(framework.labels)


RECIPE_RULES: dict[str, RecipeRule] = {}


def recipe_rule(code: str, severity: Severity, of: frozenset[str] = TRL_FAMILY) -> Callable[[RecipeJudge], RecipeJudge]:
    """Register a rule on recipes under its permanent code; in its findings ``fields`` are native keys."""

    def add(judge: RecipeJudge) -> RecipeJudge:
        assert code not in REGISTRY, f"{code} is taken"
        assert code not in RECIPE_RULES, f"{code} is taken"
        RECIPE_RULES[code] = RecipeRule(code, severity, judge, of)
        return judge

    return add


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Those that prune a point."""
    return [problem for problem in problems if problem.severity == "error"]
