"""Validate a sweep before anything of it exists: its space, its numbers, and the user's files.

Most mistakes are found here, so this imports neither Optuna nor numpy nor rich before they are
needed.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError, refuse_mistakes
from grporecipe.files import Config, Json
from grporecipe.model.values import flatten
from grporecipe.rules.check import errors
from grporecipe.rules.fixes import render_problem
from grposweep.command.any_program import stops_early
from grposweep.config.compose import override_name
from grposweep.config.identity import prepared_key
from grposweep.config.points import Points
from grposweep.config.search_budget import Budget
from grposweep.process.variables import refused_variables
from grposweep.schema import Experiment, Schedule
from grposweep.schema.registries import follows_effort, is_external, is_opaque, runs_trl
from grposweep.search.early_stopping.rungs import choose_evaluations
from grposweep.search.evaluate import (
    MOST_LISTED,
    SpaceValidity,
    validate_one_factor,
    validate_points,
)
from grposweep.search.parse import check_numbers
from grposweep.search.sampler import (
    DEFAULT_TRIALS,
    choose_sampler,
    continuous,
    lists_points,
)
from grposweep.search.space import Choice, Label, Parameter, Point, Space
from grposweep.search.validity import Validator, check_space
from grposweep.storage.folders import SweepFolder
from grposweep.storage.records import as_mapping
from grposweep.sweep._metric_names import check_metrics, refuse_own_measure
from grposweep.sweep._task_check import task_problems


@dataclass(frozen=True)
class ValidatedSpace:
    """A validated space, known before the sweep's folder exists and refined by preparation."""

    validator: Validator
    # resolved: grid, one_factor, tpe or random
    sampler: str
    validity: SpaceValidity
    # to be tried first
    enqueued: Sequence[Point]

    @property
    def base(self) -> Experiment:
        """Return the experiment with every parameter at its configured value."""
        return self.validator.points.base

    @property
    def space(self) -> Space:
        """Return the search space."""
        return self.validator.space

    def learn(self, prepared: Json) -> "ValidatedSpace":
        """Return the space validated again with the numbers that preparation counted."""
        self.validator.learn(prepared)
        return replace(self, validity=_evaluate(self.validator, self.sampler))

    def preparable(self) -> dict[str, Experiment]:
        """Return one experiment per model and task among the valid points that really train."""
        experiments = self.distinct("model", "task", "trainer")
        return {prepared_key(item): item for item in experiments if runs_trl(item.trainer)}

    def distinct(self, *sections: str) -> list[Experiment]:
        """Return one experiment for each combination of the parameters in these sections, among the
        valid points.
        """
        return self.validity.distinct(*sections)


def validate_space(space: Space, points: Points) -> ValidatedSpace:
    """Validate the points of a space that `check_space` has seen, before its folder exists.

    Raises UserError for an impossible enqueued point, for a sampler that does not fit the space,
    and for a space without a valid point.
    """
    sampler = _sampler(points.base, space)
    validator = Validator(space, points)
    validity = _evaluate(validator, sampler)
    return ValidatedSpace(
        validator, sampler, validity, read_enqueued(points.base.search.enqueue, space, validator)
    )


