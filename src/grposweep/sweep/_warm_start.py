"""Warm start: what earlier sweeps found, taken over once, at the first start, into warm_start.json.

An earlier trial is a point of this space if some point here learns the same: same prompts per step,
generations, rates and so on, with any processes and per-device sizes that realise them. Its result
is an observation where model, task, files and schedule are the same as well; with others the best
points are still tried first. Nothing of it enters the sweep's own study.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from grporecipe.errors import UserError
from grporecipe.files import Json, read_json, set_aside, write_json
from grposweep.config.compose import escape, load_experiment, quoted
from grposweep.config.identity import OBJECTIVE, ResolvedConfig, is_same_point, numbers, sizes
from grposweep.schema import AUTO, GROUPS, Experiment, Search, value_at
from grposweep.search.space import Interval, Label, Parameter, Point, Space, freeze
from grposweep.search.validity import Validator
from grposweep.storage import paths
from grposweep.storage.folders import (
    SweepFolder,
    TrialFolder,
    find_sweep,
    find_sweeps,
    last_change,
    remembered,
)
from grposweep.storage.inputs import Inputs, TrialInputs
from grposweep.storage.records import as_mapping, read_fields
from grposweep.sweep.validate import ValidatedSpace

logger = logging.getLogger(__name__)
# points of an earlier sweep that are tried again: the best ones
FIRST = 3
# points of this space an earlier trial, where many options could realise it
MOST_LOOKED_AT = 2000


# benchmarks/curves/RESULTS.md
GAIN = "replayed sweeps of 3 to 7 trainings then lacked a third to a half less of the best"


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

    # the names of the earlier sweeps
    sources: Sequence[str] = ()
    first: Sequence[Point] = ()
    observations: Sequence[Observation] = ()


def find_sources(folder: SweepFolder, base: Experiment, space: Space) -> list[SweepFolder]:
    """Return the sweeps that ``search.warm_start`` names: one, several, or none.

    Raises UserError for one that is not there, or that optimised something else.
    """
    wanted = base.search.warm_start
    if wanted is None:
        return []
    if wanted == AUTO:
        return list(islice(find_earlier(folder, base, space), 1))
    names = wanted if isinstance(wanted, list) else [wanted]
    sources = [find_sweep(str(name), Path(base.outputs)) for name in names]
    for source in sources:
        other = _other_objective(source.settings() or {}, base.search)
        if other:
            keys = ", ".join(
                f"search.{name}={value}, here {getattr(base.search, name)}"
                for name, value in other.items()
            )
            raise UserError(
                f"search.warm_start: {source.path.name} optimised something else ({keys}), and its "
                "values cannot be compared with ours. Set the same objective, or leave that sweep "
                "out."
            )
    return sources


def describe_source(sweep: SweepFolder) -> Json:
    """Return an earlier sweep as the provenance names it."""
    return {"sweep": str(sweep.path), "identity": (sweep.settings() or {}).get("identity")}


def find_earlier(folder: SweepFolder, base: Experiment, space: Space) -> Iterator[SweepFolder]:
    """Yield the user's other sweeps of the same model, objective and space, the newest first."""
    outputs = Path(base.outputs).resolve()
    sweeps = set[SweepFolder]()
    for parent in (outputs, *remembered()):
        # another user's folder hides no other
        with suppress(UserError):
            sweeps.update(find_sweeps(parent))
    sweeps.discard(SweepFolder(folder.path.resolve()))
    for sweep in sorted(sweeps, key=lambda sweep: -last_change(sweep.path)):
        # one that is damaged hides no other
        with suppress(OSError, UserError):
            if _is_alike(sweep.settings() or {}, base, space) and any(_finished(sweep)):
                yield sweep


def _is_alike(settings: Json, base: Experiment, space: Space) -> bool:
    """Return whether a recorded sweep has this model, objective and space."""
    baseline = as_mapping(settings.get("baseline"))
    trainer = as_mapping(baseline.get("trainer"))
    program = trainer.get("kind"), trainer.get("command")
    return (
        settings.get("space") == space.describe()
        and baseline.get("model") == escape(asdict(base.model))
        and program == (base.trainer.kind, base.trainer.command)
        and not _other_objective(settings, base.search)
    )


