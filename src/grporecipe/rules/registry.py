"""Define rules: a permanent code, a severity, the setting fields that the rule reads, a condition,
and texts.

A rule on settings is a function that says whether the setting breaks it; its messages are templates
next to it, and its docstring is its documentation:

    @rule("GL104", "error", ("temperature",), of=EVERY, blames=("temperature",),
          why="completions of a group must differ, so sampling needs a temperature above 0",
          instead="Set {temperature}=1.0.", to=({"temperature": 1.0},))
    def sampling_is_random(s: Setting) -> bool:
        '''At temperature 0 or below, transformers refuses to sample, ...'''
        return s.temperature <= 0

In a template ``{beta}`` is the native key of a field, ``{beta=}`` key and value, ``{s.beta:g}`` a
value, ``{trainer}`` the trainer's name. A condition that returns a mapping breaks the rule, and its
items are available in the templates. If a message depends on more, the function returns a
`Violation`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from inspect import cleandoc
from typing import Any, Literal, TypeVar

from grporecipe.files import Json
from grporecipe.model.framework import FRAMEWORK_NAMES
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import TRL_FAMILY, FrameworkTraits, Setting
from grporecipe.model.values import Names

# a note says what was not checked
Severity = Literal["error", "warning", "note"]
# setting field (of a recipe rule: native key) -> new value; None removes it
Change = Json

# Families in the order in which users meet them, with their topics.
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
# The spelling of titles, which are function names.
SPELLED = {
    "kl": "KL",
    "vllm": "vLLM",
    "gpu": "GPU",
    "gpus": "GPUs",
    "grpo": "GRPO",
    "megatron": "Megatron",
    "held_out": "held-out",
    "micro_": "micro-",
    "log_probabilities": "log-probabilities",
    "well_formed": "well-formed",
}


# the numbers of a message about a broken rule; None if the rule holds
Finding = dict[str, object] | None


@dataclass(frozen=True)
class Violation:
    """What is set, why it cannot work, and what to set if no fix can be verified.

    Args:
        what: the key and its value.
        why: the reason, without a full stop.
        instead: a sentence of advice.
        fields: the setting fields (of a recipe rule: native keys) to blame.
        suggestions: changes that may repair it, verified before they are shown; iterated only when
            fixes are searched.
        without_effect: fields whose change leaves training unchanged: a fix of these alone is safe.
        severity: of this finding of a recipe rule, if it differs from the rule's.
        certain: true in every release, so it counts if the version is unknown.
        may_be_new: a release newer than those known may take the value.

    """

    what: str
    why: str
    instead: str
    fields: Names = ()
    suggestions: Iterable[Change] = ()
    without_effect: frozenset[str] = frozenset()
    severity: Severity | None = None
    certain: bool = False
    may_be_new: bool = False


# falsy: the rule is kept
Found = Violation | Mapping[str, object] | bool | None
Find = Callable[[Setting], Found]
# the largest number for which an unstated count is judged
MOST_PROCESSES = 64
# the mask of all numbers up to it, see `helpers`
ALL_COUNTS = (1 << MOST_PROCESSES) - 1
F = TypeVar("F", bound=Find)
# a mask of numbers of processes, see `helpers`
Counts = Callable[[Setting], int]
Suggestions = Iterable[Change] | Callable[[Setting], Iterable[Change]]


@dataclass(frozen=True, eq=False)
class Texts:
    """The templates of a rule's messages, and its suggestions. The first blamed field is shown."""

    blames: Names
    why: str
    instead: str
    what: str
    to: Suggestions
    harmless: Names

    def describe(self, s: Setting, facts: Mapping[str, object]) -> Violation:
        """Fill in the templates for a setting."""
        words = Words(facts, s=s)
        changes = self.to(s) if callable(self.to) else self.to
        return Violation(
            (self.what or f"{{{self.blames[0]}=}}").format_map(words),
            self.why.format_map(words),
            self.instead.format_map(words),
            self.blames,
            changes,
            frozenset(self.harmless),
        )


class Words(dict[str, Any]):
    """The names that a template may use: facts of the violation, the setting ``s``, and keys and
    values of its fields.
    """

    def __missing__(self, name: str) -> str:
        s: Setting = self["s"]
        if name == "trainer":
            return s.trainer
        if name.endswith("="):
            name = name[:-1]
            return f"{s.key(name)}={shown(getattr(s, name))}"
        return s.key(name)


