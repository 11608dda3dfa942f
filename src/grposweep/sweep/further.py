"""Objectives beside the first one: read from the results of trials, shown as their Pareto front."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from optuna.trial import FrozenTrial

from grposweep.report.tables import Row
from grposweep.search.pareto import ExtraObjectives, Values
from grposweep.search.study import SweepStudy
from grposweep.storage.folders import SweepFolder


def further_of(folder: SweepFolder, directions: Mapping[str, str]) -> ExtraObjectives:
    """These objectives, with the values in result.json; a finished trial's are read once."""
    known: dict[int, Values | None] = {}

    def read(trial: FrozenTrial) -> Values | None:
        if trial.number not in known:
            known[trial.number] = folder.trial(trial.number, trial.user_attrs["experiment"]).result.extra_values(
                directions
            )
        return known[trial.number]

    return ExtraObjectives(directions, read)


def with_further(rows: Sequence[Row], study: SweepStudy) -> list[Row]:
    """The rows with their further values, those on the front first."""
    if study.further is None:
        return list(rows)
    places = {trial.number: place for place, trial in enumerate(study.front)}
    return [replace(row, further=_told(study, row), place=places.get(row.number)) for row in rows]


def _told(study: SweepStudy, row: Row) -> dict[str, str]:
    assert study.further is not None
    found = None if row.objective is None else study.further.read(study.trials[row.number])
    return {} if found is None else {n: f"{v:.4g}" for n, v in zip(study.further.directions, found, strict=True)}


def words_of_front(study: SweepStudy) -> str:
    """Which trials are on the front; empty for a single objective, or while none has finished."""
    if study.further is None or not study.front:
        return ""
    named = ", ".join(str(trial.number) for trial in study.front)
    return (
        f"Pareto front: trial{'s' * (len(study.front) > 1)} {named}, which no other equals or beats in all objectives"
    )
