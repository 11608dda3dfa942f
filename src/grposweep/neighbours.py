"""Where fixes come from: the neighbourhoods of a broken setting, kind by kind, nearest first. None of them is verified here."""

from collections.abc import Iterable, Iterator
from typing import Any

from grposweep.rules import REGISTRY, Problem, counts
from grposweep.rules.batch import ROLLOUTS, per_process
from grposweep.rules.evaluation import OWN_GROUPS_CHECKED, evaluation_group
from grposweep.setting import Setting

Change = dict[str, Any]  # setting field -> new value
MOST_GENERATIONS = 64
FARTHEST = 1024  # how far from a number its neighbours are looked for
MOST_PAIRS = 20_000
TRAIN_BATCH = ("GB101", "GB106", "GB110", "GS104")
EVAL_BATCH = ("GE101", "GE103")


def find_kinds(s: Setting, problem: Problem) -> Iterator[Iterable[Change]]:
    """The kinds of neighbours to look at, in the order in which their fixes are shown."""
    if problem.code in TRAIN_BATCH:
        # No single size is further away than one more group, because any multiple of G fits; too few data need less.
        yield _hardware_sizes(s, reach=0 if problem.code == "GS104" else max(s.num_generations, 2))
        yield ({"num_generations": n} for n in _nearest(s.num_generations, MOST_GENERATIONS, 2))
    elif problem.code in EVAL_BATCH:
        yield _evaluation_sizes(s)
        name = "num_generations_eval" if s.version >= OWN_GROUPS_CHECKED else "num_generations"
        yield ({name: n} for n in _nearest(evaluation_group(s), MOST_GENERATIONS, 2))
    else:
        yield from _suggested(problem)
    if REGISTRY[problem.code].counts is not None and s.processes is not None:
        yield _processes(s, problem)


def _suggested(problem: Problem) -> Iterator[Iterable[Change]]:
    """The rule's own suggestions; those of the same fields are one kind."""
    kinds: dict[tuple[str, ...], list[Change]] = {}
    for change in problem.broken.suggestions:
        kinds.setdefault(tuple(change), []).append(change)
    yield from kinds.values()


def _processes(s: Setting, problem: Problem) -> Iterator[Change]:
    """Numbers of processes that the broken rule accepts, nearest first."""
    accepts = REGISTRY[problem.code].counts
    assert accepts is not None
    now, mask = s.processes or 1, accepts(s)
    works = [n for n in counts.members(mask) if n != now and mask != counts.ALL]  # all: they are not what is wrong
    return ({"processes": n} for n in sorted(works, key=lambda n: (abs(n - now), n)))


def _nearest(value: int, most: int, least: int) -> list[int]:
    """Other values in [least, most], nearest first, the smaller of two first."""
    return sorted((n for n in _within(value, most, least) if n != value), key=lambda n: (abs(n - value), n))


def _within(value: int, most: int, least: int = 1) -> range:
    """The part of [least, most] where a neighbour is worth looking for: a recipe may hold any number."""
    centre = min(max(value, least), most)
    return range(max(least, centre - FARTHEST), min(most, centre + FARTHEST) + 1)


def _evaluation_sizes(s: Setting) -> Iterator[Change]:
    """Evaluation sizes, nearest first: none is further away than one whole group."""
    size = s.per_device_eval_batch_size
    return ({"per_device_eval_batch_size": n} for n in _nearest(size, size + evaluation_group(s), 1))


def _hardware_sizes(s: Setting, reach: int) -> Iterator[Change]:
    """Accumulation, per-device size, or what sizes the rollout: one key before two, nearest completions a step first."""
    yield from _by_distance(s, _single_sizes(s, reach))
    if (s.gradient_accumulation_steps + reach) * (s.per_device_train_batch_size + reach) <= MOST_PAIRS:
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
    """Multiples of a micro-step, and leaving the size of the rollout to TRL."""
    unit = max(s.per_device_train_batch_size * (s.processes or 1), 1)
    whole = (s.generation_batch_size or 0) // unit
    near = _within(whole, whole + reach, max(whole - reach, 1))
    yield from ({"generation_batch_size": unit * n} for n in near if unit * n != s.generation_batch_size)
    yield {"generation_batch_size": None}


def _pairs(s: Setting, reach: int) -> Iterator[Change]:
    for a in range(1, s.gradient_accumulation_steps + reach + 1):
        for b in range(1, s.per_device_train_batch_size + reach + 1):
            yield {"gradient_accumulation_steps": a, "per_device_train_batch_size": b}


def _by_distance(s: Setting, changes: Iterable[Change]) -> list[Change]:
    """Nearest completions per optimizer step first, then nearest completions per rollout."""
    size, accumulation, processes = s.per_device_train_batch_size, s.gradient_accumulation_steps, s.processes or 1
    step = size * accumulation * processes
    rollout = s.generation_batch_size or per_process(s) * processes

    def distance(change: Change) -> tuple[int, int]:
        b = change.get("per_device_train_batch_size", size)
        a = change.get("gradient_accumulation_steps", accumulation)
        rows = change.get("generation_batch_size", s.generation_batch_size)
        rows = rows or b * (change.get("steps_per_generation", s.steps_per_generation) or a) * processes
        return abs(a * b * processes - step), abs(rows - rollout)

    return sorted(changes, key=distance)
