"""Warm start: what earlier sweeps found, taken over once, at the first start, into warm_start.json.

An earlier trial is a point of this space if some point here learns the same: same prompts per step,
generations, rates and so on, with any processes and per-device sizes that realise them. Its result
is an observation where model and schedule are the same as well; with others the best points are
still tried first. Nothing of it enters the sweep's own study.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.files import Json, read_json, set_aside, write_json
from grposweep.config.compose import load_experiment
from grposweep.config.identity import OBJECTIVE, ResolvedConfig, is_same_point, numbers, sizes
from grposweep.schema import GROUPS, Experiment, Search, Task, value_at
from grposweep.search.space import Interval, Label, Parameter, Point, Space, freeze
from grposweep.search.validity import Validator
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder, find_sweep
from grposweep.storage.inputs import Inputs, TrialInputs
from grposweep.storage.records import as_mapping, read_fields
from grposweep.sweep.validate import ValidatedSpace

logger = logging.getLogger(__name__)
# points of an earlier sweep that are tried again: the best ones
FIRST = 3
# points of this space an earlier trial, where many options could realise it
MOST_LOOKED_AT = 2000


@dataclass(frozen=True)
class Observation:
    """An earlier trial's point in this space, and its value."""

    point: Json
    value: float
    sweep: str
    trial: int


@dataclass(frozen=True)
class WarmStart:
    """The result of a warm start: points to try first, and results for the sampler."""

    first: Sequence[Point] = ()
    observations: Sequence[Observation] = ()


def named_sweeps(search: Search) -> list[str]:
    """``search.warm_start`` as a list: one name, several, or none."""
    wanted = search.warm_start
    return (
        []
        if wanted is None
        else [wanted]
        if isinstance(wanted, str)
        else [str(name) for name in wanted]
    )


def check_sources(base: Experiment, space: Space, inputs: Inputs) -> list[Json]:
    """The sweeps that are to be taken over, as the provenance names them.

    Raises UserError for one that is not there, that optimised something else, or on another task.
    """
    return [
        _check(find_sweep(name, Path(base.outputs)), base, space, inputs)
        for name in named_sweeps(base.search)
    ]


def _check(source: SweepFolder, base: Experiment, space: Space, inputs: Inputs) -> Json:
    settings = source.settings() or {}
    ours = {name: getattr(base.search, name) for name in OBJECTIVE}
    theirs = {"at": "last", **as_mapping(settings.get("search"))}
    other = {name: theirs.get(name) for name in ours if theirs.get(name) != ours[name]}
    if other:
        there = " ".join(f"search.{name}={value}" for name, value in other.items())
        here = " ".join(f"search.{name}={ours[name]}" for name in other)
        raise UserError(
            f"search.warm_start: {source.path.name} optimised something else ({there}; here "
            f"{here}), and its values cannot "
            "be compared with ours. Set the same objective, or leave that sweep out."
        )
    task = as_mapping(settings.get("baseline")).get("task")
    searched = {parameter.name.split(".")[0] for parameter in space.parameters}
    # Keys that are new since that sweep had their defaults; how often a prompt is answered only
    # moves the noise.
    task = (
        {**asdict(Task()), **task}
        if isinstance(task, dict) and "task" not in searched
        else asdict(base.task)
    )
    unlike = [name for name, value in asdict(base.task).items() if task[name] != value]
    keys = ", ".join(f"task.{name}" for name in unlike if name != "eval_generations")
    if keys:
        raise UserError(
            f"search.warm_start: {source.path.name} was on another task ({keys} differ), and its "
            "values cannot be compared with ours. Leave that sweep out."
        )
    changed = [_changed_files(folder, inputs) for folder, _ in _finished(source)]
    if changed and all(changed):
        raise UserError(
            f"search.warm_start: {source.path.name} was on other contents of "
            f"{', '.join(changed[0])}, and its values cannot be "
            "compared with ours. Restore the files, or leave that sweep out."
        )
    return {"sweep": str(source.path), "identity": settings.get("identity")}


def _changed_files(folder: TrialFolder, now: Inputs) -> list[str]:
    """Return the reward and data files of an earlier trial that have other contents now."""
    return TrialInputs.read(folder.path).over(Inputs()).changed(now)


