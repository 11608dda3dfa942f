"""The nearest valid neighbours of a broken setting, each re-validated before anybody sees it.

Order (kinds): what a rule itself suggests; hardware sizes with the generations kept; other generations; other processes.
Within a kind: fewest keys, then nearest in completions per step. Where they come from is in ``neighbours``.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from grposweep import plan
from grposweep.neighbours import Change, find_kinds
from grposweep.rules import REGISTRY, Problem, check, errors
from grposweep.rules.registry import Rule, choose
from grposweep.setting import Setting

MOST_FIXES = 3
UNKNOWN: tuple[None, ...] = (None, None, None)
# What the hardware sees of a batch, and what neither the objective nor training reads.
HARDWARE = frozenset(
    {"per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"}
)
HARMLESS = frozenset({"per_device_eval_batch_size"})
REALISED = frozenset({"auto", "unsolved", *plan.TRAIN_SIZES, *HARMLESS})  # what the planner may set besides a change


@dataclass(frozen=True)
class Fix:
    """A verified change; ``keys`` are the native keys a person edits.

    ``safe`` as in ruff: it keeps prompts_per_step x num_generations and the objective.
    """

    change: tuple[tuple[str, Any], ...]
    keys: tuple[tuple[str, Any], ...]
    safe: bool = False

    def __str__(self) -> str:
        """The change as one types it."""
        return " ".join(f"{key}={_render(value)}" for key, value in self.keys)


def find_fixes(s: Setting, problem: Problem, ignore: Collection[str] = ()) -> list[Fix]:
    """Up to three fixes of different kinds for an error: each ends this problem and causes no error of its own."""
    if problem.severity != "error" or problem.code not in REGISTRY:  # rules on recipes bring fixes of their own
        return []
    verify = _Verifier(s, problem, tuple(ignore))
    found: list[Fix] = []
    for kind in find_kinds(s, problem):
        known = [set(fix.change) for fix in found]  # a fix with more than one of these changes says nothing new
        fresh = (change for change in kind if not any(less <= set(change.items()) for less in known))
        change = next((change for change in fresh if verify.mends(change)), None)
        if change is not None:
            found.append(build_fix(s, change, problem))
        if len(found) == MOST_FIXES:
            break
    return found


class _Verifier:
    """Tries changes of one setting; only rules that read what a change touches are judged again."""

    def __init__(self, s: Setting, problem: Problem, ignore: tuple[str, ...]) -> None:
        self._s, self._code, self._ignore = s, problem.code, ignore
        self._reads = REGISTRY[problem.code].reads
        if s.processes is None:
            self._before = {other.code for other in errors(check(s, ignore))}
        else:
            self._before = {rule.code for rule in _error_rules(ignore, s.framework) if rule.judge(s) is not None}

    def mends(self, change: Change) -> bool:
        """Whether the problem is gone, nothing else broke, and the change says something that lasts."""
        s = self._s
        if not self._reads & _touched(s, change):  # nothing that the broken rule reads
            return False
        if any(getattr(s, name) == value for name, value in change.items()):  # would show a needless key
            return False
        mended = changed(s, change)
        if any(getattr(mended, name) != value for name, value in change.items()):  # auto may take a size back
            return False
        return all(code in self._before and code != self._code for code in self._broken(mended, change))

    def _broken(self, mended: Setting, change: Change) -> Iterator[str]:
        """The codes of the errors that a change may have left or caused."""
        if mended.processes is None or self._s.processes is None:
            yield from (other.code for other in errors(check(mended, self._ignore)))
            return
        for rule in _affected(_touched(mended, change), self._ignore, mended.framework):
            if rule.judge(mended) is not None:
                yield rule.code


def _touched(s: Setting, change: Change) -> frozenset[str]:
    """The fields that a change may alter, the planner's included."""
    if s.prompts_per_rollout is not None:
        return frozenset(change) | plan.RESIZED
    return frozenset(change) | REALISED if s.auto else frozenset(change)


@lru_cache(maxsize=64)
def _error_rules(ignore: tuple[str, ...], framework: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in choose(ignore, (), framework) if rule.severity == "error")


@lru_cache(maxsize=1024)
def _affected(touched: frozenset[str], ignore: tuple[str, ...], framework: str) -> tuple[Rule, ...]:
    """The rules whose verdict a change of these fields can alter: what a rule reads is proven by a test."""
    return tuple(rule for rule in _error_rules(ignore, framework) if rule.reads & touched)


def changed(s: Setting, change: Change) -> Setting:
    """The setting after a change, its ``auto`` sizes solved and its derived ones made again."""
    after = s.altered(change)
    if after.prompts_per_rollout is not None:
        return plan.resize(after)
    return plan.realise(after) if after.auto else after


def build_fix(s: Setting, change: Change, problem: Problem | None = None) -> Fix:
    """A change with the native keys behind its fields."""
    return Fix(
        tuple(change.items()),
        tuple((s.key(name), value) for name, value in change.items()),
        is_safe(s, change, problem),
    )


def is_safe(s: Setting, change: Change, problem: Problem | None = None) -> bool:
    """Whether training stays what it was meant to be: evaluation sizes, words without effect, an equivalent split."""
    free = HARMLESS | (problem.broken.without_effect if problem else frozenset())
    names = change.keys() - free
    if not names:
        return True
    after = changed(s, change)
    return names <= HARDWARE and _seen_by_training(after) == _seen_by_training(s) != UNKNOWN


def _seen_by_training(s: Setting) -> tuple[int | Fraction | None, ...]:
    """Completions a step and a rollout, and optimizer steps a rollout is used for; nothing where something is unknown."""
    if s.gradient_accumulation_steps < 1 or s.processes is None:
        return UNKNOWN
    return plan.completions_per_step(s), plan.completions_per_rollout(s), plan.steps_per_rollout(s)


def render_problem(s: Setting, problem: Problem, ignore: Collection[str] = ()) -> str:
    """The three parts: what is set, why it cannot work, what to set instead (verified where there is a fix)."""
    fixes = find_fixes(s, problem, ignore)
    advice = f"Set {', or '.join(str(fix) for fix in fixes)}." if fixes else problem.broken.instead
    return f"{problem.message}. {advice}"


def _render(value: Any) -> str:
    """A value as Hydra and YAML take it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
