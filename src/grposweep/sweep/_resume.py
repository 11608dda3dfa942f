"""Open a sweep's folder: create it, or recognise it and build its study.

An existing folder is used if it asks the same question. Otherwise the sweep is refused and nothing
on disk changes. The trial folders are the sweep, and its study is built from them at each start.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from grporecipe.errors import UserError
from grporecipe.files import (
    Config,
    Json,
    delete_folder,
    is_draft,
    read_lines,
    write_json,
    write_text,
)
from grporecipe.redaction import redact
from grporecipe.terminal import count, first_of, short
from grposweep.config.compose import escape, override_text, quoted
from grposweep.config.identity import OBJECTIVE
from grposweep.launchers.base import EndState
from grposweep.report.compare import differences
from grposweep.schema import Experiment
from grposweep.search.sampler import choose_sampler, lists_points
from grposweep.search.space import Direction, Point, Space
from grposweep.search.study import RECORDED_INVALID, SweepStudy
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder
from grposweep.storage.inputs import Inputs
from grposweep.storage.provenance import difference
from grposweep.storage.records import COPY, AttemptEventKind, as_mapping, read_provenance
from grposweep.storage.results import TrialStatus

# keys in which two sweeps differ
SHOWN = 3
# the sampler whose points are others than a grid's
ONE_FACTOR = "one_factor"
# Sections that do not make another sweep, mostly.
NO_QUESTION = ("name", "force", "verbose", "outputs", "tracker", "rules", "cluster")
# into a sweep's folder
WRITTEN = {"code", *(name for name in vars(paths).values() if isinstance(name, str))}
# Left by a controller that died before it wrote sweep.yaml.
OURS = {paths.TRIALS, paths.LEASE, paths.CONTROLLER_LOG}


def default_name(hint: str, space: Space, identity: str, study: str) -> str:
    """Return a short readable name: the sweep's file, or model, task and parameters, and the head
    of the identity's hash.
    """
    parameters = [parameter.name.rsplit(".", 1)[-1] for parameter in space.parameters]
    parts = [study] if study else [hint, *(parameters[:4] or ["run"])]
    return "-".join([*parts, identity[:6]])


def open_folder(
    sweep: SweepFolder, identity: str, space: Space, base: Experiment, provenance: Json
) -> tuple[SweepFolder, str | None]:
    """Return the sweep's folder, and a note about an existing one; None for a new one (still
    without sweep.yaml).

    Raises UserError if the folder holds another sweep or something else, or cannot be written.
    """
    folder = SweepFolder(sweep.path.resolve())
    try:
        settings = folder.settings()
        if settings is None and _names(folder.path) - OURS:
            raise UserError(
                f"{folder.path} exists and holds no sweep. Set another name=..., or move it away."
            )
        if settings is not None and (settings.get("identity") == identity or any(folder.trials())):
            _refuse_links(folder)
            return folder, _recognise(folder, settings, identity, space, base, provenance)
        # New, or a first try that never got to a trial: nothing can be mixed up.
        (folder.path / paths.TRIALS).mkdir(parents=True, exist_ok=True)
        if not os.access(folder.path, os.W_OK):
            raise PermissionError(errno.EACCES, "no permission to write")
    except OSError as error:
        raise UserError(
            f"outputs={base.outputs}: {folder.path} cannot be written ({error.strerror}). Set "
            "outputs=... to a folder that can."
        ) from error
    return folder, None


def _refuse_links(folder: SweepFolder) -> None:
    """Raise UserError if the folder of a trial that may still train is a symbolic link."""
    for trial in folder.trials():
        if trial.path.is_symlink() and trial.result.status not in (
            TrialStatus.FINISHED,
            TrialStatus.PRUNED,
        ):
            raise UserError(
                f"{trial.path} is a symbolic link to {trial.path.resolve()}, and a sweep trains "
                "only into its own folder. Put the folder itself in the place of the link, or "
                "delete the link: the trial then runs again."
            )


@contextmanager
def leaving_nothing(sweep: SweepFolder) -> Iterator[None]:
    """Delete a sweep's folder that a refused command has made, if only a sweep's files are in it.

    It stays if a trial has run or may run, or if the message names one of its files.
    """
    path = sweep.path
    is_new = not os.path.lexists(path)
    try:
        yield
    except UserError as error:
        folder = SweepFolder(path.resolve())
        is_made = is_new and os.path.lexists(path) and str(folder.path) not in str(error)
        if is_made and _names(folder.path) <= WRITTEN and not _has_work(list(folder.trials())):
            delete_folder(folder.path, folder.path.parent)
        raise


def _has_work(trials: Sequence[TrialFolder]) -> bool:
    """Return whether an attempt has run, or was handed to a launcher and not cancelled.

    Of several that were announced without a job only one was refused; the others may have been
    submitted.
    """
    unanswered = 0
    for trial in trials:
        started = _attempts(trial, AttemptEventKind.STARTED)
        cancelled = {
            event.attempt for event in trial.attempts() if event.kind == EndState.CANCELLED
        }
        if trial.has(paths.RUNS) or not started <= cancelled:
            return True
        unanswered += not _attempts(trial, AttemptEventKind.INTENT) <= started
    return unanswered > 1


def _attempts(trial: TrialFolder, kind: AttemptEventKind) -> set[int]:
    """Return the numbers of a trial's attempts that have such an event."""
    return {event.attempt for event in trial.attempts() if event.event == kind}


