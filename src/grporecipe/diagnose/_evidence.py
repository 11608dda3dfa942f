"""Values that checks derive from a log: means over windows of steps, the reward's curve for the
guards, and its trend.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, linear_regression, median, stdev

from grporecipe.diagnose._log import Log
from grporecipe.model.guards import TWICE, RewardCurve, has_risen
from grporecipe.model.metrics import is_reward_function

# of a log without evaluations
WINDOWS = 10
# logged steps
FEWEST_IN_WINDOW = 3
# after the start; with fewer, the training reward is used
FEWEST_EVALUATIONS = 3
# points of a trend
FEWEST_TREND = 6
# of the reward's gain
LOST = 1 / 4
_SIGNALS = ("kl", "entropy", "grad_norm", "zero_std", "truncated", "update_size")


@dataclass(frozen=True)
class Window:
    """Consecutive logged values of a metric: first and last step, mean, and the mean's standard
    error.
    """

    first: int
    last: int
    mean: float
    error: float


@dataclass(frozen=True)
class Trend:
    """A straight line fitted to the reward: its change from the first to the last point, with the
    95 % interval.
    """

    # of the reward: of evaluations or of training
    name: str
    change: float
    low: float
    high: float
    first: int
    last: int


@dataclass(frozen=True)
class Evidence:
    """A log, and the values that checks derive from it."""

    log: Log

    def windows(self, name: str) -> list[Window]:
        """Split a metric into at most ``WINDOWS`` windows with equally many logged values. Empty
        for fewer than six values.
        """
        values = self.signal(name)
        count = min(WINDOWS, len(values) // FEWEST_IN_WINDOW)
        if count < 2:
            return []
        bounds = [round(i * len(values) / count) for i in range(count + 1)]
        return [_window(values[a:b]) for a, b in pairwise(bounds)]

    def signal(self, name: str) -> list[tuple[int, float]]:
        """Return a metric by step.

        If the share of groups without variance is missing, it is 1 in steps whose rewards are all
        equal, and 0 in others.
        """
        values = self.log.series(name)
        if name != "zero_std" or values:
            return values
        spread = self.log.series("reward_std") or self._ranges()
        return [(step, float(value <= 1e-9)) for step, value in spread]

    @cached_property
    def evaluations(self) -> list[tuple[int, float]]:
        """Return the evaluations after the start."""
        begun = max([1, *self.log.steps[:1]])
        return [(step, value) for step, value in self.log.series("eval_reward") if step >= begun]

    @cached_property
    def start(self) -> float | None:
        """Return the evaluation before training."""
        held_out = self.log.series("eval_reward")
        if held_out[:1] == self.evaluations[:1]:
            return None
        return held_out[0][1]

    @property
    def held_out(self) -> bool:
        """Return whether the reward comes from evaluations. Otherwise it is the mean of training
        steps.
        """
        return len(self.evaluations) >= FEWEST_EVALUATIONS

    @property
    def reward_name(self) -> str:
        """Return the reward's name for sentences."""
        return "held-out reward" if self.held_out else "training reward"

    @cached_property
    def curve(self) -> RewardCurve:
        """Return the reward as the curve that the sweep's guards read, with at least three points,
        or without points if the log is too short.
        """
        if self.held_out:
            steps = [step for step, _ in self.evaluations]
            values = [value for _, value in self.evaluations]
            errors = dict(self.log.series("eval_se"))
            step_errors = [errors.get(step, _scatter(values)) for step in steps]
            start = self.start
        else:
            parts = self.windows("reward")
            if len(parts) < FEWEST_EVALUATIONS:
                return RewardCurve(0.0, [], [])
            steps = [part.last for part in parts]
            values = [part.mean for part in parts]
            step_errors = [part.error for part in parts]
            start = parts[0].mean
        signals = {name: self._between(name, steps) for name in _SIGNALS}
        total = float(max(self.log.total or 0, self.log.end, 1))
        return RewardCurve(
            total,
            steps,
            values,
            start,
            step_errors,
            signals,
        )

    @cached_property
    def stops(self) -> list[int]:
        """Return the steps of the curve's points."""
        return list(map(int, self.curve.completions))

    @cached_property
    def risen(self) -> bool:
        """Return whether the reward has risen by more than noise, as the sweep's guards define
        it.
        """
        return bool(self.stops) and has_risen(self.curve)

    @cached_property
    def best(self) -> int:
        """Return the index of the curve's best point."""
        values = self.curve.held_out
        return max(range(len(values)), key=values.__getitem__)

    @cached_property
    def noise(self) -> float:
        """Return the largest standard error of the curve's points."""
        return max(filter(None, self.curve.errors), default=0.0)

    @cached_property
    def lost(self) -> bool:
        """Return whether the reward has not risen, or has lost much of its gain."""
        if not self.risen:
            return True
        begun = self.curve.begun
        top = max(self.curve.held_out[self.best], begun)
        now = fmean(self.curve.held_out[-TWICE:])
        return top - now > max(2 * self.noise, LOST * (top - begun))

    @property
    def fate(self) -> str:
        """Return what has become of a reward that is lost, for sentences."""
        words = "has lost much of its gain" if self.risen else "has not risen"
        return f"{self.reward_name} {words}"

    @cached_property
    def reward_functions(self) -> list[str]:
        """Return the names of the rewards of single functions."""
        names: dict[str, float] = {}
        for row in self.log.rows.values():
            names |= row
        return list(filter(is_reward_function, names))

    @cached_property
    def scale(self) -> float | None:
        """Return the size of a large reward difference: the median standard deviation in a group,
        or a substitute.
        """
        spread = [value for value in self.log.values("reward_std") if value > 0]
        if spread:
            return median(spread)
        ranges = [value for _, value in self._ranges()]
        return median(ranges or [0.0]) / 4 or None

    @cached_property
    def trend(self) -> Trend | None:
        """Fit a line to the evaluations by least squares. With few evaluations, fit windows of the
        training reward.

        None if there are too few points.
        """
        name = "held-out reward"
        points = self.evaluations
        if len(points) < FEWEST_TREND:
            name = "training reward"
            points = [(window.last, window.mean) for window in self.windows("reward")]
        if len(points) < FEWEST_TREND:
            return None
        # Student's t; 0.25 s that only a long log costs
        from scipy.special import stdtrit

        xs = [float(step) for step, _ in points]
        ys = [value for _, value in points]
        slope, intercept = linear_regression(xs, ys)
        rest = sum((y - intercept - slope * x) ** 2 for x, y in points)
        length = xs[-1] - xs[0]
        error = math.sqrt(rest / (len(xs) - 2) / sum((x - fmean(xs)) ** 2 for x in xs))
        half = float(stdtrit(len(xs) - 2, 0.975)) * error * length
        change = slope * length
        first = points[0][0] if points is self.evaluations else self.log.steps[0]
        return Trend(name, change, change - half, change + half, first, points[-1][0])

    def early_gain(self) -> float:
        """Return the upper end (95 %) of the training reward's gain over its first twentieth; 0 if
        evaluations are used.
        """
        values = self.log.series("reward")
        if len(self.evaluations) >= FEWEST_TREND or len(values) < WINDOWS:
            return 0.0
        begun = max(len(values) // 20, 5)
        first = _window(values[:begun])
        rest = _window(values[begun:])
        return rest.mean - first.mean + 2 * math.hypot(first.error, rest.error)

    def _ranges(self) -> list[tuple[int, float]]:
        """Return the largest reward minus the smallest one by step."""
        least = dict(self.log.series("reward_min"))
        return [
            (step, most - least[step])
            for step, most in self.log.series("reward_max")
            if step in least
        ]

    def _between(self, name: str, stops: Sequence[int]) -> list[float | None]:
        """Return the means of a signal between the points of the curve."""
        values, latest, at = self.signal(name), [], 0
        for stop in stops:
            part = []
            while at < len(values) and values[at][0] <= stop:
                part.append(values[at][1])
                at += 1
            mean = fmean(part) if part else None
            latest.append(mean)
        return latest


def _scatter(values: Sequence[float]) -> float:
    """Estimate the standard error of an evaluation from the differences of neighbours (von Neumann
    1941).
    """
    steps = [(b - a) ** 2 for a, b in pairwise(values)]
    return math.sqrt(median(steps or [0.0]) / 2)


def _window(values: Sequence[tuple[int, float]]) -> Window:
    numbers = [value for _, value in values]
    error = stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else 0.0
    return Window(values[0][0], values[-1][0], fmean(numbers), error)
