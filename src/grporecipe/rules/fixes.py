"""Find fixes: the nearest valid neighbours of an invalid setting, each verified before it is shown.

Kinds of candidates, in order: suggestions of the rule; hardware sizes with the same generations;
other generations; other processes. Within a kind, fewer keys come first, then nearer completions
per optimizer step. A candidate is a fix if it removes the problem, causes no new error, and sets no
key that another error still blames. The first of each kind is shown.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from grporecipe.model import planning
from grporecipe.model.setting import FrameworkTraits, Setting
from grporecipe.model.values import Names
from grporecipe.rules.batch import ROLLOUTS, per_process
from grporecipe.rules.check import Problem, check, errors, find_problems
from grporecipe.rules.evaluation import OWN_GROUPS_CHECKED, evaluation_group
from grporecipe.rules.helpers import FARTHEST, members, nearest_first, show
from grporecipe.rules.registry import ALL_COUNTS, Change, Rule, choose

MOST_FIXES = 3
# of a LoRA that is switched on
USUAL_RANK = 16
MOST_GENERATIONS = 64
MOST_PAIRS = 20_000
TRAIN_BATCH = ("GB101", "GB106", "GB110", "GS104")
EVAL_BATCH = ("GE101", "GE103")
# two keys size the rollout
SIZED_TWICE = ("GB107", "GB501")
UNKNOWN: tuple[None, ...] = (None, None, None)
# The hardware sees these fields of a batch; objective and training do not depend on them.
HARDWARE = frozenset(
    {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "steps_per_generation",
        "generation_batch_size",
    }
)
HARMLESS = frozenset({"per_device_eval_batch_size"})
# the planner may set these besides a change
REALISED = frozenset({"auto", "unsolved", *planning.TRAIN_SIZES, *HARMLESS})


@dataclass(frozen=True)
class Fix:
    """A verified change; ``keys`` are the native keys that a user edits.

    ``safe`` means, as in ruff: the change keeps prompts_per_step x num_generations and the
    objective.
    """

    change: tuple[tuple[str, Any], ...]
    keys: tuple[tuple[str, Any], ...]
    safe: bool = False

    def __str__(self) -> str:
        """Return the change as a user types it."""
        return " ".join(f"{key}={show(value)}" for key, value in self.keys)


def find_fixes(
    s: Setting,
    problem: Problem,
    ignore: Collection[str] = (),
    has_keys: Callable[[Change], bool] = lambda _: True,
) -> list[Fix]:
    """Return up to three fixes of different kinds for an error. Each removes it and causes no new
    error.

    ``has_keys`` returns whether a recipe can state a change.
    """
    if not problem.is_error:
        return []
    verifier = _Verifier(s, problem, tuple(ignore))
    fixes: list[Fix] = []
    for kind in candidates(s, problem):
        for change in kind:
            items = tuple(change.items())
            # a fix that contains another one adds nothing
            is_fresh = all(not set(items).issuperset(fix.change) for fix in fixes)
            if is_fresh and verifier.accepts(change) and has_keys(change):
                keys = tuple((s.key(name), _spell(s, name, value)) for name, value in items)
                fixes.append(Fix(items, keys, is_safe(s, change, problem)))
                break
        if len(fixes) == MOST_FIXES:
            break
    return fixes


def _spell(s: Setting, name: str, value: Any) -> Any:
    """Return a value as its key takes it: LoRA as its rank, where that switches it on."""
    is_rank = name == "lora" and s.key(name) == s.keys.get("lora_rank")
    return USUAL_RANK * value if is_rank else value


def render_problem(s: Setting, problem: Problem, ignore: Collection[str] = ()) -> str:
    """Return the message: what is set, why it cannot work, what to set instead (verified if there
    is a fix).
    """
    fixes = find_fixes(s, problem, ignore)
    advice = problem.broken.instead
    if fixes:
        advice = f"Set {', or '.join(map(str, fixes))}."
    return f"{problem.message}. {advice}"


# Candidates


def candidates(s: Setting, problem: Problem) -> Iterator[Iterable[Change]]:
    """Yield the kinds of neighbours, in the order in which their fixes are shown."""
    if problem.code in TRAIN_BATCH:
        # Any multiple of G fits, so no single size is further away than one group; too few data
        # need less.
        reach = 0 if problem.code == "GS104" else max(s.num_generations, 2)
        yield _hardware_sizes(s, reach)
        yield ({"num_generations": n} for n in _nearest(s.num_generations, MOST_GENERATIONS, 2))
    elif problem.code in EVAL_BATCH:
        size = s.per_device_eval_batch_size
        yield (
            {"per_device_eval_batch_size": n} for n in _nearest(size, size + evaluation_group(s), 1)
        )
        name = "num_generations_eval" if s.version >= OWN_GROUPS_CHECKED else "num_generations"
        yield ({name: n} for n in _nearest(evaluation_group(s), MOST_GENERATIONS, 2))
    else:
        yield from _suggested(problem)
        if problem.code in SIZED_TWICE:
            yield _by_distance(s, _sized_once(s))
    # Then several keys decide how many processes there are.
    is_of_job = bool(s.nodes and s.gpus_per_node) or (s.nodes or 1) > 1
    if problem.rule.counts is not None and s.processes is not None and not is_of_job:
        yield _processes(s, problem)


def _suggested(problem: Problem) -> Iterator[Iterable[Change]]:
    """Yield the rule's own suggestions; those for the same fields are one kind."""
    kinds: dict[Names, list[Change]] = {}
    for change in problem.broken.suggestions:
        kinds.setdefault(tuple(change), []).append(change)
    yield from kinds.values()