def _other_objective(settings: Json, search: Search) -> Json:
    """Return the recorded keys of the objective that differ from those of this search."""
    theirs = as_mapping(settings.get("search"))
    return {
        name: theirs.get(name) for name in OBJECTIVE if theirs.get(name) != getattr(search, name)
    }


def open_warm_start(
    folder: SweepFolder, space: ValidatedSpace, inputs: Inputs, provenance: Json
) -> WarmStart:
    """Read the warm start of the first start, or create it now, from the sweeps that the provenance
    names.
    """
    path = folder.path / paths.WARM_START
    warm = _read(path)
    if warm is None and space.base.search.warm_start:
        sources = provenance.get("warm_start")
        if os.path.lexists(path):
            logger.warning(
                "%s is damaged and set aside as %s; it is made again",
                path.name,
                set_aside(path).name,
            )
            recorded = (folder.settings() or {}).get("provenance")
            sources = as_mapping(recorded).get("warm_start")
        warm = _take_over(space, inputs, [Path(source["sweep"]) for source in sources or ()])
        write_json(path, asdict(warm))
    return warm or WarmStart()


def _read(path: Path) -> WarmStart | None:
    """Return the content of a file; None if it is missing or damaged."""
    content = read_json(path) or {}
    try:
        first = list(map(dict, content["first"]))
        lines = [read_fields(Observation, line) for line in content["observations"]]
        sources = content.get("sources", ["earlier sweeps"])
        return WarmStart(sources, first, [Observation(**line) for line in lines])
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def describe_warm_start(warm: WarmStart) -> str:
    """Describe in one line what earlier sweeps contribute."""
    if not warm.sources:
        return "warm start: no earlier sweep of the same model, objective and space"
    return (
        f"warm start from {', '.join(warm.sources)}: {len(warm.first)} points tried first, "
        f"{len(warm.observations)} results known to the sampler"
    )


def propose_warm_start(folder: SweepFolder, base: Experiment, space: Space) -> str:
    """Name an earlier sweep to start from, with the words to type and what they gain; empty without
    one.
    """
    for sweep in find_earlier(folder, base, space):
        is_near = sweep.path.parent == folder.path.parent.resolve()
        name = sweep.path.name if is_near else str(sweep.path)
        return (
            f"{sweep.path.name} searched the same space with this model and objective. Add "
            f"{quoted('search.warm_start', name)} to try its best {FIRST} points first: {GAIN}"
        )
    return ""


def _take_over(space: ValidatedSpace, inputs: Inputs, sources: Sequence[Path]) -> WarmStart:
    is_better_larger = space.base.search.direction == "maximize"
    first: dict[object, Point] = {}
    observations: list[Observation] = []
    for path in sources:
        ranked = sorted(
            _finished(SweepFolder(path)), key=lambda pair: pair[1], reverse=is_better_larger
        )
        best: dict[object, Point] = {}
        for folder, value in ranked:
            found = _place(folder, space.validator)
            if found is None:
                continue
            point, is_alike = found
            if len(best) < FIRST:
                best.setdefault(freeze(point), point)
            if is_alike and not TrialInputs.read(folder.path).over(Inputs()).changed(inputs):
                observations.append(Observation(point, value, path.name, folder.number))
        first |= best
    observations.sort(key=lambda seen: (seen.sweep, seen.trial))
    return WarmStart([path.name for path in sources], list(first.values()), observations)


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
    similar = None
    for point in islice(candidates, MOST_LOOKED_AT):
        if numbers(validator.fields.setting(point)) != past_numbers or not validator.is_valid(
            point
        ):
            continue
        content = validator.validate(point).config.learning()
        if content == wanted:
            return point, True
        if similar is None and is_same_point(content, wanted):
            similar = point, False
    return similar


def _labels(parameter: Parameter, past: ResolvedConfig) -> Sequence[Label]:
    name, domain, realised = parameter.name, parameter.domain, sizes(past.setting)
    value = value_at(past.experiment, name)
    if name == "batch.prompts_per_step":
        value = realised["prompts_per_step"]
    if isinstance(domain, Interval):
        if not isinstance(value, int | float) or not domain.low <= value <= domain.high:
            return []
        return [int(value)] if domain.integer else [float(value)]
    is_realised = name.startswith(("batch.", "cluster.")) and name.split(".")[1] not in realised
    if name in GROUPS or is_realised:
        return domain.labels
    return [label for label, own in zip(domain.labels, domain.values, strict=True) if own == value]
