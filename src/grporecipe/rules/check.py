"""Judge settings and recipes by all rules: the generic ones in ``rules/``, and each framework's
own.

A file of rules registers them when it is imported. This module imports all of them: everything in
``rules/``, and in the folder of each framework every module whose name ends in ``rules``. A new
file needs no further line.
"""

from collections.abc import Collection, Iterable, Iterator
from importlib import import_module
from pathlib import Path

from grporecipe import rules
from grporecipe.model.framework import find_framework
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import EVERY, Setting
from grporecipe.registries import FRAMEWORKS
from grporecipe.rules.helpers import NO_COUNT, describe_counts
from grporecipe.rules.registry import (
    ALL_COUNTS,
    MOST_PROCESSES,
    RECIPE_RULES,
    REGISTRY,
    Problem,
    RecipeRule,
    Rule,
    Violation,
    choose,
    choose_for_recipes,
    errors,
    rule,
)

__all__ = [
    "RECIPE_RULES",
    "REGISTRY",
    "Problem",
    "RecipeRule",
    "Rule",
    "check",
    "errors",
    "recipe_rules",
]


# modules of this package that apply rules, and define none
APPLY = ("check", "fixes")


def _import_rules() -> None:
    """Import every module of this package, and of each framework those whose names end in
    ``rules``.
    """
    frameworks = sorted(entry.target.partition(":")[0] for entry in FRAMEWORKS.values())
    places = [(rules.__name__, "[!_]*.py"), *((module, "*rules.py") for module in frameworks)]
    for package, pattern in places:
        folder = Path(import_module(package).__path__[0])
        for path in sorted(folder.glob(pattern)):
            if path.stem not in APPLY or package != rules.__name__:
                import_module(f"{package}.{path.stem}")


_import_rules()


def check(
    setting: Setting, ignore: Collection[str] = (), select: Collection[str] = ()
) -> list[Problem]:
    """Return every problem of a setting, by code.

    ``ignore`` switches codes or families (``GB``) off; ``select`` switches all others off, unless
    it is empty. Without a number of processes, what depends on it is judged for 1 to 64 of them.
    """
    chosen = choose(tuple(ignore), tuple(select), setting.framework)
    if setting.unknown:
        chosen = tuple(rule for rule in chosen if not rule.reads & setting.unknown)
    if setting.processes is not None:
        return list(find_problems(chosen, setting))
    # UNSTATED is judged for the chosen rules alone
    others = [rule for rule in chosen if rule.code != UNSTATED]
    problems = {problem.code: problem for problem in _judge_unstated(setting, chosen)}
    problems |= {problem.code: problem for problem in find_problems(others, setting)}
    return [problems[code] for code in sorted(problems)]


def find_problems(chosen: Iterable[Rule], s: Setting, note: str = "") -> Iterator[Problem]:
    """Yield the problems of a setting by some rules."""
    for each in chosen:
        answer = each.find(s)
        if answer:
            yield Problem(each, s, answer, note)


def recipe_rules(recipe: Recipe) -> tuple[RecipeRule, ...]:
    """Return the recipe rules of a recipe's framework."""
    return choose_for_recipes(find_framework(recipe.framework).traits)


# Most recipes do not state their processes. They are judged for 1 to 64 of them.

UNSTATED = "GT201"


@rule(
    UNSTATED,
    "note",
    {"framework", "processes"}.union(*(rule.reads for rule in REGISTRY.values() if rule.counts)),
    of=EVERY,
)
def the_processes_are_stated(s: Setting) -> Violation | None:
    """Whether a batch fits depends on the number of training processes, which the recipe does not
    state.

    The batch is judged for 1 to 64 processes. If all work, nothing is reported. If some do, this
    note names them. If none works, it is an error of the broken rule, with its fixes. GPUs of a
    vLLM server are not training processes: 8 GPUs with one for the server are 7.
    """
    if s.processes is not None:
        return None
    return _name_those_that_work(*_refusing(s, choose((), (), s.framework)))


def _judge_unstated(s: Setting, chosen: tuple[Rule, ...]) -> list[Problem]:
    """Judge a setting without a number of processes by the rules that count them."""
    codes, mask = _refusing(s, chosen)
    # report what is wrong with one process
    if mask == NO_COUNT:
        one = s.replace({"processes": 1})
        note = f"; and no number of processes from 1 to {MOST_PROCESSES} would do"
        return list(find_problems([rule for rule in chosen if rule.counts], one, note))
    some = _name_those_that_work(codes, mask)
    return [Problem(rule, s, some) for rule in chosen if some is not None and rule.code == UNSTATED]


def _refusing(s: Setting, chosen: Iterable[Rule]) -> tuple[list[str], int]:
    """Return the rules that refuse some number of processes, and a mask of the numbers that all
    rules accept.
    """
    refusing = []
    accepted = ALL_COUNTS
    for each in chosen:
        mask = each.counts(s) if each.counts else ALL_COUNTS
        if mask != ALL_COUNTS:
            refusing.append(each.code)
            accepted &= mask
    return refusing, accepted


def _name_those_that_work(refusing: list[str], mask: int) -> Violation | None:
    """Describe the numbers of processes that work, if some do and some do not."""
    if mask in (ALL_COUNTS, NO_COUNT):
        return None
    return Violation(
        "the number of training processes is unknown",
        f"{describe_counts(mask)} work; others break {' and '.join(refusing)}",
        "Pass --processes N.",
        ("processes",),
    )
