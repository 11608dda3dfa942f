"""The rules of GRPO recipes: one file a family; adding a rule is one decorated function.

``check(setting)`` judges a setting; ``REGISTRY`` lists what there is. A rule reads a setting and plan's formulas on it,
declares the fields it reads, and returns None or what is broken.
"""

from collections.abc import Collection

from grposweep.rules import (
    advice,
    batch,
    easyr1,
    evaluation,
    kl,
    kl_placement,
    loss,
    memory,
    ms_swift,
    rollout_batch,
    schedule,
    topology,
    verl,
)
from grposweep.rules.registry import FAMILIES, REGISTRY, Problem, Rule, Severity, Violation, choose, errors
from grposweep.rules.unstated import judge_unstated  # last: it counts with all the others
from grposweep.setting import Setting

__all__ = ["FAMILIES", "REGISTRY", "Problem", "Rule", "Severity", "Violation", "check", "errors"]

# Named so that importing this package registers them all.
FILES = (
    advice,
    batch,
    easyr1,
    evaluation,
    kl,
    kl_placement,
    loss,
    memory,
    ms_swift,
    rollout_batch,
    schedule,
    topology,
    verl,
)


def check(setting: Setting, ignore: Collection[str] = (), select: Collection[str] = ()) -> list[Problem]:
    """Every problem of a setting, by code.

    ``ignore`` switches codes or families (``GB``) off; ``select`` switches all others off, unless it is empty.
    """
    rules = choose(tuple(ignore), tuple(select), setting.framework)
    if setting.processes is None:
        return _check_unstated(setting, rules)
    return [rule.problem(broken) for rule in rules if (broken := rule.judge(setting)) is not None]


def _check_unstated(setting: Setting, rules: tuple[Rule, ...]) -> list[Problem]:
    """The same without a number of processes: what depends on it is judged for 1 to 64 of them."""
    found = [
        rule.problem(broken) for rule in rules if rule.code != "GT201" and (broken := rule.judge(setting)) is not None
    ]
    known = {problem.code for problem in found}
    found += [problem for problem in judge_unstated(setting, rules) if problem.code not in known]
    return sorted(found, key=lambda problem: problem.code)
