"""A budget of GPU hours that a sweep plans for: nothing is started that what is left could not finish, by estimate."""

from dataclasses import dataclass

from grposweep.cost import HOUR
from grposweep.report.words import count
from grposweep.search.space import Point
from grposweep.sweep.expectation import Expectation


@dataclass
class Budget:
    """``hours`` None: no limit. A rank without a GPU counts as one."""

    hours: float | None
    expectation: Expectation
    wanted: float | None = None  # GPU hours of the next trial, where the budget does not hold them

    def holds(self, point: Point, spent: float, promised: float, done: float = 0.0) -> bool:
        """Whether a trial can be finished as well: device-seconds spent so far, promised to what runs; its share done."""
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
        """How many trials fit, in words; empty where there is no limit."""
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
