"""Start a sweep: validate its space, open its folder, and build its controller.

An existing folder is used if it asks the same question. Otherwise the sweep is refused and nothing on disk changes.
"""

import errno
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import yaml
from optuna.trial import FrozenTrial
from rich.console import Console

from grposweep.check import errors
from grposweep.config.compose import load_experiment
from grposweep.config.identity import experiment_id, prepared_key
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.errors import UserError
from grposweep.files import VERSION, is_draft, write_text
from grposweep.fixes import render_problem
from grposweep.launchers.base import Launcher
from grposweep.redaction import redact
from grposweep.report.compare import differences
from grposweep.report.space_summary import print_invalid
from grposweep.schema import Experiment
from grposweep.search.early_stopping import build_policy, choose_policy
from grposweep.search.grid import evaluate_grid, validate_one_factor
from grposweep.search.journal import Direction
from grposweep.search.replication import build_replication
from grposweep.search.sampler import choose_sampler, continuous, lists_points
from grposweep.search.space import Point, Space, freeze
from grposweep.search.study import RECORDED_INVALID, ExtraObjectives, SweepStudy, Values
from grposweep.search.validity import SpaceValidity, ValidationResult, Validator
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.lease import Lease
from grposweep.storage.provenance import difference
from grposweep.sweep.controller import Controller
from grposweep.sweep.early_stopping import EarlyStoppingMonitor
from grposweep.sweep.oom import known_oom
from grposweep.sweep.outcomes import OutcomeRecorder
from grposweep.sweep.recovery import open_study
from grposweep.sweep.trial_queue import TrialQueue, read_enqueued
from grposweep.sweep.warm_start import WarmStart, open_warm_start, words_of_warm_start

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ValidatedSpace:
    """What a sweep knows of its space before its folder exists, and better once it is prepared."""

    validator: Validator
    sampler: str  # resolved: grid, one_factor, tpe, random or gp
    validity: SpaceValidity
    enqueued: Sequence[Point]  # to be tried first

    @property
    def base(self) -> Experiment:
        """The experiment with every parameter where the configuration leaves it."""
        return self.validator.points.base

    @property
    def space(self) -> Space:
        """What is swept."""
        return self.validator.space

    def learn(self, prepared: dict[str, Any], console: Console) -> "ValidatedSpace":
        """Judged again with what preparation counted."""
        self.validator.learn(prepared)
        return replace(self, validity=_evaluate(console, self.validator, self.sampler))

    def preparable(self) -> dict[str, Experiment]:
        """One experiment for each model and task among the valid points that really train."""
        experiments = self.distinct("model", "task", "trainer")
        return {prepared_key(item): item for item in experiments if item.trainer.kind == "trl"}

    def distinct(self, *sections: str) -> list[Experiment]:
        """Return one experiment for each combination of the parameters in these sections, among the valid points."""
        names = [item.name for item in self.space.parameters if item.name.split(".")[0] in sections]
        points = {
            freeze({name: point[name] for name in names if name in point}): point
            for point in self.validity.valid_points()
        }
        return [self.validator.validate(point).experiment for point in points.values()]


def validate_space(console: Console, space: Space, points: Points) -> ValidatedSpace:
    """All that can be said of a space without a folder.

    Raises UserError for a parameter or an enqueued point that cannot be, a sampler that does not go with the space, and a space
    without a valid point.
    """
    sampler = _sampler(points.base, space)
    validator = Validator(space, points)
    validator.check_parameters()
    validity = _evaluate(console, validator, sampler)
    return ValidatedSpace(validator, sampler, validity, read_enqueued(points.base.search.enqueue, space, validator))


def _sampler(base: Experiment, space: Space) -> str:
    """The sampler's name, ``auto`` resolved.

    Raises UserError where it does not go with the space, or ``force`` not with a sweep.
    """
    if space.parameters and base.force:
        raise UserError("force=true: only a single run can be repeated. Give the sweep another name=... instead.")
    if base.search.seeds and any(parameter.name == "seed" for parameter in space.parameters):
        raise UserError(
            "seed is a parameter and search.seeds is set: both would set the seed. "
            "Take seed out of the space, or set search.seeds=0."
        )
    sampler = choose_sampler(base.search.sampler, space, 1 + len(base.search.further))
    if sampler == "one_factor" and not base.search.seeds:
        raise UserError("search.seeds=0: an effect without a spread tells nothing. Set search.seeds=5, say.")
    if lists_points(sampler) and not space.is_finite:
        parameters = ", ".join(continuous(space))
        raise UserError(
            f"search={sampler}: {parameters} has infinitely many values. List some (lr=1e-4,3e-4), or set search=tpe."
        )
    return sampler