def open_warm_start(folder: SweepFolder, space: ValidatedSpace, inputs: Inputs) -> WarmStart:
    """Read the warm start of the first start, or create it now."""
    path = folder.path / paths.WARM_START
    warm = _read(path)
    if warm is None and named_sweeps(space.base.search):
        if os.path.lexists(path):
            logger.warning(
                "%s is damaged and set aside as %s; it is made again",
                path.name,
                set_aside(path).name,
            )
        warm = _take_over(space, inputs)
        write_json(path, asdict(warm))
    return warm or WarmStart()


def _read(path: Path) -> WarmStart | None:
    """Return the content of a file; None if it is missing or damaged."""
    content = read_json(path) or {}
    try:
        first = [dict(point) for point in content["first"]]
        lines = [read_fields(Observation, line) for line in content["observations"]]
        return WarmStart(first, [Observation(**line) for line in lines])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def describe_warm_start(warm: WarmStart) -> str:
    """Describe in one line what earlier sweeps contribute."""
    sweeps = (
        ", ".join(sorted({seen.sweep for seen in warm.observations}))
        or "sweeps of another model, precision or schedule"
    )
    return (
        f"warm start: {len(warm.first)} points tried first, {len(warm.observations)} results "
        f"of {sweeps} known to the sampler"
    )


def _take_over(space: ValidatedSpace, inputs: Inputs) -> WarmStart:
    base = space.base
    first: dict[object, Point] = {}
    observations: list[Observation] = []
    for name in named_sweeps(base.search):
        source = find_sweep(name, Path(base.outputs))
        finished = [
            (folder, value)
            for folder, value in _finished(source)
            if not _changed_files(folder, inputs)
        ]
        ranked = sorted(
            finished, key=lambda pair: pair[1], reverse=base.search.direction == "maximize"
        )
        places = ((folder, value, _place(folder, space.validator)) for folder, value in ranked)
        placed = [(folder, value, *place) for folder, value, place in places if place is not None]
        best = list({freeze(point): point for _, _, point, _ in placed}.values())[:FIRST]
        first |= {freeze(point): point for point in best}
        observations += [
            Observation(point, value, source.path.name, folder.number)
            for folder, value, point, is_alike in placed
            if is_alike
        ]
    return WarmStart(
        list(first.values()), sorted(observations, key=lambda seen: (seen.sweep, seen.trial))
    )


def _finished(source: SweepFolder) -> Iterator[tuple[TrialFolder, float]]:
    """The finished trials of an earlier search; replicates of its leaders would tell their points
    twice.
    """
    for folder in source.trials():
        role = folder.record.attributes.get("role") if folder.record is not None else None
        value = folder.result.value
        if value is not None and role is None:
            yield folder, value


def _place(folder: TrialFolder, validator: Validator) -> tuple[Point, bool] | None:
    """The point of this space that learns what an earlier trial learnt, and whether their results
    are alike; None: none.
    """
    try:
        past = ResolvedConfig.of(load_experiment(folder.path / paths.CONFIG))
    except (OSError, UserError):
        # of a version with other keys, or damaged
        return None
    wanted = past.learning()
    past_numbers = numbers(past.setting)
    # its own value of a parameter, or every option if that has to be tried
    candidates = validator.space.combinations(lambda parameter: _labels(parameter, past))
    for point in islice(candidates, MOST_LOOKED_AT):
        if numbers(validator.fields.setting(point)) != past_numbers or not validator.is_valid(
            point
        ):
            continue
        content = validator.validate(point).config.learning()
        if is_same_point(content, wanted):
            return point, content == wanted
    return None


def _labels(parameter: Parameter, past: ResolvedConfig) -> Sequence[Label]:
    name, domain, realised = parameter.name, parameter.domain, sizes(past.setting)
    value = value_at(past.experiment, name)
    if name == "batch.prompts_per_step":
        value = realised["prompts_per_step"]
    if isinstance(domain, Interval):
        is_inside = isinstance(value, int | float) and domain.low <= value <= domain.high
        return [int(value) if domain.integer else float(value)] if is_inside else []
    is_realised = name.startswith(("batch.", "cluster.")) and name.split(".")[1] not in realised
    if name in GROUPS or is_realised:
        return domain.labels
    return [label for label, own in zip(domain.labels, domain.values, strict=True) if own == value]