def shown(value: object) -> str:
    """Return a field's value as messages show it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, eq=False, kw_only=True)
class Documented:
    """The documentation of a rule.

    Args:
        code: permanent.
        severity: an error makes a point invalid, a warning or a note does not.
        of: the frameworks that it applies to, by name or by trait (``FrameworkTraits.labels``).
        name: a few words, or the function's name.
        text: what it means, why, and its source.

    """

    code: str
    severity: Severity
    of: frozenset[str]
    name: str
    text: str

    @property
    def title(self) -> str:
        """Return the name as documents show it."""
        words = SPELLED | FRAMEWORK_NAMES
        spelled = rf"(?<![a-z0-9])(?:{'|'.join(words)})(?=_|$|(?<=_))"
        return re.sub(spelled, lambda match: words[match[0]], self.name).replace("_", " ")

    @property
    def explanation(self) -> str:
        """Return the text without its indentation in the code."""
        return cleandoc(self.text)

    def holds_for(self, framework: FrameworkTraits) -> bool:
        """Return whether the rule applies to a framework."""
        return not self.of.isdisjoint(framework.labels)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rule(Documented):
    """A registered rule on settings.

    Args:
        reads: the setting fields that its verdict depends on.
        find: the condition: whether a setting breaks it.
        counts: the numbers of processes that satisfy it, as a mask, for settings that state none.
            An error whose verdict depends on the processes has one.
        texts: templates of its messages; None if `find` returns a `Violation`.

    """

    reads: frozenset[str]
    find: Find
    counts: Counts | None
    texts: Texts | None

    def judge(self, s: Setting) -> Violation | None:
        """Return how a setting breaks the rule; None if it does not."""
        answer = self.find(s)
        if answer:
            return self.describe(s, answer)
        return None

    def describe(self, s: Setting, answer: Found) -> Violation:
        """Describe what `find` found."""
        if isinstance(answer, Violation):
            return answer
        assert self.texts is not None
        facts = answer if isinstance(answer, Mapping) else {}
        return self.texts.describe(s, facts)


@dataclass(frozen=True)
class Problem:
    """A broken rule. It is described only on request, because most verdicts are only counted."""

    rule: Rule
    setting: Setting
    answer: Found
    # added to the reason
    note: str = ""

    @property
    def code(self) -> str:
        """The rule's code."""
        return self.rule.code

    @property
    def severity(self) -> Severity:
        """The rule's severity."""
        return self.rule.severity

    @property
    def is_error(self) -> bool:
        """Return whether the rule is one of errors."""
        return self.severity == "error"

    @cached_property
    def broken(self) -> Violation:
        """Return the description of the problem."""
        broken = self.rule.describe(self.setting, self.answer)
        return replace(broken, why=broken.why + self.note) if self.note else broken

    @property
    def message(self) -> str:
        """Return the setting and the reason as one sentence."""
        return f"{self.broken.what}: {self.broken.why}"


_BLANK = Setting()


class _Unstated(Setting):
    """A setting whose processes cannot be read: what is judged without them holds for each."""

    @property
    def processes(self) -> int:
        raise LookupError


def by_trial(setting: Setting, judge: Callable[[Setting], object]) -> int:
    """Return the counts that a rule accepts, by applying it to each."""
    unstated, tried, mask = object.__new__(_Unstated), setting.replace({}), 0
    unstated.__dict__.update(setting.__dict__)
    with suppress(LookupError):
        if judge(unstated):
            return 0
        return ALL_COUNTS
    for at in range(MOST_PROCESSES):
        # one setting for all: copies would take most of the time
        tried.__dict__["processes"] = at + 1
        mask |= (not judge(tried)) << at
    return mask


def _remember(judge: Find, reads: Iterable[str]) -> Counts:
    """Return what tries each count, once for all settings with the same values of these fields."""
    names = sorted({*reads} - {"processes"})

    @lru_cache(maxsize=4096)
    def mask(values: tuple[Any, ...]) -> int:
        return by_trial(_BLANK.replace(dict(zip(names, values, strict=True))), judge)

    return lambda s: mask(tuple(getattr(s, name) for name in names))


D = TypeVar("D", bound=Documented)
REGISTRY: dict[str, Rule] = {}
# by code: frameworks that judge a rule in another way
VARIANTS: dict[str, list[tuple[frozenset[str], Any]]] = {}


