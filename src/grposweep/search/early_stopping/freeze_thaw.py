"""A Gaussian process over points and training time, which predicts the final value of any point from all learning curves.

Source: Swersky, Snoek and Adams 2014, Freeze-thaw Bayesian optimization. The kernel differs: (Matern 5/2 + linear + constant
over the point's features) x (Matern 5/2 over two times of an evaluation) + a term of the same training. The times are the
progress, log(learning rate x optimizer steps so far), and the share of the training. So a slow start at a low learning rate
is told apart from a bad point. Length scales and variances are fitted: the most probable of a grid, by coordinate search.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

from grposweep.search.early_stopping import PlannedTraining, SearchContext
from grposweep.search.space import Choice, Interval, Label, Parameter, Point

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LENGTHS = (0.1, 0.15, 0.22, 0.33, 0.5, 0.75, 1.1, 1.7, 2.5, 4.0, 8.0)  # shares of a feature's range; 8: no influence
SEEDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # variance between trainings of one point, relative to that of the curves
NOISES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # variance of an evaluation, likewise
TYPICAL, SPREAD = (
    1.1,
    1.0,
)  # of a feature's length before anything is known: its median, and the deviation of its logarithm
TYPICAL_TIMES, SPREAD_TIME = (0.5, 1.1), 0.5  # of progress, and of the share
TYPICAL_SEED, TYPICAL_NOISE = 0.03, 0.01
PASSES = 2  # over all kernel parameters
FEWEST = 4  # observations to fit anything to
DOUBT = 6  # curves at which a prediction's variance is taken for twice as large as the process says
JITTER = 1e-4  # variance of a guess, relative to that of the curves
BOUNDARY = 0.02  # keeps logits of 0 and 1 finite
REMEMBERED_PLACES = 2000
SAMPLE = 256  # points that say how far the features of a space reach
WIDE = 8.0  # positive numbers over at least this ratio are compared by their logarithms
PLANNED = {  # parameters that the learning rate, the completions of a step and the group size stand for
    "lr", "learning_rate", "num_generations", "prompts_per_step", "num_iterations", "per_device_train_batch_size",
    "gradient_accumulation_steps", "steps_per_generation",
}  # fmt: skip


class Features:
    """The coordinates of points: what their plan knows, and the other parameters, each from 0 to 1 over the space."""

    def __init__(self, context: SearchContext) -> None:
        import numpy as np

        self._context = context
        self._places: dict[object, tuple[list[float], float, float]] = {}
        sample = [context.plan(point) for point in context.draw(Random(0), SAMPLE)]
        self.is_planned = all(plan.learning_rate > 0 and plan.completions_per_step > 0 for plan in sample)
        logs = np.array([self._logarithms(plan) for plan in sample])
        self._low, spread = logs.min(0), np.ptp(logs, axis=0)
        self._varied = [column for column in (0, 1, 2) if spread[column] > 1e-9] if self.is_planned else []
        self._spread = np.maximum(spread, 1e-9)
        self._unit = float(spread[0]) if self.is_planned and spread[0] > 1e-9 else math.log(10)
        self._most = max(map(self._steps, sample))
        self._others = [
            _Coordinate(parameter)
            for parameter in context.space.parameters
            if not (self.is_planned and parameter.name.rpartition(".")[2] in PLANNED)
        ]
        groups = [[index] * other.width for index, other in enumerate(self._others, len(self._varied))]
        self.groups = [*range(len(self._varied)), *(index for group in groups for index in group)]

    def place(self, point: Point) -> tuple[list[float], float, float]:
        """Return a point's coordinates, its progress at the end of the training, and its completions in all (0: unknown)."""
        key = tuple(point.items())
        if key not in self._places:
            if len(self._places) >= REMEMBERED_PLACES:
                self._places.clear()
            self._places[key] = self._place(point)
        return self._places[key]

    def _place(self, point: Point) -> tuple[list[float], float, float]:
        plan = self._context.plan(point)
        logs = self._logarithms(plan)
        planned = [(logs[column] - float(self._low[column])) / float(self._spread[column]) for column in self._varied]
        others = [value for other in self._others for value in other.values(point)]
        return [*planned, *others], (self._steps(plan) - self._most) / self._unit, plan.total

    def times(self, end: float, share: float) -> tuple[float, float]:
        """Return the two times of an evaluation after a share of a training with this progress at its end."""
        return end + math.log(max(share, 1e-3)) / self._unit, math.log1p(9 * share) / math.log(10)

    def _logarithms(self, plan: PlannedTraining) -> tuple[float, float, float]:
        numbers = plan.learning_rate, plan.completions_per_step, plan.num_generations
        return tuple(math.log(max(number, 1e-12)) for number in numbers)  # type: ignore[return-value]  # three of them

    def _steps(self, plan: PlannedTraining) -> float:
        """Return log(learning rate x optimizer steps)."""
        if not self.is_planned:
            return 0.0
        steps = max(plan.total, 1.0) / max(plan.completions_per_step, 1e-12)
        return math.log(max(plan.learning_rate * steps, 1e-12))