def _processes(s: Setting, problem: Problem) -> Iterator[Change]:
    """Return numbers of processes that the broken rule accepts, nearest first."""
    accepts = problem.rule.counts
    assert accepts is not None
    now = s.processes or 1
    mask = accepts(s)
    # if all work, processes are not the problem
    works = [n for n in members(mask) if n != now and mask != ALL_COUNTS]
    return ({"processes": n} for n in nearest_first(works, now))


def _hardware_sizes(s: Setting, reach: int) -> Iterator[Change]:
    """Return hardware sizes (accumulation, per-device, rollout): one key before two, nearest
    completions per step first.
    """
    yield from _by_distance(s, _single_sizes(s, reach))
    if (s.gradient_accumulation_steps + reach) * (
        s.per_device_train_batch_size + reach
    ) <= MOST_PAIRS:
        yield from _by_distance(s, _pairs(s, reach))


def _single_sizes(s: Setting, reach: int) -> Iterator[Change]:
    names = ["gradient_accumulation_steps", "per_device_train_batch_size"]
    if s.steps_per_generation is not None:
        names.append("steps_per_generation")
    for name in names:
        now = getattr(s, name)
        yield from ({name: n} for n in _within(now, now + reach) if n != now)
    if s.generation_batch_size is not None and s.version >= ROLLOUTS:
        yield from _rollouts(s, reach)


def _rollouts(s: Setting, reach: int) -> Iterator[Change]:
    """Return sizes in multiples of a micro-step, and one that leaves the rollout's size to TRL."""
    unit = max(s.per_device_train_batch_size * (s.processes or 1), 1)
    whole = (s.generation_batch_size or 0) // unit
    near = _within(whole, whole + reach, max(whole - reach, 1))
    yield from (
        {"generation_batch_size": unit * n} for n in near if unit * n != s.generation_batch_size
    )
    yield {"generation_batch_size": None}


def _sized_once(s: Setting) -> Iterator[Change]:
    """Return changes that drop one of two keys for the rollout's size and set the other to whole
    groups.
    """
    group = max(s.num_generations, 1)
    steps = s.steps_per_generation or 0
    unit = s.per_device_train_batch_size * (s.processes or 1)
    whole = (n for n in _nearest(steps, steps + max(group, 2), 1) if n * unit % group == 0)
    yield from ({"generation_batch_size": None, "steps_per_generation": n} for n in whole)
    for change in _rollouts(s, max(group, 2)):
        rows = change["generation_batch_size"]
        if rows is not None and rows % group == 0:
            yield {"generation_batch_size": rows, "steps_per_generation": None}


def _pairs(s: Setting, reach: int) -> Iterator[Change]:
    for a in range(1, s.gradient_accumulation_steps + reach + 1):
        for b in range(1, s.per_device_train_batch_size + reach + 1):
            yield {"gradient_accumulation_steps": a, "per_device_train_batch_size": b}


def _nearest(value: int, most: int, least: int) -> list[int]:
    """Return other values in [least, most], nearest first; of equally near ones the smaller
    first.
    """
    return nearest_first((n for n in _within(value, most, least) if n != value), value)


def _within(value: int, most: int, least: int = 1) -> range:
    """Return the part of [least, most] that is near the value: a recipe may hold any number."""
    centre = min(max(value, least), most)
    return range(max(least, centre - FARTHEST), min(most, centre + FARTHEST) + 1)