def rule(
    code: str,
    severity: Severity,
    reads: Iterable[str],
    counts: Counts | Literal["by trial"] | None = None,
    of: frozenset[str] = TRL_FAMILY,
    *,
    blames: Names = (),
    why: str = "",
    instead: str = "",
    what: str = "",
    to: Suggestions = (),
    harmless: Names = (),
    title: str = "",
    text: str = "",
) -> Callable[[F], F]:
    """Register a rule under its permanent code; see the module's docstring.

    Title and text default to the function's name and docstring. ``counts="by trial"`` applies the
    rule to each number of processes.
    """
    texts = Texts(blames, why, instead, what, to, harmless) if why else None

    def add(find: F) -> F:
        assert code not in REGISTRY, f"{code} is taken"
        masks = _remember(find, reads) if counts == "by trial" else counts
        REGISTRY[code] = Rule(
            code=code,
            severity=severity,
            of=of,
            name=title or find.__name__,
            text=text or find.__doc__ or "",
            reads=frozenset(reads),
            find=find,
            counts=masks,
            texts=texts,
        )
        choose.cache_clear()
        return find

    return add


def variant(code: str, of: frozenset[str], condition: "Find | RecipeJudge") -> None:
    """Register another condition of some frameworks for a rule whose code, severity and
    documentation they share.

    For a rule on settings, it reads the same fields, and accepts the same numbers of processes.
    """
    VARIANTS.setdefault(code, []).append((of, condition))
    choose.cache_clear()
    choose_for_recipes.cache_clear()


def _of_framework(rule: D, condition: str, framework: FrameworkTraits) -> D:
    """Return a rule with the framework's own condition, if it has one; ``condition`` is its
    name.
    """
    for of, own in VARIANTS.get(rule.code, ()):
        if not of.isdisjoint(framework.labels):
            return replace(rule, **{condition: own})
    return rule


@lru_cache(maxsize=256)
def choose(ignore: Names, select: Names, framework: FrameworkTraits) -> tuple[Rule, ...]:
    """Return the rules of a framework that are on, by code: those selected (or all), without those
    ignored.

    Both take codes (``GB101``) and families (``GB``).
    """
    chosen = (
        rule
        for code, rule in sorted(REGISTRY.items())
        if rule.holds_for(framework)
        and (not select or code in select or code[:2] in select)
        and code not in ignore
        and code[:2] not in ignore
    )
    return tuple(_of_framework(rule, "find", framework) for rule in chosen)


RecipeJudge = Callable[[Recipe], Iterable[Violation]]


@dataclass(frozen=True, eq=False, kw_only=True)
class RecipeRule(Documented):
    """A rule on the recipe itself, for what no setting can express: keys, versions, overwritten
    values.

    ``by_release``: its findings depend on the release. If the version is unknown, GV110 reports
    them in one warning.
    """

    judge: RecipeJudge
    by_release: bool = False


RECIPE_RULES: dict[str, RecipeRule] = {}


def recipe_rule(
    code: str, severity: Severity, of: frozenset[str] = TRL_FAMILY, *, by_release: bool = False
) -> Callable[[RecipeJudge], RecipeJudge]:
    """Register a rule on recipes under its permanent code; in its findings ``fields`` are native
    keys.

    ``by_release`` marks a rule whose findings depend on the framework's release (see `RecipeRule`).
    """

    def add(judge: RecipeJudge) -> RecipeJudge:
        assert code not in REGISTRY, f"{code} is taken"
        assert code not in RECIPE_RULES, f"{code} is taken"
        RECIPE_RULES[code] = RecipeRule(
            code=code,
            severity=severity,
            of=of,
            name=judge.__name__,
            text=judge.__doc__ or "",
            judge=judge,
            by_release=by_release,
        )
        choose_for_recipes.cache_clear()
        return judge

    return add


@lru_cache(maxsize=64)
def choose_for_recipes(framework: FrameworkTraits) -> tuple[RecipeRule, ...]:
    """Return the recipe rules of a framework, by code."""
    rules = (rule for _, rule in sorted(RECIPE_RULES.items()) if rule.holds_for(framework))
    return tuple(_of_framework(rule, "judge", framework) for rule in rules)


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that make a point invalid."""
    return [problem for problem in problems if problem.is_error]
