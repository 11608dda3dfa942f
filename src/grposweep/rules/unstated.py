"""GT201: a recipe that does not say how many processes train, the commonest of all, is judged for 1 to 64 of them."""

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from grposweep.rules import process_counts as counts
from grposweep.rules.registry import REGISTRY, Problem, Rule, Violation, rule
from grposweep.setting import EVERY, Setting

COUNTING = tuple(rule for _, rule in sorted(REGISTRY.items()) if rule.counts is not None)


def working(s: Setting, rules: Iterable[Rule] = COUNTING) -> int:
    """The numbers of processes that satisfy all of these rules, as a mask."""
    return reduce(lambda mask, rule: mask & rule.counts(s) if rule.counts else mask, rules, counts.ALL)


@rule("GT201", "warning", {"framework", "processes"}.union(*(rule.reads for rule in COUNTING)), of=EVERY)
def the_processes_are_stated(s: Setting) -> Violation | None:
    """Whether a batch fits depends on the number of training processes, which the recipe does not state.

    Judged for 1 to 64: nothing is said where all work, this warning names those that do, and only where none works it is
    an error (of the rule that is broken, with its fixes). GPUs of a vLLM server are no training processes: 8 GPUs with
    one for the server are 7.
    """
    return None if s.processes is not None else _some(s, (rule for rule in COUNTING if rule.holds_for(s.framework)))


def judge_unstated(s: Setting, rules: tuple[Rule, ...]) -> list[Problem]:
    """What the counting rules among ``rules`` say about a setting without a number of processes."""
    counting = [rule for rule in rules if rule.counts is not None]
    mask = working(s, counting)
    if mask == counts.ALL:
        return []
    if mask == counts.NONE:
        return _none(s, counting)
    warning, broken = REGISTRY["GT201"], _some(s, counting)
    return [warning.problem(broken)] if broken is not None and warning in rules else []


def _some(s: Setting, rules: Iterable[Rule]) -> Violation | None:
    refusing = [(rule.code, mask) for rule in rules if rule.counts and (mask := rule.counts(s)) != counts.ALL]
    mask = reduce(lambda a, b: a & b[1], refusing, counts.ALL)
    if mask in (counts.ALL, counts.NONE):
        return None
    return Violation(
        what="the number of training processes is not stated",
        why=f"of 1 to {counts.MOST}, {counts.describe(mask)} work ({', '.join(code for code, _ in refusing)} "
        f"{'refuses' if len(refusing) == 1 else 'refuse'} the others)",
        instead="Say how many there are (--processes), or launch with one of these.",
        fields=("processes",),
    )


def _none(s: Setting, rules: Iterable[Rule]) -> list[Problem]:
    """What is wrong with one process, where no number would do."""
    one = s.altered({"processes": 1})
    found = [(rule, broken) for rule in rules if (broken := rule.judge(one)) is not None]
    note = f"; and no number of processes from 1 to {counts.MOST} would do"
    return [rule.problem(replace(broken, why=broken.why + note)) for rule, broken in found]