def _evaluate(console: Console, validator: Validator, sampler: str) -> SpaceValidity:
    """The verdicts on the whole space.

    Raises UserError where no point is valid: a single run's problems in words, a sweep's as a table.
    """
    validity: SpaceValidity = validate_one_factor(validator) if sampler == "one_factor" else evaluate_grid(validator)
    if validity.valid:
        return validity
    if not validator.space.parameters:
        verdict = validator.validate({})
        raise UserError("\n".join(f"{p.code} {render_problem(verdict.setting, p)}" for p in errors(verdict.problems)))
    print_invalid(console, validity)
    raise UserError(
        f"None of the {validity.total} points of this space is valid, so there is nothing to search. "
        f"Change a parameter or the base configuration as the table above says."
    )


KEPT_INVALID = 10_000
SHOWN = 3  # keys in which two sweeps differ
ONE_FACTOR = "one_factor"  # the sampler whose points are others than a grid's
OBJECTIVE = ("metric", "direction", "last")
# Sections that do not make another sweep, mostly.
NO_QUESTION = ("name", "force", "verbose", "outputs", "tracker", "rules", "cluster")
# Left by a controller that died before it wrote sweep.yaml.
OURS = {paths.TRIALS, paths.LEASE, paths.CONTROLLER_LOG}


def default_name(hint: str, space: Space, identity: str) -> str:
    """A short readable identity: model, task, parameters, and the head of the identity's hash."""
    parameters = [parameter.name.rsplit(".", 1)[-1] for parameter in space.parameters]
    return "-".join([hint, *(parameters[:4] or ["run"]), identity[:6]])


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
        {str(parameter.get("dial")): parameter for parameter in parameters if isinstance(parameter, dict)}
        for parameters in (recorded if isinstance(recorded, list) else [], space)
    )
    keys = [name for name in dict.fromkeys([*there, *here]) if there.get(name) != here.get(name)]
    found = differences(before, asdict(base)) if isinstance(before, dict) else []
    keys += [f"{key}={old} there, {new} here" for key, old, new in found if _is_question(key, old, new)]
    return f" ({'; '.join(keys[:SHOWN])}{'; ...' if len(keys) > SHOWN else ''})" if keys else ""


def _is_question(key: str, old: object, new: object) -> bool:
    """Whether another value of this key makes another sweep, mostly; what decides is config.identity.sweep_identity."""
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
    """invalid.jsonl: the invalid combinations of the finite parameters with their problems and fixes; a last line counts
    those beyond the first ten thousand.
    """
    lines = [
        json.dumps({"v": VERSION, "point": verdict.point, "problems": verdict.reasons()})
        for verdict in islice(invalid, KEPT_INVALID)
    ]
    if total > KEPT_INVALID:
        lines.append(json.dumps({"v": VERSION, "more": total - KEPT_INVALID}))
    write_text(folder.path / paths.INVALID, "\n".join(lines) + "\n")


def build_controller(
    console: Console,
    folder: SweepFolder,
    judged: ValidatedSpace,
    launcher: Launcher,
    lease: Lease,
    overrides: list[str],
    provenance: Mapping[str, Any],
) -> Controller:
    """Build the controller of a sweep: open and repair its study, tell it what earlier runs found, print what was found."""
    base, validator = judged.base, judged.validator
    study = _open(console, folder, judged)
    check_unfinished(folder, study, validator)
    _record_invalid(console, folder, study, judged)
    warm = open_warm_start(folder, base, validator)
    _teach(study, folder, judged, warm)
    if warm.first:
        console.print(words_of_warm_start(warm), highlight=False)
    first = [*judged.enqueued, *warm.first]
    valid = list(judged.validity.valid_points())
    queue = TrialQueue(study, validator, base.search, judged.sampler, valid, first, base.force)
    queue.known_oom = partial(known_oom, folder)
    outcomes = OutcomeRecorder(folder, study, validator, base.search, base.trainer.keep)
    outcomes.keep_best()  # an earlier controller may have died between an end and this
    stopping = build_policy(choose_policy(base.search.stopping, judged.sampler, 1 + len(base.search.further)))
    monitor = EarlyStoppingMonitor(folder, study, base.search, stopping)
    queue.foreseen = monitor.foreseen
    return Controller(folder, queue, outcomes, launcher, lease, overrides, dict(provenance), monitor)