class _Coordinate:
    """One parameter as columns from 0 to 1: a number's own scale, or a column for each label, half a square apart."""

    def __init__(self, parameter: Parameter) -> None:
        self._name, domain = parameter.name, parameter.domain
        self._labels: list[Label] = []
        self._ranks: list[float] = []
        self._log = False
        if isinstance(domain, Interval):
            self._low, self._high, self._log = domain.low, domain.high, domain.log
        else:
            self._read_choice(domain)
        self.width = max(len(self._labels), 1)

    def _read_choice(self, domain: Choice) -> None:
        numbers = sorted({float(n) for n in domain.labels if isinstance(n, int | float) and not isinstance(n, bool)})
        if len(numbers) < len(domain.labels) or len(numbers) < 2:
            self._labels = list(domain.labels)
            return
        self._low, self._high = numbers[0], numbers[-1]
        self._log = numbers[0] > 0 and self._high / self._low >= WIDE
        positive = [number for number in numbers if number > 0]
        if numbers[0] == 0 and self._high / positive[0] >= WIDE:  # 0, 0.001, 0.04: only their order is a scale
            self._ranks = numbers

    def values(self, point: Point) -> list[float]:
        """Return a point's columns; an inactive parameter is in the middle, since the one that it depends on tells it."""
        label = point.get(self._name)
        if self._labels:
            return [math.sqrt(0.5) * (label == known and self._name in point) for known in self._labels]
        if not isinstance(label, int | float):
            return [0.5]
        if self._ranks:
            nearest = min(range(len(self._ranks)), key=lambda index: abs(self._ranks[index] - label))
            return [nearest / (len(self._ranks) - 1)]
        low, high = (math.log(self._low), math.log(self._high)) if self._log else (self._low, self._high)
        number = math.log(max(float(label), 1e-300)) if self._log else float(label)
        return [(number - low) / (high - low) if high > low else 0.5]


@dataclass(frozen=True)
class Kernel:
    """Length scales of the features and of the two times, and relative variances."""

    lengths: tuple[float, ...]
    times: tuple[float, float] = TYPICAL_TIMES
    seed: float = TYPICAL_SEED
    noise: float = TYPICAL_NOISE

    def log_prior(self) -> float:
        """Return the logarithm of its probability before anything is known, up to a constant."""
        features = sum((math.log(length / TYPICAL) / SPREAD) ** 2 for length in self.lengths)
        pairs = zip(self.times, TYPICAL_TIMES, strict=True)
        times = sum((math.log(length / typical) / SPREAD_TIME) ** 2 for length, typical in pairs)
        return -0.5 * (features + times + math.log(self.seed / TYPICAL_SEED) ** 2)


@dataclass(frozen=True)
class Rows:
    """Evaluations, seen or wanted: coordinates of the point, two times, and the trial (not a number: it has none)."""

    features: "Array"
    times: "Array"
    trial: "Array"

    def joined(self, other: "Rows") -> "Rows":
        """Return these and other ones."""
        import numpy as np

        pairs = ((self.features, other.features), (self.times, other.times), (self.trial, other.trial))
        return Rows(*(np.concatenate(pair) for pair in pairs))