def _names(path: Path) -> set[str]:
    """Return the names in a folder, without drafts."""
    if path.exists():
        return {item.name for item in path.iterdir() if not is_draft(item.name)}
    return set()


def _recognise(
    folder: SweepFolder,
    settings: Json,
    identity: str,
    space: Space,
    base: Experiment,
    provenance: Json,
) -> str:
    if settings.get("identity") != identity:
        described = space.describe()
        what = "another space"
        change = quoted("search.warm_start", folder.path.name)
        start = f"; with {change} it begins with the results here"
        if settings.get("space") == described:
            what = "the same space over another base configuration"
            start = ""
        raise UserError(
            f"name={folder.path.name}: {folder.path} holds a sweep of "
            f"{what}{_unlike(settings, described, base)}, and its results must not be mixed with "
            f"others. Set another name=..., or none for a folder of its own{start}."
        )
    records = [trial.record for trial in folder.trials()]
    points = [record.point for record in records if record is not None]
    lost = [point for point in points if point not in space.points]
    if space.points and lost:
        raise UserError(
            f"search.points: {folder.path} has {count(len(lost), 'trial')} whose points are not "
            "in the list, such as "
            f"{short(lost[0])}. List these points as well, or set another name=..."
        )
    changed = difference(as_mapping(settings.get("provenance")), provenance)
    if changed:
        return f", resumed (other code, packages or files than at its start: {changed})"
    return ", resumed"


def _unlike(settings: Json, space: list[Json], base: Experiment) -> str:
    """Return the first few keys that differ between the recorded sweep and this one."""
    there = _by_name(settings.get("space"))
    here = _by_name(space)
    keys = []
    for name in there | here:
        old = there.get(name)
        new = here.get(name)
        if old != new:
            keys.append(f"{name}: {_values(old)} there, {_values(new)} here")
    before = settings.get("baseline")
    if isinstance(before, dict):
        keys += changed_keys(before, base)
    return listed(keys)


def _by_name(space: Any) -> dict[str, Json]:
    """Return the parameters in a sweep's file by their names."""
    parameters = space if isinstance(space, list) else []
    return {str(item.get("parameter")): item for item in parameters if isinstance(item, dict)}


def changed_keys(before: Config, now: Experiment) -> list[str]:
    """Return the keys of a recorded configuration that differ and make another sweep, with both
    values.
    """
    changes = differences(before, escape(asdict(now)))
    return [
        f"{key}={override_text(old)} there, {override_text(new)} here"
        for key, old, new in changes
        if _is_question(key, old, new)
    ]


