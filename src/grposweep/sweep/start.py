"""The space of a sweep, judged: which sampler walks it, which of its points are valid, and where each comes from.

Opening a sweep's folder: new, or the same question again; anything else is refused and nothing on disk is touched.
"""

import errno
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from grposweep.check import errors
from grposweep.config.identity import prepared_key
from grposweep.config.points import Points
from grposweep.errors import UserError
from grposweep.files import VERSION, is_draft, write_text
from grposweep.fixes import render_problem
from grposweep.redaction import redact
from grposweep.report.compare import differences
from grposweep.report.tables import invalid_table
from grposweep.schema import Experiment
from grposweep.search.grid import evaluate_grid, validate_one_factor
from grposweep.search.sampler import choose_sampler, continuous, lists_points
from grposweep.search.space import Point, Space, freeze
from grposweep.search.validity import SpaceValidity, ValidationResult, Validator
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder
from grposweep.storage.provenance import difference
from grposweep.sweep.summary import invalid_rows
from grposweep.sweep.trial_queue import read_enqueued


@dataclass(frozen=True)
class ValidatedSpace:
    """What a sweep knows of its space before its folder exists, and better once it is prepared."""

    validator: Validator
    sampler: str  # resolved: grid, one_factor, tpe, random or gp
    census: SpaceValidity
    enqueued: Sequence[Point]  # to be tried first

    @property
    def base(self) -> Experiment:
        """The experiment with every dial where the configuration leaves it."""
        return self.validator.points.base

    @property
    def space(self) -> Space:
        """What is swept."""
        return self.validator.space

    def learn(self, prepared: dict[str, Any], console: Console) -> "ValidatedSpace":
        """Judged again with what preparation counted."""
        self.validator.learn(prepared)
        return replace(self, census=_census(console, self.validator, self.sampler))

    def preparable(self) -> dict[str, Experiment]:
        """One experiment for each model and task among the valid points that really train."""
        dials = [dial.name for dial in self.space.parameters if dial.name.split(".")[0] in ("model", "task", "trainer")]
        distinct = {
            freeze({name: point[name] for name in dials if name in point}): point
            for point in self.census.valid_points()
        }
        experiments = [self.validator.validate(point).experiment for point in distinct.values()]
        return {prepared_key(item): item for item in experiments if item.trainer.kind == "trl"}


def validate_space(console: Console, space: Space, points: Points) -> ValidatedSpace:
    """All that can be said of a space without a folder.

    Raises UserError for a dial or an enqueued point that cannot be, a sampler that does not go with the space, and a space
    without a valid point.
    """
    sampler = _sampler(points.base, space)
    validator = Validator(space, points)
    validator.check_parameters()
    census = _census(console, validator, sampler)
    return ValidatedSpace(validator, sampler, census, read_enqueued(points.base.search.enqueue, space, validator))


def _sampler(base: Experiment, space: Space) -> str:
    """The sampler's name, ``auto`` resolved.

    Raises UserError where it does not go with the space, or ``force`` not with a sweep.
    """
    if space.parameters and base.force:
        raise UserError("force=true: only a single run can be repeated. Give the sweep another name=... instead.")
    if base.search.seeds and any(dial.name == "seed" for dial in space.parameters):
        raise UserError(
            "seed is a dial and search.seeds is set: both would set the seed. Take seed out of the space, or set search.seeds=0."
        )
    sampler = choose_sampler(base.search.sampler, space, 1 + len(base.search.further))
    if sampler == "one_factor" and not base.search.seeds:
        raise UserError("search.seeds=0: an effect without a spread tells nothing. Set search.seeds=5, say.")
    if lists_points(sampler) and not space.is_finite:
        dials = ", ".join(continuous(space))
        raise UserError(
            f"search={sampler}: {dials} has infinitely many values. List some (lr=1e-4,3e-4), or set search=tpe."
        )
    return sampler


def _census(console: Console, validator: Validator, sampler: str) -> SpaceValidity:
    """The verdicts on the whole space.

    Raises UserError where no point is valid: a single run's problems in words, a sweep's as a table.
    """
    census: SpaceValidity = validate_one_factor(validator) if sampler == "one_factor" else evaluate_grid(validator)
    if census.valid:
        return census
    if not validator.space.parameters:
        verdict = validator.validate({})
        raise UserError("\n".join(f"{p.code} {render_problem(verdict.setting, p)}" for p in errors(verdict.problems)))
    console.print(invalid_table(invalid_rows(census), census.invalid, census.total))
    raise UserError(
        f"None of the {census.total} points of this space is valid, so there is nothing to search. "
        f"Change a dial or the base configuration as the table above says."
    )


KEPT_INVALID = 10_000
SHOWN = 3  # keys in which two sweeps differ
ONE_FACTOR = "one_factor"  # the sampler whose points are others than a grid's
OBJECTIVE = ("metric", "direction", "last")
NO_QUESTION = (
    "name",
    "force",
    "verbose",
    "outputs",
    "tracker",
    "rules",
    "cluster",
)  # sections that make no other sweep, mostly
OURS = {
    paths.TRIALS,
    paths.LEASE,
    paths.CONTROLLER_LOG,
}  # left by a controller that died before it wrote sweep.yaml


