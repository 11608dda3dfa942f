"""Recover a study from the trial folders: they are the sweep, and the journal is what Optuna needs of them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from optuna.trial import FrozenTrial

from grposweep.files import read_lines
from grposweep.search.journal import Direction, cut
from grposweep.search.sampler import choose_sampler, lists_points
from grposweep.search.space import Point, Space
from grposweep.search.study import RECORDED_INVALID, SweepStudy
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder, TrialFolder

GONE = "the folder of this trial is gone"

Folders = Mapping[int, Sequence[TrialFolder]]  # by number; more than one where a trial was written twice


def open_study(folder: SweepFolder, space: Space, direction: Direction, metric: str) -> tuple[SweepStudy, list[str]]:
    """The sweep's study, whole whatever happened to its journal; and what that took, in words. For the lease's holder."""
    study = SweepStudy(folder.journal, space, direction)
    said, folders = list(study.repairs), folders_by_number(folder)
    if wrong := contradictions(study.trials, folders):
        said += [*wrong, *cut(folder.journal, 0)]
        study = SweepStudy(folder.journal, space, direction)
    return study, said + rebuild(study, folder, folders, metric)


def folders_by_number(folder: SweepFolder) -> Folders:
    """The trial folders under their numbers; of two with one number first the one that has been attempted."""
    found: dict[int, list[TrialFolder]] = {}
    for trial in folder.trials():
        known = found.setdefault(trial.number, [])
        known.insert(0 if known and (trial.path / paths.ATTEMPTS).exists() else len(known), trial)
    return found


def contradictions(trials: Sequence[FrozenTrial], folders: Folders) -> list[str]:
    """Where study and folders name different trials under one number: the study is wrong, since folders cannot be."""
    return [said for trial in trials if (said := _contradiction(trial, folders.get(trial.number, ())))]


def _contradiction(trial: FrozenTrial, folders: Sequence[TrialFolder]) -> str | None:
    if trial.user_attrs.get("invalid"):
        return f"trial {trial.number} is invalid by the study, and was started by its folder" if folders else None
    experiment = trial.user_attrs.get("experiment")
    if not isinstance(experiment, str):
        return f"trial {trial.number} has no experiment in the study"
    if folders and all(folder.head != experiment[:6] for folder in folders):
        return f"trial {trial.number} is {experiment[:6]} by the study, and {folders[0].head} by its folder"
    return None


def rebuild(study: SweepStudy, folder: SweepFolder, folders: Folders, metric: str) -> list[str]:
    """Add the trials and the ends that the study lacks, under their own numbers; what was added, in words."""
    first = len(study.trials)
    invalid = _invalid_points(study, folder)
    for number in range(first, max(folders, default=-1) + 1):
        if not any(_add(study, trial, metric) for trial in folders.get(number, ())):
            # A number without a folder was an invalid point's; or its folder was deleted, and the numbers must still fit.
            point, problems = next(invalid, ({}, [GONE]))
            study.add_invalid(point, problems)
    ended = [trial for trial in study.trials if not trial.state.is_finished() and _tell(study, trial, folders, metric)]
    added = len(study.trials) - first
    said = [f"{added} trials that the study lacked were taken from the trial folders"] if added else []
    late = sum(trial.number < first for trial in ended)
    return said + ([f"{late} trials had ended without the study's knowing"] if late else [])


def _add(study: SweepStudy, trial: TrialFolder, metric: str) -> bool:
    """Add a folder's trial with its end, if it has one; False where its record does not tell, or is of another space."""
    record = trial.record
    if record is None:
        return False
    try:
        if trial.is_done:
            trial.close_attempt()
            outcome = trial.outcome(metric)
            study.add_ended(record.point, record.attributes, outcome.value, outcome.evaluations, outcome.is_pruned)
        else:
            study.add(record.point, record.attributes)
    except ValueError:
        return False
    return True


def _tell(study: SweepStudy, trial: FrozenTrial, folders: Folders, metric: str) -> bool:
    """Tell the study the end that a trial's folder knows; False where it knows none."""
    head = str(trial.user_attrs["experiment"])[:6]
    folder = next((folder for folder in folders.get(trial.number, ()) if folder.head == head), None)
    if folder is None or not folder.is_done:
        return False
    folder.close_attempt()
    outcome = folder.outcome(metric)
    study.tell(trial.number, outcome.value, outcome.evaluations, outcome.is_pruned)
    return True


def _invalid_points(study: SweepStudy, folder: SweepFolder) -> Iterator[tuple[Point, list[str]]]:
    """The invalid points of a grid that the study does not hold yet, in their order, with their problems."""
    search = (folder.settings() or {}).get("search")
    if not lists_points(
        choose_sampler(search.get("sampler", "auto") if isinstance(search, dict) else "auto", study.space)
    ):
        return
    known = sum(bool(trial.user_attrs.get("invalid")) for trial in study.trials)
    lines = read_lines(folder.path / paths.INVALID, point=dict, problems=list)
    for line in islice(lines, known, RECORDED_INVALID):
        yield line["point"], [_problem(problem) for problem in line["problems"] if isinstance(problem, dict)]


def _problem(problem: Mapping[str, Any]) -> str:
    return f"{problem.get('code')} {problem.get('message')}"