def listed(keys: Sequence[str]) -> str:
    """Return the first few keys in brackets."""
    return f" ({first_of(keys, SHOWN)})" if keys else ""


def _values(parameter: Config | None) -> str:
    """Describe in a few words the values of a parameter in the record of a sweep file."""
    if parameter is None:
        return "not searched"
    if isinstance(choices := parameter.get("choices"), list):
        shown = ",".join(map(override_text, choices[:SHOWN]))
        return f"{shown},... ({len(choices)} values)" if len(choices) > SHOWN else shown
    return f"{override_text(parameter.get('low'))} to {override_text(parameter.get('high'))}"


def _is_question(key: str, old: object, new: object) -> bool:
    """Whether another value of this key makes another sweep, mostly; what decides is
    config.identity.sweep_identity.
    """
    section, _, name = key.partition(".")
    if key == "search.sampler":
        return ONE_FACTOR in (old, new)
    return section not in NO_QUESTION if section != "search" else name in OBJECTIVE


def describe_sweep(
    folder: SweepFolder,
    is_new: bool,
    identity: str,
    space: Space,
    base: Experiment,
    overrides: list[str],
    provenance: Json,
) -> None:
    """Write sweep.yaml: space, search, base overrides and provenance; of a sweep that exists the
    points of a longer list.

    For the lease's holder only.
    """
    described = space.describe()
    if is_new:
        content = {
            "name": base.name,
            "identity": identity,
            "space": described,
            "search": {
                name: getattr(base.search, name)
                for name in ("sampler", "seed", *OBJECTIVE, "seeds", "leaders")
            },
            "overrides": list(map(redact, overrides)),
            "baseline": escape(asdict(base)),
            "provenance": provenance,
        }
    else:
        content = folder.settings() or {}
        if not space.points or content.get("space") == described:
            return
        content["space"] = described
    write_text(
        folder.path / paths.SWEEP, yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    )


GONE = "the folder of this trial is gone"

# by number; more than one if a trial was written twice
Folders = Mapping[int, Sequence[TrialFolder]]


def agree_on_inputs(folder: SweepFolder, choice: str, now: Inputs) -> Inputs:
    """Return the user's files that new trials are to use, copied into the sweep.

    ``choice`` is ``search.changed_files``. Raises UserError if files changed under trained trials
    and the user has not chosen, or if the sweep has no copy of a recorded file that is wanted.
    """
    recorded = Inputs.read(folder.path)
    changed = recorded.changed(now)
    trained = [trial.number for trial in folder.trials() if _is_trained(trial)] if changed else []
    if trained and choice == "refuse":
        raise UserError(_changed_message(folder, changed, trained))
    if changed and choice == "recorded":
        lost = [name for name in changed if not recorded.files[name].copied]
        if lost:
            raise UserError(
                f"search.changed_files=recorded: {folder.path} has no copy of {', '.join(lost)}. "
                "Restore it, or set search.changed_files=accept."
            )
        return recorded
    if changed:
        # prompts are counted and rewards tried again
        (folder.path / paths.PREPARED).unlink(missing_ok=True)
    kept = now.keep(folder.path)
    if kept != recorded:
        kept.write(folder.path)
    return kept


def _is_trained(trial: TrialFolder) -> bool:
    """Return whether a trial has learned from the files as they were, or its attempt may, and its
    numbers may be used.
    """
    is_failed = trial.result.status in (TrialStatus.FAILED, TrialStatus.RETRIED)
    # such as a job that waits
    may_run = not trial.is_done and trial.open_attempt() is not None
    return may_run or (not is_failed and trial.has(paths.METRICS))


def renew_untrained(folder: SweepFolder, provenance: Config) -> None:
    """Let trials that were written and not trained, such as those of a dry run, use the files that
    new trials use.
    """
    for trial in folder.trials():
        before = read_provenance(trial.path)
        if _files(before) != _files(provenance) and not (trial.is_done or _is_trained(trial)):
            renew_inputs(trial, provenance)


