"""Keep the budget of GPU hours: past costs, expected costs, and whether another trial fits.

A trial starts only if the rest of the budget holds its estimated cost. Estimates come from the trials that finished. They
also order the last trials of a sweep, the longest first.
"""

import time
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self

from optuna.trial import FrozenTrial, TrialState

from grporecipe.model.planning import build_plan
from grporecipe.model.setting import Setting
from grporecipe.terminal import count
from grposweep.cost import find_work
from grposweep.schema import Search
from grposweep.search.space import Point
from grposweep.search.study import SweepStudy
from grposweep.search.validity import Validator
from grposweep.storage.folders import SweepFolder
from grposweep.storage.results import run_cost
from grposweep.sweep.attempts import RunningAttempt
from grposweep.token_rates import HOUR, Work, fit_rates

Effective = tuple[object, ...]


@dataclass(frozen=True)
class CostEstimate:
    """Seconds of elapsed time, and device seconds."""

    seconds: float
    device_seconds: float


@dataclass
class CostModel:
    """Costs of finished trials by the settings that decide them, which excludes the learning rate."""

    validator: Validator
    _noted: dict[int, tuple[Point, CostEstimate]] = field(default_factory=dict)
    _digested: int = 0  # of these
    _alike: dict[Effective, list[CostEstimate]] = field(default_factory=dict)
    _seen: list[tuple[Work, CostEstimate]] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Return whether any trial has finished."""
        return bool(self._noted)

    @property
    def mean(self) -> CostEstimate | None:
        """Return the mean cost of a trial so far."""
        return _mean([cost for _, cost in self._noted.values()]) if self._noted else None

    def note(self, trial: FrozenTrial, seconds: float, device_seconds: float) -> None:
        """Record the cost of a finished trial."""
        if trial.state == TrialState.COMPLETE and seconds > 0:
            self._noted.setdefault(trial.number, (dict(trial.params), CostEstimate(seconds, device_seconds)))

    def seconds(self, point: Point) -> float | None:
        """Return the expected elapsed seconds of a point."""
        cost = self.of(point)
        return None if cost is None else cost.seconds

    def of(self, point: Point) -> CostEstimate | None:
        """Return the expected cost of a point: that of trials with its settings, otherwise by its tokens."""
        if not self.is_known:
            return None
        self._digest()
        setting = self.validator.fields.setting(point)
        if alike := self._alike.get(effective(setting)):
            return _mean(alike)
        return self._by_work(find_work(setting)) or self.mean

    def _by_work(self, work: Work | None) -> CostEstimate | None:
        """Return the cost by the mean cost of a token."""
        seconds = fit_rates([(seen, cost.seconds) for seen, cost in self._seen])
        device_seconds = fit_rates([(seen, cost.device_seconds) for seen, cost in self._seen])
        if work is None or seconds is None or device_seconds is None:
            return None
        return CostEstimate(seconds.hours(work) * HOUR, device_seconds.hours(work) * HOUR)

    def _digest(self) -> None:
        """Sort new trials by their settings, once an estimate is needed."""
        for point, cost in list(self._noted.values())[self._digested :]:
            setting = self.validator.fields.setting(point)
            self._alike.setdefault(effective(setting), []).append(cost)
            if (work := find_work(setting)) is not None:
                self._seen.append((work, cost))
        self._digested = len(self._noted)


def effective(setting: Setting) -> Effective:
    """Return the settings that decide how long a training takes."""
    plan = build_plan(setting)
    return (
        setting.parameters, setting.max_completion_length, setting.num_generations, setting.num_iterations, setting.beta > 0,
        plan.processes, plan.per_device_train_batch_size, plan.completions_per_rollout, plan.total_completions,
    )  # fmt: skip


def _mean(costs: list[CostEstimate]) -> CostEstimate:
    return CostEstimate(fmean(cost.seconds for cost in costs), fmean(cost.device_seconds for cost in costs))


@dataclass
class GpuHourLimit:
    """``hours`` None: no limit. A rank without a GPU counts as one."""

    hours: float | None
    expectation: CostModel
    wanted: float | None = None  # GPU hours of the next trial, if the budget does not hold them

    def holds(self, point: Point, spent: float, promised: float, done: float = 0.0) -> bool:
        """Return whether the budget holds this trial: device seconds spent, promised to running trials, its share done."""
        self.wanted = None
        cost = self.expectation.of(point)
        if self.hours is None or cost is None:
            return True
        needed = cost.device_seconds * (1 - done)
        if spent + promised + needed <= self.hours * HOUR:
            return True
        self.wanted = needed / HOUR
        return False

    def promise(self, started: int, target: int, spent: float, promised: float) -> str:
        """Describe how many trials fit; empty without a limit."""
        if self.hours is None:
            return ""
        named, mean = f"search.budget_gpu_hours={self.hours:g}", self.expectation.mean
        if mean is None or not mean.device_seconds:
            return f"how many trials fit {named} will be known when the first has finished"
        each = f"at {mean.device_seconds / HOUR:.2g} each"
        fitting = started + max(int((self.hours * HOUR - spent - promised) / mean.device_seconds), 0)
        if fitting >= target:
            return f"{count(target, 'trial')} fit {named}, {each}"
        return f"about {fitting} of {count(target, 'trial')} fit {named}, {each}"


@dataclass
class GpuHourBudget:
    """The budget that one sweep has spent, in GPU hours; a rank without a GPU counts as one."""

    folder: SweepFolder
    study: SweepStudy
    budget: GpuHourLimit
    running: dict[int, RunningAttempt] = field(default_factory=dict)  # the controller's own
    overspent: bool = False  # the budget is
    _costs: dict[int, tuple[float, float]] = field(default_factory=dict)  # of ended trials
    _caught_up: bool = False  # whether trials of earlier controllers have been learned from

    @classmethod
    def of(cls, folder: SweepFolder, study: SweepStudy, search: Search, validator: Validator) -> Self:
        """Return what a sweep has spent, with nothing running."""
        return cls(folder, study, GpuHourLimit(search.budget_gpu_hours, CostModel(validator)))

    def hours(self) -> float:
        """Return the GPU hours of all trials so far, including running ones."""
        return sum(self.cost(trial)[1] for trial in self.study.started) / HOUR

    def cost(self, trial: FrozenTrial) -> tuple[float, float]:
        """Return seconds and device seconds of a trial so far. Those of an ended trial are read once."""
        if trial.number in self._costs:
            return self._costs[trial.number]
        path = self.folder.trial(trial.number, trial.user_attrs["experiment"]).path
        attempt = self.running.get(trial.number)
        cost = run_cost(path) if attempt is None else self._cost_so_far(attempt)
        if trial.state.is_finished():
            self._costs[trial.number] = cost
        return cost

    def _cost_so_far(self, running: RunningAttempt) -> tuple[float, float]:
        return run_cost(running.folder.path, is_running=True, most=time.monotonic() - running.since)

    def seconds(self, point: Point) -> float | None:
        """Return the expected seconds of a trial; None if unknown."""
        self._catch_up()
        return self.budget.expectation.seconds(point)

    def is_over(self) -> bool:
        """Return whether the budget is spent, so that no trial is started. Running trials continue."""
        limit = self.budget.hours
        self.overspent = limit is not None and self.hours() >= limit
        return self.overspent

    def affords(self, point: Point, done: float = 0.0) -> bool:
        """Return whether the budget holds the rest of this trial in addition to the running trials."""
        if self.budget.hours is None:
            return True
        self._catch_up()
        affords = self.budget.holds(point, self.hours() * HOUR, self.promised(), done)
        self.overspent = not affords
        return affords

    def promised(self) -> float:
        """Return the device seconds that running trials are still expected to take."""
        promised = 0.0
        for running in self.running.values():
            if (cost := self.budget.expectation.of(running.point)) is not None:
                promised += max(cost.device_seconds - self._cost_so_far(running)[1], 0.0)
        return promised

    def promise(self, planned: int) -> str:
        """Describe how many of the planned trials fit the budget."""
        self._catch_up()
        return self.budget.promise(len(self.study.started), planned, self.hours() * HOUR, self.promised())

    def refit(self, trial: FrozenTrial, planned: int) -> str:
        """Learn from a trial that has just ended, and return news about the budget: the first one shows how many it holds."""
        known = self.budget.expectation.is_known
        self._learn(trial)
        if self.budget.hours is None or known or not self.budget.expectation.is_known:
            return ""
        return self.promise(planned)

    def _learn(self, trial: FrozenTrial) -> None:
        """Learn the cost of a finished trial."""
        if trial.state == TrialState.COMPLETE:
            self.budget.expectation.note(trial, *self.cost(trial))

    def _catch_up(self) -> None:
        """Learn once from trials that finished under earlier controllers."""
        if not self._caught_up:
            self._caught_up = True
            for trial in self.study.started:
                self._learn(trial)
