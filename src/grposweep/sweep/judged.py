"""The space of a sweep, judged: which sampler walks it, which of its points are valid, and where each comes from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from grposweep.config.points import Points
from grposweep.config.read import prepared_key
from grposweep.config.schema import Experiment
from grposweep.errors import BadInput
from grposweep.fixes import render_problem
from grposweep.report.tables import invalid_table
from grposweep.rules import errors
from grposweep.search.census import take_census
from grposweep.search.judge import Judge, Verdicts
from grposweep.search.one_factor import judge_one_by_one
from grposweep.search.sampler import LISTED, choose_sampler, continuous
from grposweep.search.space import Point, Space, freeze
from grposweep.sweep.enqueue import read_enqueued
from grposweep.sweep.summary import invalid_rows


@dataclass(frozen=True)
class Judged:
    """What a sweep knows of its space before its folder exists, and better once it is prepared."""

    judge: Judge
    sampler: str  # resolved: grid, one_factor, tpe, random or gp
    census: Verdicts
    enqueued: Sequence[Point]  # to be tried first

    @property
    def base(self) -> Experiment:
        """The experiment with every dial where the configuration leaves it."""
        return self.judge.points.base

    @property
    def space(self) -> Space:
        """What is swept."""
        return self.judge.space

    def learn(self, prepared: dict[str, Any], console: Console) -> "Judged":
        """Judged again with what preparation counted."""
        self.judge.learn(prepared)
        return replace(self, census=_census(console, self.judge, self.sampler))

    def preparable(self) -> dict[str, Experiment]:
        """One experiment for each model and task among the valid points that really train."""
        dials = [dial.name for dial in self.space.dials if dial.name.split(".")[0] in ("model", "task", "trainer")]
        distinct = {
            freeze({name: point[name] for name in dials if name in point}): point
            for point in self.census.valid_points()
        }
        experiments = [self.judge.verdict(point).experiment for point in distinct.values()]
        return {prepared_key(item): item for item in experiments if item.trainer.kind == "trl"}


def judge_space(console: Console, space: Space, points: Points) -> Judged:
    """All that can be said of a space without a folder.

    Raises BadInput for a dial or an enqueued point that cannot be, a sampler that does not go with the space, and a space
    without a valid point.
    """
    sampler = _sampler(points.base, space)
    judge = Judge(space, points)
    judge.check_dials()
    census = _census(console, judge, sampler)
    return Judged(judge, sampler, census, read_enqueued(points.base.search.enqueue, space, judge))


def _sampler(base: Experiment, space: Space) -> str:
    """The sampler's name, ``auto`` resolved.

    Raises BadInput where it does not go with the space, or ``force`` not with a sweep.
    """
    if space.dials and base.force:
        raise BadInput("force=true: only a single run can be repeated. Give the sweep another name=... instead.")
    if base.search.seeds and any(dial.name == "seed" for dial in space.dials):
        raise BadInput(
            "seed is a dial and search.seeds is set: both would set the seed. Take seed out of the space, or set search.seeds=0."
        )
    sampler = choose_sampler(base.search.sampler, space, 1 + len(base.search.further))
    if sampler == "one_factor" and not base.search.seeds:
        raise BadInput("search.seeds=0: an effect without a spread tells nothing. Set search.seeds=5, say.")
    if sampler in LISTED and not space.is_finite:
        dials = ", ".join(continuous(space))
        raise BadInput(
            f"search={sampler}: {dials} has infinitely many values. List some (lr=1e-4,3e-4), or set search=tpe."
        )
    return sampler


def _census(console: Console, judge: Judge, sampler: str) -> Verdicts:
    """The verdicts on the whole space.

    Raises BadInput where no point is valid: a single run's problems in words, a sweep's as a table.
    """
    census: Verdicts = judge_one_by_one(judge) if sampler == "one_factor" else take_census(judge)
    if census.valid:
        return census
    if not judge.space.dials:
        verdict = judge.verdict({})
        raise BadInput("\n".join(f"{p.code} {render_problem(verdict.setting, p)}" for p in errors(verdict.problems)))
    console.print(invalid_table(invalid_rows(census), census.invalid, census.total))
    raise BadInput(
        f"None of the {census.total} points of this space is valid, so there is nothing to search. "
        f"Change a dial or the base configuration as the table above says."
    )