class Process:
    """The posterior given values at rows; ``groups`` says which length belongs to each column."""

    def __init__(
        self, seen: Rows, value: "Array", groups: Sequence[int], kernel: Kernel, guesses: int = 0, middle: float = 0.0
    ) -> None:
        import numpy as np
        from scipy.linalg import cho_factor, cho_solve

        self.seen, self.value, self.kernel, self._groups = seen, value, kernel, list(groups)
        self._middle = middle if guesses else float(value.mean())
        covariance = self._covariance(seen, seen)
        time = _matern(_distance(seen.times, seen.times, np.array(kernel.times)))
        covariance += kernel.seed * (seen.trial[:, None] == seen.trial[None]) * time
        noise = np.full(len(value), kernel.noise)
        noise[len(value) - guesses :] = JITTER
        covariance[np.diag_indices_from(covariance)] += noise
        self._factor = cho_factor(covariance, lower=True, check_finite=False)
        centred = value - self._middle
        self._weights = cho_solve(self._factor, centred, check_finite=False)
        count = len(value)
        self.scale = (float(centred @ self._weights) + 2 * (float(value.var()) + 1e-12)) / (count + 2)

    def predict(self, wanted: Rows) -> "tuple[Array, Array]":
        """Return means and standard deviations of what is common to all trainings of a point."""
        import numpy as np
        from scipy.linalg import solve_triangular

        across = self._covariance(wanted, self.seen)
        half = solve_triangular(self._factor[0], across.T, lower=True, check_finite=False)
        own = 2.0 + (((wanted.features - 0.5) / self._lengths) ** 2).sum(1)
        variance = self.scale * np.maximum(own - (half * half).sum(0), 1e-9)
        return self._middle + across @ self._weights, np.sqrt(variance)

    def compare(self, wanted: Rows, other: Rows) -> "tuple[Array, Array]":
        """Return means and standard deviations of the differences to one other row; their errors are not independent."""
        import numpy as np
        from scipy.linalg import solve_triangular

        rows = wanted.joined(other)
        across = self._covariance(rows, self.seen)
        half = solve_triangular(self._factor[0], across.T, lower=True, check_finite=False)
        apart, gap = half[:, :-1] - half[:, -1:], across[:-1] - across[-1]
        own = self._covariance(rows, rows)
        variance = own.diagonal()[:-1] + own[-1, -1] - 2 * own[:-1, -1] - (apart * apart).sum(0)
        return gap @ self._weights, np.sqrt(self.scale * np.maximum(variance, 1e-9))

    def with_guesses(self, rows: Rows) -> "Process":
        """Return the posterior as if these rows had their predicted values for certain, so that none promises anything."""
        import numpy as np

        guessed, _ = self.predict(rows)
        values = np.concatenate([self.value, guessed])
        more = Process(self.seen.joined(rows), values, self._groups, self.kernel, len(guessed), self._middle)
        more.scale = self.scale
        return more

    @cached_property
    def _lengths(self) -> "Array":
        import numpy as np

        lengths: Array = np.array(self.kernel.lengths)[np.array(self._groups, dtype=int)]
        return lengths

    def _covariance(self, a: Rows, b: Rows) -> "Array":
        import numpy as np

        features = _matern(_distance(a.features, b.features, self._lengths)) + 1.0
        features += ((a.features - 0.5) / self._lengths) @ ((b.features - 0.5) / self._lengths).T
        result: Array = features * _matern(_distance(a.times, b.times, np.array(self.kernel.times)))
        return result


def _distance(a: "Array", b: "Array", lengths: "Array") -> "Array":
    import numpy as np

    a, b = a / lengths, b / lengths
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    result: Array = np.sqrt(np.maximum(squares, 0.0))
    return result


