"""The rules of GRPO recipes: one file a family; adding a rule is one decorated function.

``check(setting)`` judges a setting; ``REGISTRY`` lists what there is. A rule reads a setting and plan's formulas on it,
declares the fields it reads, and returns None or what is broken.
"""

from collections.abc import Collection

from grposweep.rules import batch, evaluation, kl, loss, schedule
from grposweep.rules.registry import REGISTRY, Broken, Problem, Rule, Severity, errors
from grposweep.setting import Setting

__all__ = ["REGISTRY", "Broken", "Problem", "Rule", "Severity", "check", "errors"]

FAMILIES = (batch, evaluation, kl, schedule, loss)  # named so that importing this package registers them all


def check(setting: Setting, ignore: Collection[str] = ()) -> list[Problem]:
    """Every problem of a setting, by code; ``ignore`` switches codes or families (``GB``) off."""
    problems = []
    for code, rule in sorted(REGISTRY.items()):
        if code in ignore or code[:2] in ignore:
            continue
        broken = rule.judge(setting)
        if broken is not None:
            problems.append(rule.problem(broken))
    return problems
