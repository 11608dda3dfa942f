"""What a sweep has spent, what its running trials are still going to take, and whether its budget holds another one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial, TrialState

from grposweep import runs
from grposweep.cost import HOUR
from grposweep.search.space import Point
from grposweep.search.study import SweepStudy
from grposweep.sweep.budget import Budget
from grposweep.sweep.folder import SweepFolder
from grposweep.sweep.settler import Running


@dataclass
class Spending:
    """One sweep's; a rank without a GPU counts as one."""

    folder: SweepFolder
    study: SweepStudy
    budget: Budget
    running: Mapping[int, Running]  # the controller's own
    overspent: bool = False  # the budget is
    _costs: dict[int, tuple[float, float]] = field(default_factory=dict)  # of ended trials
    _caught_up: bool = False  # whether trials of earlier controllers have been learned from

    def hours(self) -> float:
        """GPU hours of all trials so far, those that run among them."""
        return sum(self.cost(trial)[1] for trial in self.study.started) / HOUR

    def cost(self, trial: FrozenTrial) -> tuple[float, float]:
        """Seconds and device-seconds of a trial so far; of one that has ended they are read once."""
        if trial.number in self._costs:
            return self._costs[trial.number]
        path = self.folder.trial(trial.number, trial.user_attrs["experiment"]).path
        cost = runs.cost(path, trial.number in self.running)
        if trial.state.is_finished():
            self._costs[trial.number] = cost
        return cost

    def seconds(self, point: Point) -> float | None:
        """What a trial is going to take on the clock; None where nobody knows yet."""
        self._catch_up()
        return self.budget.expectation.seconds(point)

    def is_over(self) -> bool:
        """Whether the budget is spent, and nothing more may be started; what runs goes on."""
        limit = self.budget.hours
        self.overspent = limit is not None and self.hours() >= limit
        return self.overspent

    def affords(self, point: Point, done: float = 0.0) -> bool:
        """Whether the budget also holds what is left of this trial, beside what it has promised to those that run."""
        if self.budget.hours is None:
            return True
        self._catch_up()
        affords = self.budget.holds(point, self.hours() * HOUR, self.promised(), done)
        self.overspent = not affords
        return affords

    def promised(self) -> float:
        """Device-seconds that the running trials are still going to take."""
        costs = (
            (self.budget.expectation.of(running.point), runs.cost(running.folder.path, True)[1])
            for running in self.running.values()
        )
        return sum(max(cost.device_seconds - so_far, 0.0) for cost, so_far in costs if cost is not None)

    def promise(self, planned: int) -> str:
        """How many of the planned trials fit the budget, in words."""
        self._catch_up()
        return self.budget.promise(len(self.study.started), planned, self.hours() * HOUR, self.promised())

    def look_back(self, trial: FrozenTrial, planned: int) -> str:
        """Learn from a trial that has just ended; what is news of the budget then: the first one tells how many it holds."""
        known = self.budget.expectation.is_known
        self._learn(trial)
        if self.budget.hours is None or known or not self.budget.expectation.is_known:
            return ""
        return self.promise(planned)

    def _learn(self, trial: FrozenTrial) -> None:
        """What a finished trial took is what the next ones will."""
        if trial.state == TrialState.COMPLETE:
            self.budget.expectation.note(trial, *self.cost(trial))

    def _catch_up(self) -> None:
        """Learn from what finished under earlier controllers, once somebody wants to know."""
        if not self._caught_up:
            self._caught_up = True
            for trial in self.study.started:
                self._learn(trial)
