"""Choose the next trial: enqueued points, the next point of a grid, or what the sampler proposes;
then replicates.

No point is started twice. Replicates of the leaders run on fresh seeds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from grporecipe.files import Config, Json
from grposweep.schema import Search
from grposweep.search.replication import CONFIRM, is_replicate
from grposweep.search.sampler import DEFAULT_TRIALS, ValidPoints, lists_points
from grposweep.search.space import Label, Point, freeze
from grposweep.search.study import SweepStudy
from grposweep.search.validity import ValidationResult, Validator


class QueuedTrial(NamedTuple):
    """A valid new point with its validation, and its attributes for the study."""

    verdict: ValidationResult
    attributes: Json


@dataclass
class TrialQueue:
    """Knows what has been started of a space, and decides what comes next."""

    study: SweepStudy
    validator: Validator
    search: Search
    # resolved: grid, one_factor, tpe or random
    sampler: str
    # valid combinations of the finite parameters, or a sample of them
    valid_points: list[Point]
    enqueued: list[Point] = field(default_factory=list)
    # run recorded points once more
    repeat: bool = False
    # there may be more valid points
    is_sampled: bool = False
    # What others know of trials that have not started. The trial that ran out of memory with less:
    known_oom: Callable[[ValidationResult], int | None] = lambda _: None
    # the number of trials that search.budget is for
    budgeted: Callable[[], int | None] = lambda: None
    # of trials without a value: what a sampler is told of them
    foreseen: Callable[[], Mapping[int, float]] = dict
    # valid points that are another one's experiment
    doubles: set[object] = field(default_factory=set)
    # valid points that are too large, and by which trial
    left_out: dict[object, int] = field(default_factory=dict)
    # no valid point is left
    exhausted: bool = False
    # points of the started trials,
    _known: set[object] = field(default_factory=set)
    # their experiments,
    _done: set[str] = field(default_factory=set)
    # what they train,
    _trained: set[object] = field(default_factory=set)
    # and how many these are
    _looked: int = 0
    # trials that do not count, because their points are run once more
    _before: int = 0

    def __post_init__(self) -> None:
        if self.repeat:
            self._before = self._looked = len(self.study.searched)
        if self.sampler == "one_factor":
            # a value that the base has is not run again
            seen = set[str]()
            for point in self.valid_points:
                identity = self.validator.validate(point).config.identity
                if identity in seen:
                    self.doubles.add(freeze(point))
                seen.add(identity)

    @property
    def target(self) -> int:
        """Return the number of trials of the search, without replicates."""
        most = None
        if self.study.space.is_finite and not self.is_sampled:
            most = len(self.valid_points) - len(self.doubles)
        budgeted = self.budgeted()
        if budgeted is not None:
            budgeted = max(min(budgeted, self.search.trials or budgeted), len(self.study.searched))
        usual = DEFAULT_TRIALS
        if lists_points(self.sampler) and most is not None:
            usual = most
        wanted = budgeted or self.search.trials or usual
        if most is not None:
            wanted = min(wanted, most)
        return self._before + wanted

    @property
    def planned(self) -> int:
        """Return the number of trials of the sweep, including replicates; an upper bound while
        these race.
        """
        standing = self.study.ranking
        replication = self.study.replication
        if standing is None or replication is None:
            return self.target
        is_over = len(self.study.searched) >= self.target and not standing.wanted
        replicates = len(self.study.started) - len(self.study.searched)
        if not is_over:
            replicates = max(replication.most(self.target), replicates)
        return self.target + replicates

    @property
    def has_points(self) -> bool:
        """Return whether the search may start more points."""
        return not self.exhausted and len(self.study.searched) < self.target

    def next(self) -> QueuedTrial | None:
        """Return the next trial; None if none follows, or if what follows depends on running
        trials.
        """
        if self.has_points:
            proposal = self._next_point()
            if proposal is not None:
                return proposal
            self.exhausted = True
        return self._next_replicate()

    def _next_point(self) -> QueuedTrial | None:
        """Return a new point; None if no valid one is left."""
        started = self.study.searched
        for trial in started[self._looked :]:
            self._known.add(freeze(trial.params))
            self._done.add(trial.user_attrs["experiment"])
            self._trained.add(self.validator.validate(trial.params).training)
        self._looked = len(started)
        for index, wanted in enumerate(self.enqueued):
            if self._has_started(index, wanted) or freeze(wanted) in self._known:
                continue
            point = self._ask(wanted)
            if point is not None:
                return self._proposal(point, {"enqueued": index})
        point = self._ask({})
        return None if point is None else self._proposal(point, {})

    def _has_started(self, index: int, wanted: Point) -> bool:
        """Return whether an enqueued point has a trial. A resumed sweep may have another list.

        A value of an inactive parameter is not among a trial's.
        """
        for trial in self.study.searched[self._before :]:
            if trial.user_attrs.get("enqueued") == index:
                params = trial.params
                if all(params.get(name, value) == value for name, value in wanted.items()):
                    return True
        return False

    def _proposal(self, point: Point, noted: Config) -> QueuedTrial:
        verdict = self.validator.validate(point, noted.get("seed"))
        return QueuedTrial(verdict, {"experiment": verdict.config.identity, **noted})

    def _next_replicate(self) -> QueuedTrial | None:
        """Return the next fresh seed of a leader, by the present ranking on seeds."""
        standing = self.study.ranking
        if standing is None or not standing.wanted:
            return None
        begun = {
            (t.user_attrs["of"], t.user_attrs["seed"])
            for t in self.study.started
            if is_replicate(t)
        }
        wanted = next((pair for pair in standing.wanted if pair not in begun), None)
        if wanted is None:
            return None
        number, seed = wanted
        return self._proposal(
            dict(self.study.trials[number].params), {"role": CONFIRM, "of": number, "seed": seed}
        )

    def _ask(self, fixed: Mapping[str, Label]) -> Point | None:
        """Return the next point of the grid, or what the sampler proposes."""

        def is_new(point: Point) -> bool:
            key = freeze(point)
            if key in self._known:
                return False
            if self.repeat:
                return True
            if key in self.doubles:
                return False
            verdict = self.validator.validate(point)
            if not verdict.is_valid or verdict.training in self._trained:
                return False
            trial = self.known_oom(verdict)
            if trial is not None:
                self.left_out[key] = trial
                return False
            if verdict.config.identity in self._done:
                self.doubles.add(key)
                return False
            return True

        if lists_points(self.sampler):
            for point, name in self._frozen:
                is_open = name not in self._known and all(
                    point.get(key) == label for key, label in fixed.items()
                )
                if is_open and is_new(point):
                    return point
            return None
        foreseen = {} if self.sampler == "random" else self.foreseen()
        return self.study.ask(
            ValidPoints(is_new, self._finite), self.sampler, self.search.seed, fixed, foreseen
        )

    @cached_property
    def _finite(self) -> tuple[Point, ...]:
        """The finite parts of the valid points, which each request takes as they are."""
        return tuple(map(self.study.space.finite_part, self.valid_points))

    @cached_property
    def _frozen(self) -> list[tuple[Point, object]]:
        """The valid points, each with what tells it from others: walked through for every next
        point of a grid.
        """
        return [(point, freeze(point)) for point in self.valid_points]