def _sampler(base: Experiment, space: Space) -> str:
    """Return the sampler's name, with ``auto`` resolved.

    Raises UserError if it does not fit the space, or if ``force`` does not fit it.
    """
    if base.search.seeds and any(parameter.name == "seed" for parameter in space.parameters):
        raise UserError(
            "seed is a parameter and search.seeds is set: both would set the seed. "
            "Take seed out of the space, or set search.seeds=0."
        )
    sampler = choose_sampler(base.search.sampler, space)
    if base.force and not lists_points(sampler):
        raise UserError(
            f"force=true with search={sampler}: only a list of points can be run once more. "
            "Set a larger search.trials, or another name=..."
        )
    if sampler == "one_factor":
        if not space.parameters:
            raise UserError(
                "search=one_factor without parameters compares nothing. Give each parameter its "
                "alternatives: lr=1e-4,1e-3, or for a single one lr=choice(1e-3)."
            )
        if not base.search.seeds:
            raise UserError(
                "search.seeds=0 with search=one_factor: intervals of effects need several seeds. "
                "Set search.seeds=5."
            )
        if base.search.effort is not None and base.search.effort < 1:
            raise UserError(
                f"search.effort={base.search.effort} with search=one_factor: every point is "
                "compared, so every trial has to finish. Leave search.effort out, or set "
                "search=tpe."
            )
    budget = base.search.budget
    if (
        budget is not None
        and Budget.parse(budget).hours is None
        and not plans_trials(base, sampler)
    ):
        raise UserError(
            f"search.budget={budget} with search={sampler} and trainer={base.trainer.kind}: every "
            "trial finishes, so no number of trials follows from it. Set search=tpe, or GPU hours "
            "as a limit: search.budget=12h."
        )
    if lists_points(sampler) and not space.is_finite:
        parameters = ", ".join(continuous(space))
        raise UserError(
            f"search={sampler}: {parameters} has infinitely many values. List some "
            "(lr=1e-4,3e-4), or set search=tpe."
        )
    return sampler


def _evaluate(validator: Validator, sampler: str) -> SpaceValidity:
    """Judge the whole space.

    Raises UserError if no point is valid: a single run's problems in words, a sweep's as a table.
    """
    validity = (
        validate_one_factor(validator) if sampler == "one_factor" else validate_points(validator)
    )
    only_baseline = sampler == "one_factor" and validity.valid == 1 < validity.total
    if validity.valid and not only_baseline:
        return validity
    if not validator.space.parameters:
        verdict = validator.validate({})
        raise UserError(
            "\n".join(
                f"{p.code} {render_problem(verdict.setting, p)}" for p in errors(verdict.problems)
            )
        )
    from grposweep.report.space_summary import print_invalid
    from grposweep.report.tables import build_console

    print_invalid(build_console(), validity)
    if only_baseline:
        raise UserError(
            "None of the changes is valid, so there is nothing to compare with the base "
            "configuration. Change a parameter as the table above says."
        )
    sampled = "sampled " if validity.is_sampled else ""
    raise UserError(
        f"None of the {validity.total:,} {sampled}points of this space is valid, so there is "
        "nothing to search. Change a parameter or the base configuration as the table above says."
    )


def plans_trials(base: Experiment, sampler: str) -> bool:
    """Return whether the number of trials follows from ``search.budget``; if not, its hours are a
    limit only.
    """
    if (
        lists_points(sampler)
        or base.search.effort is not None
        or not follows_effort(base.search.stopping)
    ):
        return False
    return not is_opaque(base.trainer) or stops_early(base)


def choose_evaluations_of(
    folder: SweepFolder, validated: ValidatedSpace, overrides: Iterable[str]
) -> list[str]:
    """Return the override of ``schedule.evaluations`` that ``search.effort`` needs; empty where the
    usual number will do.

    A sweep that exists keeps the number that it began with.
    """
    base = validated.base
    usual = Schedule().evaluations
    is_set = any(override_name(override) == "schedule.evaluations" for override in overrides)
    if is_set or base.schedule.evaluations != usual or is_external(base.trainer):
        return []
    if folder.path.exists():
        recorded = as_mapping(as_mapping((folder.settings() or {}).get("baseline")).get("schedule"))
        chosen = recorded.get("evaluations", usual)
    elif base.search.budget is not None and plans_trials(base, validated.sampler):
        chosen = EVALUATIONS_OF_BUDGET
    elif (
        base.search.effort is not None
        and base.search.effort < 1
        and follows_effort(base.search.stopping)
    ):
        planned = validated.validity.valid if lists_points(validated.sampler) else DEFAULT_TRIALS
        chosen = choose_evaluations(base.search.effort, base.search.trials or planned, usual)
    else:
        return []
    return [f"schedule.evaluations={chosen}"] if isinstance(chosen, int) and chosen != usual else []


