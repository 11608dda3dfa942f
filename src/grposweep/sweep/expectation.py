"""What a trial is going to take, by those that have finished: for the order at the end of a sweep, and for its budget."""

from dataclasses import dataclass, field
from statistics import fmean

from optuna.trial import FrozenTrial, TrialState

from grposweep.cost import HOUR, Work, find_work, fit_rates
from grposweep.plan import build_plan
from grposweep.search.judge import Judge
from grposweep.search.space import Point
from grposweep.setting import Setting

Effective = tuple[object, ...]


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and device-seconds."""

    seconds: float
    device_seconds: float


@dataclass
class Expectation:
    """Costs of trials that ran to their end, by the settings that decide about them; the learning rate does not."""

    judge: Judge
    _noted: dict[int, tuple[Point, Cost]] = field(default_factory=dict)
    _digested: int = 0  # of these
    _alike: dict[Effective, list[Cost]] = field(default_factory=dict)
    _seen: list[tuple[Work, Cost]] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """Whether any trial has finished."""
        return bool(self._noted)

    @property
    def mean(self) -> Cost | None:
        """Of a trial so far."""
        return _mean([cost for _, cost in self._noted.values()]) if self._noted else None

    def note(self, trial: FrozenTrial, seconds: float, device_seconds: float) -> None:
        """What a trial took; only where it finished."""
        if trial.state == TrialState.COMPLETE and seconds > 0:
            self._noted.setdefault(trial.number, (dict(trial.params), Cost(seconds, device_seconds)))

    def seconds(self, point: Point) -> float | None:
        """On the clock."""
        cost = self.of(point)
        return None if cost is None else cost.seconds

    def of(self, point: Point) -> Cost | None:
        """What a trial of this point is to take: as others with its settings, otherwise by its tokens."""
        if not self.is_known:
            return None
        self._digest()
        setting = self.judge.fields.setting(point)
        if alike := self._alike.get(effective(setting)):
            return _mean(alike)
        return self._by_work(find_work(setting)) or self.mean

    def _by_work(self, work: Work | None) -> Cost | None:
        """By what a token has cost all of them."""
        seconds = fit_rates([(seen, cost.seconds) for seen, cost in self._seen])
        device_seconds = fit_rates([(seen, cost.device_seconds) for seen, cost in self._seen])
        if work is None or seconds is None or device_seconds is None:
            return None
        return Cost(seconds.hours(work) * HOUR, device_seconds.hours(work) * HOUR)

    def _digest(self) -> None:
        """Sort what is new by its settings; only where somebody asks."""
        for point, cost in list(self._noted.values())[self._digested :]:
            setting = self.judge.fields.setting(point)
            self._alike.setdefault(effective(setting), []).append(cost)
            if (work := find_work(setting)) is not None:
                self._seen.append((work, cost))
        self._digested = len(self._noted)


def effective(setting: Setting) -> Effective:
    """What decides how long a training takes."""
    plan = build_plan(setting)
    return (
        setting.parameters, setting.max_completion_length, setting.num_generations, setting.num_iterations, setting.beta > 0,
        plan.processes, plan.per_device_train_batch_size, plan.completions_per_rollout, plan.total_completions,
    )  # fmt: skip


def _mean(costs: list[Cost]) -> Cost:
    return Cost(fmean(cost.seconds for cost in costs), fmean(cost.device_seconds for cost in costs))