# Ranking


def _by_distance(s: Setting, changes: Iterable[Change]) -> list[Change]:
    """Sort changes by their distance in completions per optimizer step, then per rollout."""
    processes = s.processes or 1
    step = s.per_device_train_batch_size * s.gradient_accumulation_steps * processes
    rollout = s.generation_batch_size or per_process(s) * processes
    now = {name: getattr(s, name) for name in HARDWARE}

    def distance(change: Change) -> tuple[int, int]:
        after = now | change
        micro_step = after["per_device_train_batch_size"] * processes
        accumulation = after["gradient_accumulation_steps"]
        steps = after["steps_per_generation"] or accumulation
        rows = after["generation_batch_size"] or micro_step * steps
        return abs(accumulation * micro_step - step), abs(rows - rollout)

    return sorted(changes, key=distance)


# Verification


class _Verifier:
    """Verifies changes of one setting. Only rules that read a changed field are judged again."""

    def __init__(self, s: Setting, problem: Problem, ignore: Names) -> None:
        self._s, self._code, self._ignore = s, problem.code, ignore
        self._reads = problem.rule.reads
        if s.processes is None:
            self._before = {other.code for other in errors(check(s, ignore))}
        else:
            self._before = {rule.code for rule in _error_rules(ignore, s.framework) if rule.find(s)}

    def accepts(self, change: Change) -> bool:
        """Return whether a change removes the problem, breaks nothing else, and is not undone by
        the planner.
        """
        s = self._s
        # the change alters nothing that the broken rule reads
        if not self._reads & _touched(s, change):
            return False
        # it would show a key that need not change
        if any(getattr(s, name) == value for name, value in change.items()):
            return False
        after = changed(s, change)
        # with ``auto`` the planner may undo a size
        if any(getattr(after, name) != value for name, value in change.items()):
            return False
        return all(
            other.code in self._before
            and other.code != self._code
            and change.keys().isdisjoint(other.broken.fields)
            for other in self._broken(after, change)
        )

    def _broken(self, after: Setting, change: Change) -> Iterator[Problem]:
        """Return the errors that a change may have left or caused."""
        if after.processes is None:
            yield from errors(check(after, self._ignore))
            return
        affected = _affected(_touched(after, change), self._ignore, after.framework)
        yield from find_problems(affected, after)


def _touched(s: Setting, change: Change) -> frozenset[str]:
    """Return the fields that a change may alter, including those that the planner sets."""
    if s.prompts_per_rollout is not None:
        return frozenset(change) | planning.RESIZED
    return frozenset(change) | REALISED if s.auto else frozenset(change)


@lru_cache(maxsize=64)
def _error_rules(ignore: Names, framework: FrameworkTraits) -> tuple[Rule, ...]:
    return tuple(rule for rule in choose(ignore, (), framework) if rule.severity == "error")


@lru_cache(maxsize=1024)
def _affected(
    touched: frozenset[str], ignore: Names, framework: FrameworkTraits
) -> tuple[Rule, ...]:
    """Return the rules whose verdict may depend on these fields (a test proves what each rule
    reads).
    """
    return tuple(rule for rule in _error_rules(ignore, framework) if rule.reads & touched)


def changed(s: Setting, change: Change) -> Setting:
    """Return the setting after a change, with ``auto`` sizes solved and derived sizes
    recomputed.
    """
    after = s.replace(change)
    if after.prompts_per_rollout is not None:
        return planning.resize(after)
    return planning.realise(after) if after.auto else after


# Whether a fix leaves training unchanged


def is_safe(s: Setting, change: Change, problem: Problem) -> bool:
    """Return whether a change leaves training unchanged: evaluation sizes, keys without effect, an
    equivalent split.
    """
    names = change.keys() - HARMLESS - problem.broken.without_effect
    if not names:
        return True
    after = changed(s, change)
    return names <= HARDWARE and _seen_by_training(after) == _seen_by_training(s) != UNKNOWN


def _seen_by_training(s: Setting) -> tuple[int | Fraction | None, ...]:
    """Return completions per step and per rollout, and steps per rollout; empty if one of them is
    unknown.
    """
    if s.gradient_accumulation_steps < 1 or s.processes is None:
        return UNKNOWN
    return (
        planning.completions_per_step(s),
        planning.completions_per_rollout(s),
        planning.steps_per_rollout(s),
    )