def default_name(hint: str, space: Space, identity: str) -> str:
    """A short readable identity: model, task, dials, and the head of the identity's hash."""
    dials = [dial.name.rsplit(".", 1)[-1] for dial in space.parameters]
    return "-".join([hint, *(dials[:4] or ["run"]), identity[:6]])


def open_folder(
    path: Path, identity: str, space: Space, base: Experiment, provenance: dict[str, Any]
) -> tuple[SweepFolder, str | None]:
    """The sweep's folder, made or found; what to say of a found one, None for a new one (still without sweep.yaml).

    Raises UserError where the folder holds another sweep or something else, or cannot be written.
    """
    folder = SweepFolder(path.resolve())
    try:
        settings = folder.settings()
        if settings is None and _others(folder.path):
            raise UserError(f"{folder.path} exists and holds no sweep. Set another name=..., or move it away.")
        if settings is not None and (settings.get("identity") == identity or any(folder.trials())):
            return folder, _recognise(folder, settings, identity, space, base, provenance)
        # New, or a first try that never got to a trial: nothing can be mixed up.
        (folder.path / paths.TRIALS).mkdir(parents=True, exist_ok=True)
        if not os.access(folder.path, os.W_OK):
            raise PermissionError(errno.EACCES, "no permission to write")
    except OSError as error:
        raise UserError(
            f"outputs={base.outputs}: {folder.path} cannot be written ({error.strerror}). Set outputs=... to a folder that can."
        ) from error
    return folder, None


def _others(path: Path) -> set[str]:
    """What lies in a folder and is not of a controller that died on its first writes."""
    names = {item.name for item in path.iterdir()} if path.exists() else set()
    return {name for name in names if not is_draft(name)} - OURS


def _recognise(
    folder: SweepFolder,
    settings: dict[str, Any],
    identity: str,
    space: Space,
    base: Experiment,
    provenance: dict[str, Any],
) -> str:
    if settings.get("identity") != identity:
        known = json.loads(json.dumps(space.describe()))
        what = "the same space over another base configuration" if settings.get("space") == known else "another space"
        raise UserError(
            f"name={folder.path.name}: {folder.path} holds a sweep of {what}{_unlike(settings, known, base)}, and its results "
            "must not be mixed with others. Set another name=..., or none for a folder of its own."
        )
    before = settings.get("provenance")
    changed = difference(before if isinstance(before, dict) else {}, provenance)
    return f", resumed (other code, packages or files than at its start: {changed})" if changed else ", resumed"


def _unlike(settings: dict[str, Any], space: list[dict[str, Any]], base: Experiment) -> str:
    """The first few keys that make it another sweep, as they are there and here."""
    recorded, before = settings.get("space"), settings.get("baseline")
    there, here = (
        {str(dial.get("dial")): dial for dial in dials if isinstance(dial, dict)}
        for dials in (recorded if isinstance(recorded, list) else [], space)
    )
    keys = [name for name in dict.fromkeys([*there, *here]) if there.get(name) != here.get(name)]
    found = differences(before, asdict(base)) if isinstance(before, dict) else []
    keys += [f"{key}={old} there, {new} here" for key, old, new in found if _is_question(key, old, new)]
    return f" ({'; '.join(keys[:SHOWN])}{'; ...' if len(keys) > SHOWN else ''})" if keys else ""


def _is_question(key: str, old: object, new: object) -> bool:
    """Whether another value of this key makes another sweep, mostly; what decides is config.read.sweep_identity."""
    section, _, name = key.partition(".")
    if key == "search.sampler":
        return ONE_FACTOR in (old, new)
    return section not in NO_QUESTION if section != "search" else name in OBJECTIVE


def describe_sweep(
    folder: SweepFolder, identity: str, space: Space, base: Experiment, overrides: list[str], provenance: dict[str, Any]
) -> None:
    """Write sweep.yaml: space, search, base overrides and provenance. For the lease's holder only."""
    content = {
        "v": VERSION,
        "name": base.name,
        "identity": identity,
        "space": json.loads(json.dumps(space.describe())),
        "search": {
            "sampler": base.search.sampler,
            "seed": base.search.seed,
            "metric": base.search.metric,
            "direction": base.search.direction,
            "last": base.search.last,
            "further": dict(base.search.further),
            "seeds": base.search.seeds,
            "leaders": base.search.leaders,
        },
        "overrides": [redact(override) for override in overrides],
        "baseline": asdict(base),
        "provenance": provenance,
    }
    write_text(folder.path / paths.SWEEP, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def write_invalid(folder: SweepFolder, invalid: Iterable[ValidationResult], total: int) -> None:
    """invalid.jsonl: the invalid combinations of the finite dials with their problems and fixes; a last line counts
    those beyond the first ten thousand.
    """
    lines = [
        json.dumps({"v": VERSION, "point": verdict.point, "problems": verdict.reasons()})
        for verdict in islice(invalid, KEPT_INVALID)
    ]
    if total > KEPT_INVALID:
        lines.append(json.dumps({"v": VERSION, "more": total - KEPT_INVALID}))
    write_text(folder.path / paths.INVALID, "\n".join(lines) + "\n")
