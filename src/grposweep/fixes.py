"""The nearest valid neighbours of a broken setting, each re-validated before anybody sees it.

Order (kinds): what a rule itself suggests; hardware sizes with the generations kept; other generations; other processes.
Within a kind: fewest keys, then nearest in completions per step.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from grposweep import plan
from grposweep.rules import Problem, check, errors
from grposweep.setting import Setting

Change = dict[str, Any]  # setting field -> new value
MOST_PROCESSES = 64
MOST_GENERATIONS = 64


@dataclass(frozen=True)
class Fix:
    """A verified change; ``keys`` are the native keys a person edits."""

    change: tuple[tuple[str, Any], ...]
    keys: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        """The change as one types it."""
        return " ".join(f"{key}={_render(value)}" for key, value in self.keys)


def find_fixes(s: Setting, problem: Problem, ignore: Collection[str] = ()) -> list[Fix]:
    """Up to three fixes of different kinds for an error: each ends this problem and causes no error of its own."""
    if problem.severity != "error":
        return []
    before = {other.code for other in errors(check(s, ignore))}

    def mends(change: Change) -> bool:
        mended = changed(s, change)
        after = {other.code for other in errors(check(mended, ignore))}
        kept = all(getattr(mended, name) == value for name, value in change.items())  # auto may take a size back
        return kept and problem.code not in after and after <= before

    kinds = _suggested(s, problem) if problem.broken.suggestions else _kinds(s, problem)
    found = (next((change for change in kind if mends(change)), None) for kind in kinds)
    return [build_fix(s, change) for change in found if change is not None][:3]


def changed(s: Setting, change: Change) -> Setting:
    """The setting after a change, its ``auto`` sizes solved again."""
    return plan.realise(replace(s, **change))


def build_fix(s: Setting, change: Change) -> Fix:
    """A change with the native keys behind its fields."""
    return Fix(tuple(change.items()), tuple((s.key(name), value) for name, value in change.items()))


def render_problem(s: Setting, problem: Problem, ignore: Collection[str] = ()) -> str:
    """The three parts: what is set, why it cannot work, what to set instead (verified where there is a fix)."""
    fixes = find_fixes(s, problem, ignore)
    advice = f"Set {', or '.join(str(fix) for fix in fixes)}." if fixes else problem.broken.instead
    return f"{problem.message}. {advice}"


def _suggested(s: Setting, problem: Problem) -> list[Iterable[Change]]:
    """The rule's own suggestions, a kind each; one that repeats what is set already would show a needless key."""
    return [
        (change,)
        for change in problem.broken.suggestions
        if all(getattr(s, name) != value for name, value in change.items())
    ]


def _kinds(s: Setting, problem: Problem) -> list[Iterable[Change]]:
    """The neighbourhoods of a batch that does not fit: sizes, generations, processes."""
    if problem.code == "GE101":
        sizes: Iterable[Change] = _evaluation_sizes(s)
        generations: Iterable[Change] = ({"num_generations_eval": n} for n in _nearest(_group(s), MOST_GENERATIONS, 2))
    else:
        sizes = _hardware_sizes(s)
        generations = ({"num_generations": n} for n in _nearest(s.num_generations, MOST_GENERATIONS, 2))
    processes = ({"processes": n} for n in _nearest(s.processes or 1, MOST_PROCESSES, 1))
    return [sizes, generations, processes]


def _group(s: Setting) -> int:
    return s.num_generations_eval or s.num_generations


def _nearest(value: int, most: int, least: int) -> list[int]:
    """Other values in [least, most], nearest first, the smaller of two first."""
    return sorted((n for n in range(least, most + 1) if n != value), key=lambda n: (abs(n - value), n))


def _evaluation_sizes(s: Setting) -> Iterator[Change]:
    """Evaluation sizes, nearest first: none is further away than one whole group."""
    size = s.per_device_eval_batch_size
    yield from ({"per_device_eval_batch_size": n} for n in _nearest(size, size + _group(s), 1))


def _hardware_sizes(s: Setting) -> list[Change]:
    """Accumulation, per-device size or steps per generation: one key before two, nearest completions a step first.

    No single size is further away than one more group, because any multiple of G fits.
    """
    reach = max(s.num_generations, 2)
    values: dict[str, range] = {
        "gradient_accumulation_steps": range(1, s.gradient_accumulation_steps + reach + 1),
        "per_device_train_batch_size": range(1, s.per_device_train_batch_size + reach + 1),
    }
    if s.steps_per_generation is not None:
        values["steps_per_generation"] = range(1, s.steps_per_generation + reach + 1)
    now = plan.completions_per_step(s) or 0

    def distance(change: Change) -> tuple[int, int]:
        after = replace(s, **change)
        return abs((plan.completions_per_step(after) or 0) - now), abs((plan.completions_per_rollout(after) or 0) - now)

    single = [{name: n} for name, ns in values.items() for n in ns if n != getattr(s, name)]
    pairs = (
        [
            {"gradient_accumulation_steps": a, "per_device_train_batch_size": b}
            for a, b in product(values["gradient_accumulation_steps"], values["per_device_train_batch_size"])
        ]
        if reach <= MOST_GENERATIONS
        else []
    )
    return sorted(single, key=distance) + sorted(pairs, key=distance)


def _render(value: Any) -> str:
    """A value as Hydra and YAML take it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