# the first rung is then after a tenth of the training, not after a quarter
EVALUATIONS_OF_BUDGET = 10


def read_enqueued(wanted: Sequence[Config], space: Space, validator: Validator) -> list[Point]:
    """Return the points of ``search.enqueue``. The sampler fills in parameters that are left out.

    Raises UserError for a parameter that is not searched, a value outside its parameter, and a
    whole point that is invalid.
    """
    parameters = {parameter.name: parameter for parameter in space.parameters}
    points: list[Point] = []
    for entry in wanted:
        point: Point = {}
        for name, value in flatten(entry).items():
            if name not in parameters:
                names = ", ".join(parameters) or "none"
                raise UserError(
                    f"search.enqueue: {name} is not searched here. The parameters of this sweep "
                    f"are {names}."
                )
            point[name] = _label(parameters[name], value)
        _check(point, space, validator)
        points.append(point)
    return points


def _label(parameter: Parameter, value: Any) -> Label:
    """Return the parameter's label for a value that the user wrote."""
    domain = parameter.domain
    if isinstance(domain, Choice):
        for label in domain.labels:
            if label == value or str(label) == str(value):
                return label
        choices = ", ".join(map(str, domain.labels))
        raise UserError(
            f"search.enqueue: {parameter.name}={value} is not among its choices. Set one of "
            f"{choices}."
        )
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not domain.low <= number <= domain.high:
        raise UserError(
            f"search.enqueue: {parameter.name}={value} is outside its interval. "
            f"Set a number from {domain.low:g} to {domain.high:g}, or widen the interval."
        )
    return int(number) if domain.integer else number


def _check(point: Point, space: Space, validator: Validator) -> None:
    """Raise UserError for a complete point that is invalid."""
    if any(
        parameter.is_active(point) and parameter.name not in point for parameter in space.parameters
    ):
        return
    verdict = validator.validate(point)
    broken = errors(verdict.problems)
    if broken:
        text = render_problem(verdict.setting, broken[0], validator.ignore)
        raise UserError(
            f"search.enqueue: {', '.join(f'{n}={v}' for n, v in point.items())} is invalid. {text}"
        )


def validate_sweep(space: Space, points: Points, overrides: list[str]) -> ValidatedSpace:
    """Check what does not need the sweep's folder, and validate the points; ``overrides`` are
    shared by all points.

    Raises UserError.
    """
    base = points.base
    check_numbers(overrides)
    # before any of its points is composed
    if choose_sampler(base.search.sampler, space) == "grid" and space.size > MOST_LISTED:
        raise UserError(
            f"search=grid: the space has {space.size:,} points, and a grid trains each of at most "
            f"{MOST_LISTED:,}. Give fewer values, or set search=tpe with search.trials=50."
        )
    check_space(space, points, [*map(override_name, overrides)], trains=True)
    validated = validate_space(space, points)
    if validated.validity.is_dead:
        refuse_mistakes(validated.validity.describe_lacks())
    if any(runs_trl(experiment.trainer) for experiment in validated.distinct("trainer")):
        refuse_mistakes(refused_variables(os.environ, base.cluster.environment))
    # a sweep with results has its files and metric
    if base.name is None or not (Path(base.outputs) / base.name).exists():
        refuse_mistakes(
            task_problems(validated.distinct("task", "trainer", "cluster", "model", "generation"))
        )
        check_metrics(
            validated.distinct("task", "trainer", "schedule"), compares=bool(space.parameters)
        )
        for name, changed in validated.validator.fields.rewarding.items():
            refuse_own_measure(f"{name} is searched, which changes {changed}", base.search.metric)
    return validated