def _matern(distance: "Array") -> "Array":
    """Return the Matern 5/2 kernel."""
    import numpy as np

    scaled = math.sqrt(5.0) * distance
    result: Array = (1 + scaled + scaled * scaled / 3) * np.exp(-scaled)
    return result


def fit(seen: Rows, value: "Array", groups: Sequence[int]) -> Kernel:
    """Return the most probable kernel by coordinate search; the latest ``REMEMBERED`` answers are kept."""
    key = (seen.features.tobytes(), seen.times.tobytes(), seen.trial.tobytes(), value.tobytes())
    if key not in _fitted:
        while len(_fitted) >= REMEMBERED:
            del _fitted[next(iter(_fitted))]
        _fitted[key] = _fit(seen, value, groups)
    return _fitted[key]


REMEMBERED = 64  # fits
_fitted: dict[object, Kernel] = {}


class Likelihood:
    """The probability of kernels given the same values: what does not depend on the kernel is computed once."""

    def __init__(self, seen: Rows, value: "Array", groups: Sequence[int]) -> None:
        import numpy as np

        features, count = seen.features - 0.5, len(value)
        apart = (features[:, None] - features[None]) ** 2
        products = features[:, None] * features[None]
        member = np.equal.outer(np.array(groups, dtype=int), np.arange(max(groups, default=-1) + 1)).astype(float)
        self._squares, self._products = ((a @ member).reshape(count * count, -1) for a in (apart, products))
        self._times = ((seen.times[:, None] - seen.times[None]) ** 2).reshape(count * count, -1)
        self._same = (seen.trial[:, None] == seen.trial[None]).reshape(-1)
        self._centred, self._variance = value - value.mean(), float(value.var()) + 1e-12

    def log_posterior(self, kernel: Kernel) -> float:
        """Return the logarithm of a kernel's probability, up to a constant."""
        import numpy as np
        from scipy.linalg.lapack import dpotrf, dpotrs

        count, weights = len(self._centred), np.array(kernel.lengths) ** -2.0
        features = _matern(np.sqrt(self._squares @ weights)) + 1.0 + self._products @ weights
        times = _matern(np.sqrt(self._times @ np.array(kernel.times) ** -2.0))
        covariance = ((features + kernel.seed * self._same) * times).reshape(count, count)
        covariance.flat[:: count + 1] += kernel.noise
        factor, failed = dpotrf(covariance, lower=1)
        if failed:
            return -math.inf
        fitted = float(self._centred @ dpotrs(factor, self._centred, lower=1)[0])
        scale = (fitted + 2 * self._variance) / (count + 2)
        determinant = float(np.log(factor.diagonal()).sum())
        return -0.5 * count * math.log(scale) - determinant + kernel.log_prior()


def _fit(seen: Rows, value: "Array", groups: Sequence[int]) -> Kernel:
    best = Kernel((TYPICAL,) * (max(groups, default=-1) + 1))
    if len(value) < FEWEST:
        return best
    likelihood = Likelihood(seen, value, groups)
    reached = likelihood.log_posterior(best)
    for _ in range(PASSES):
        before = best
        for index in range(len(best.lengths) + 4):
            for step in (-1, 1):
                while (moved := _moved(best, index, step)) is not None:
                    probability = likelihood.log_posterior(moved)
                    if probability <= reached:
                        break
                    best, reached = moved, probability
        if best == before:
            break
    return best


def _moved(kernel: Kernel, index: int, step: int) -> Kernel | None:
    """Return the kernel with one of its parameters a step of its grid smaller or larger, or None at the grid's end."""
    values = [*kernel.lengths, *kernel.times, kernel.seed, kernel.noise]
    lengths = len(kernel.lengths)
    grid = LENGTHS if index < lengths + 2 else SEEDS if index == lengths + 2 else NOISES
    at = grid.index(values[index]) + step
    if not 0 <= at < len(grid):
        return None
    values[index] = grid[at]
    first, second = values[lengths : lengths + 2]
    return replace(kernel, lengths=tuple(values[:lengths]), times=(first, second), seed=values[-2], noise=values[-1])