def _open(console: Console, folder: SweepFolder, judged: ValidatedSpace) -> SweepStudy:
    """Open the study. Its journal is repaired or rebuilt if damaged."""
    search = judged.base.search
    direction = cast(Direction, search.direction)  # check_words has seen it
    study, repairs = open_study(folder, judged.space, direction, search.metric)
    for repair in repairs:
        console.print(repair, style="yellow", markup=False, soft_wrap=True)
        logger.warning("repaired: %s", repair)
    return study


def check_unfinished(folder: SweepFolder, study: SweepStudy, validator: Validator) -> None:
    """Raise UserError if an unfinished trial would go on with other values than it was recorded with.

    A sweep's identity holds the names of a searched group's options, and not the keys that an option stands for. So another
    release may read ``model=qwen3_0_6b`` as another precision. A trial on another number of processes is the user's choice.
    """
    for trial in study.started:
        if trial.state.is_finished():
            continue
        verdict = validator.validate(dict(trial.params), trial.user_attrs.get("seed"))
        recorded = str(trial.user_attrs["experiment"])
        if recorded not in _identities(verdict, folder.trial(trial.number, recorded)):
            point = " ".join(f"{name}={label}" for name, label in trial.params.items())
            raise UserError(
                f"trial {trial.number} ({point}) was recorded with other values than these options stand for now. Compare its "
                "config.yaml, set what has changed as it was (such as model.dtype=bfloat16), or start a sweep under another name."
            )


def _identities(verdict: ValidationResult, trial: TrialFolder) -> Iterator[str]:
    """Yield the ids that a point may be recorded under: as it is now, without preparation, on the recorded processes."""
    experiment = verdict.experiment
    yield experiment_id(experiment, verdict.setting)
    yield experiment_id(experiment, read_setting(experiment))  # a dry run records trials without preparation
    if (trial.path / paths.CONFIG).exists():
        cluster = replace(experiment.cluster, processes=load_experiment(trial.path / paths.CONFIG).cluster.processes)
        moved = replace(experiment, cluster=cluster)
        yield experiment_id(moved, read_setting(moved))


def _teach(study: SweepStudy, folder: SweepFolder, judged: ValidatedSpace, warm: WarmStart) -> None:
    """Tell the study its additional objectives, the results of earlier sweeps, and its seeds."""
    base = judged.base
    if base.search.further:
        study.use_objectives(_extra_objectives(folder, base.search.further))
    else:  # what earlier sweeps were worth in further objectives is not taken over
        study.learn([(seen.point, seen.value) for seen in warm.observations])
    study.replication = build_replication(base.search.sampler, base.seed, base.search.seeds, base.search.leaders)


def _record_invalid(console: Console, folder: SweepFolder, study: SweepStudy, judged: ValidatedSpace) -> None:
    """Print the invalid points by rule, and write them to invalid.jsonl; a grid's also to the study."""
    validity = judged.validity
    if not validity.invalid:
        return
    print_invalid(console, validity)
    never = [
        f"{d}={label}" for d, labels in validity.valid_by_label().items() for label, n in labels.items() if not n[0]
    ]
    if never:
        console.print(f"never valid with the other parameters as they are: {', '.join(never)}", highlight=False)
    write_invalid(folder, map(validity.validator.validate, validity.invalid_points()), validity.invalid)
    if lists_points(judged.sampler):
        known = {freeze(trial.params) for trial in study.trials if trial.user_attrs.get("invalid")}
        for point in islice(validity.invalid_points(), RECORDED_INVALID):
            if freeze(point) in known:
                continue
            problems = errors(validity.validator.validate(point).problems)
            study.add_invalid(point, [f"{problem.code} {problem.message}" for problem in problems])


def _extra_objectives(folder: SweepFolder, directions: Mapping[str, str]) -> ExtraObjectives:
    """Return these objectives with a reader of their values; a finished trial's result.json is read once."""
    known: dict[int, Values | None] = {}

    def read(trial: FrozenTrial) -> Values | None:
        if trial.number not in known:
            result = folder.trial(trial.number, trial.user_attrs["experiment"]).result
            known[trial.number] = result.extra_values(directions)
        return known[trial.number]

    return ExtraObjectives(directions, read)