def renew_inputs(trial: TrialFolder, provenance: Config) -> None:
    """Let the trial's next attempt use these files; if they differ from its own it starts from the
    beginning.
    """
    before = read_provenance(trial.path)
    if _files(before) != _files(provenance):
        trial.delete_checkpoints()
        # where another program keeps its checkpoints
        trial.delete_model()
    write_json(
        trial.path / paths.PROVENANCE,
        {**provenance, **{key: before.get(key) for key in ("seeds", COPY)}},
    )


def _files(provenance: Config) -> Config:
    return as_mapping(provenance.get("files"))


UNDO = (
    "  the same command                after you have undone the change: the sweep has no "
    "copy of {}\n"
)


def _changed_message(folder: SweepFolder, changed: Sequence[str], trained: Sequence[int]) -> str:
    """Return a message with the changed files, the trials that used them, and the three choices."""
    names = first_of(changed, SHOWN)
    have, them = ("have", "them") if len(changed) > 1 else ("has", "it")
    files = Inputs.read(folder.path).files
    lost = [name for name in changed if not files[name].copied]
    recorded = (
        "  search.changed_files=recorded   continue with the sweep's own copies of the files\n"
    )
    if lost:
        recorded = UNDO.format(lost[0])
    return (
        f"{names} {have} changed since {count(len(trained), 'trial')} of {folder.path.name} "
        f"used {them}, "
        "and results of both must not be mixed. Choose one:\n"
        "  name=...                        start every trial as a new sweep with the files as "
        "they are\n"
        f"{recorded}"
        "  search.changed_files=accept     continue with the changed files, if they do not "
        "change the results of recorded trials"
    )


def open_study(folder: SweepFolder, space: Space, direction: Direction, metric: str) -> SweepStudy:
    """Return the sweep's study with all trials of its folders. Only for the holder of the lease,
    because it notes ends.
    """
    study = SweepStudy(space, direction)
    folders = folders_by_number(folder)
    invalid = _invalid_points(study, folder)
    for number in range(max(folders, default=-1) + 1):
        if not any(_add(study, trial, metric) for trial in folders.get(number, ())):
            # A number without a folder was an invalid point's; or its folder was deleted, and the
            # numbers must still fit.
            point, problems = next(invalid, ({}, [GONE]))
            study.add_invalid(point, problems)
    return study


def folders_by_number(folder: SweepFolder) -> Folders:
    """Return trial folders by number; of two with the same number, first the one with an attempt.

    A folder that a controller left before it wrote the trial's record is no trial yet: its number
    is given again.
    """
    folders: dict[int, list[TrialFolder]] = {}
    for trial in folder.trials():
        is_tried = trial.has(paths.ATTEMPTS)
        if is_tried or trial.has(paths.TRIAL):
            same_number = folders.setdefault(trial.number, [])
            position = 0 if is_tried else len(same_number)
            same_number.insert(position, trial)
    return folders


def _add(study: SweepStudy, trial: TrialFolder, metric: str) -> bool:
    """Add a folder's trial with its end, if it has one; False if its record has none, or is of
    another space.
    """
    record = trial.record
    if record is None:
        return False
    try:
        if trial.is_done:
            trial.close_attempt()
            outcome = trial.outcome(metric)
            study.tell(study.add(record.point, record.attributes), *outcome)
        else:
            study.add(record.point, record.attributes)
    except ValueError:
        return False
    return True


def _invalid_points(study: SweepStudy, folder: SweepFolder) -> Iterator[tuple[Point, list[str]]]:
    """The invalid points of a grid in their order, with their problems."""
    search = as_mapping((folder.settings() or {}).get("search"))
    if not lists_points(choose_sampler(search.get("sampler", "auto"), study.space)):
        return
    for line in islice(
        read_lines(folder.path / paths.INVALID, point=dict, problems=list), RECORDED_INVALID
    ):
        # corrected since
        if study.space.points and line["point"] not in study.space.points:
            continue
        problems = (problem for problem in line["problems"] if isinstance(problem, dict))
        yield (
            line["point"],
            [f"{problem.get('code')} {problem.get('message')}" for problem in problems],
        )
