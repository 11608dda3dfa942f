"""Extrapolate one learning curve to a larger budget: value, ceiling and speed, each with a 90 % interval.

A curve is start + gain x shape(completions). The shape rises from 0 to 1: a sigmoid in log completions (Khatri et al. 2025,
The Art of Scaling Reinforcement Learning Compute for LLMs) or a power law (arXiv 2509.25300). All shapes of a grid are fitted by
Bayesian linear regression and weighted by their evidence, so the interval counts that several shapes explain the curve. How wide
it has to be is also learned from the sweep's finished trainings, cut at half: :func:`calibrate`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

FEWEST = 4  # evaluations
STEEPNESS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # of the sigmoid
POWERS = (0.25, 0.5, 1.0)  # of the power law
PLACES = (
    0.05,
    0.1,
    0.2,
    0.35,
    0.5,
    0.7,
    1.0,
    1.4,
    2.0,
    3.0,
    5.0,
)  # of half the rise, or of the bend, of the last completions
PRIOR_RISES = 2.0  # standard deviations of start and gain before the curve is seen, in ranges of its values
WEIGHT = 2.0  # evaluations that the prior of the noise counts as
WANDERS = (
    3.0  # times its standard error an evaluation is off its curve, because trainings wander: chosen on `arithmetic`
)
DRAWS = 4000
FEWEST_DRAWS = 200
TAIL = 0.05  # on each side of an interval
NOISY = 5.0  # standard errors of an evaluation that a rise or a fall has to exceed
FEWEST_TRAININGS = 9  # of which the largest miss bounds 90 % of further ones
MOST_TRAININGS = 29  # 11 ms each


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of one training, of which larger ones are better. ``start`` is the evaluation before training.

    ``completions`` are those generated until each evaluation, ``errors`` their standard errors as far as they are known.
    """

    completions: Sequence[float]
    values: Sequence[float]
    errors: Sequence[float | None] = ()
    start: float | None = None

    @cached_property
    def seen(self) -> "Array":
        """The values, behind that of the start."""
        import numpy as np

        return np.array([*([] if self.start is None else [self.start]), *self.values], dtype=float)

    @cached_property
    def error(self) -> float:
        """The standard error of one evaluation."""
        known = [error for error in self.errors if error]
        return sum(known) / len(known) if known else _roughness(self.seen)

    @property
    def doubt(self) -> str:
        """Why the curve says little about its continuation; empty if no reason is known."""
        seen = self.seen
        if float(seen.max() - seen[-2:].max()) > NOISY * self.error:
            return "it has fallen from its best evaluation, and a collapse has no ceiling"
        if float(seen[-2:].mean() - seen[0]) < NOISY * self.error:
            return "it has not risen yet, so nothing says when it will"
        return ""

    def until(self, evaluations: int) -> "Evaluations":
        """Return its beginning."""
        return Evaluations(
            self.completions[:evaluations], self.values[:evaluations], self.errors[:evaluations], self.start
        )


@dataclass(frozen=True)
class Calibration:
    """How many times as wide as a curve alone says intervals have to be, by this number of finished trainings."""

    trainings: int = 0
    width: float = 1.0

    def __str__(self) -> str:
        """Return what the intervals are by, for the note below them."""
        if not self.trainings:
            return "by this curve alone"
        wider = f"{self.width:.2g} times as wide as by this curve alone" if self.width > 1 else "not widened"
        return f"{wider}, by {self.trainings} finished trials cut at half"


UNCALIBRATED = Calibration()


@dataclass(frozen=True)
class Interval90:
    """A median with the bounds that hold 90 % of the probability."""

    low: float
    middle: float
    high: float

    def negated(self) -> "Interval90":
        """Return the interval of the negated value."""
        return Interval90(-self.high, -self.middle, -self.low)

    def __str__(self) -> str:
        """Return all three."""
        return f"{self.middle:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Extrapolation:
    """The expected evaluation after ``completions``, the ceiling, and the completions at half of the rise.

    ``doubt`` is why the interval must not be trusted; empty if no reason is known.
    """

    completions: float
    value: Interval90
    ceiling: Interval90
    half: Interval90
    doubt: str

    def negated(self) -> "Extrapolation":
        """Return the same for a metric that is minimized, whose values were negated before."""
        return replace(self, value=self.value.negated(), ceiling=self.ceiling.negated())


def calibrate(curves: Iterable[Evaluations]) -> Calibration:
    """Return the width at which the ends of at least 90 % of further curves like these finished ones lie in their intervals.

    Conformal prediction (Lei et al. 2018, Distribution-Free Predictive Inference for Regression): each curve is cut at half, and
    its end missed by some number of half widths. Curves that would not be forecast at half do not count.
    """
    forecasts = ((found.value, curve.values[-1]) for curve in curves if (found := _from_half(curve)) is not None)
    misses = sorted(_miss(*pair) for pair in islice(forecasts, MOST_TRAININGS))
    rank = math.ceil((1 - 2 * TAIL) * (len(misses) + 1))
    if len(misses) < max(rank, FEWEST_TRAININGS):
        return UNCALIBRATED
    return Calibration(len(misses), max(misses[rank - 1], 1.0))


def _from_half(curve: Evaluations) -> Extrapolation | None:
    """Return what the first half says of the end; None if it is too short or would not be forecast."""
    half = curve.until(len(curve.values) // 2)
    if len(half.values) < FEWEST or not half.completions[0] > 0 or half.doubt:
        return None
    return extrapolate(half, curve.completions[-1] / half.completions[-1])


def _miss(forecast: Interval90, end: float) -> float:
    """Return how far the end is from the median, in half widths of the interval."""
    off = end - forecast.middle
    return abs(off) / max(forecast.high - forecast.middle if off > 0 else forecast.middle - forecast.low, 1e-9)


def extrapolate(
    curve: Evaluations, factor: float = 2.0, calibration: Calibration = UNCALIBRATED
) -> Extrapolation | None:
    """Return what ``factor`` times the completions would give. None with too few evaluations."""
    if len(curve.values) < FEWEST or not curve.completions[0] > 0:
        return None
    import numpy as np

    done = np.array([*([] if curve.start is None else [0.0]), *curve.completions])
    seen, noise = curve.seen, WANDERS * curve.error
    last, spread = float(done[-1]), max(float(np.ptp(seen)), noise, 1e-12)
    shapes = [("sigmoid", b, place * last) for b in STEEPNESS for place in PLACES]
    shapes += [("power", b, place * last) for b in POWERS for place in PLACES]
    fits = [_regress(_shape(*shape, done), seen, noise, PRIOR_RISES * spread) for shape in shapes]
    evidence = np.array([fit.evidence for fit in fits])
    weights = np.exp(evidence - evidence.max())
    random = np.random.default_rng(0)
    counts = random.multinomial(DRAWS, weights / weights.sum())
    until = factor * last
    drawn = [
        _draw(fits[i], shapes[i], until, int(count), random) for i, count in enumerate(counts) if count
    ]  # one array a shape: rows are value, ceiling, place of half the rise
    value, ceiling, half = np.concatenate(drawn, axis=1)
    is_share = seen.min() >= 0 and seen.max() <= 1  # as most rewards are: it ends in its range, up to a standard error
    if is_share and (within := abs(value - 0.5) <= 0.5 + curve.error).sum() >= FEWEST_DRAWS:
        value, ceiling, half = value[within], ceiling[within], half[within]
    value, ceiling = _widen(value, calibration.width), _widen(ceiling, calibration.width)
    if is_share:
        value, ceiling = value.clip(0, 1), ceiling.clip(0, 1)
    return Extrapolation(until, _interval(value), _interval(ceiling), _interval(half), curve.doubt)


def _roughness(seen: "Array") -> float:
    """Return the noise of evaluations without standard errors: second differences of a smooth curve are noise alone."""
    import numpy as np

    return float(np.sqrt(np.mean(np.diff(seen, 2) ** 2) / 6)) + 1e-9


def _shape(kind: str, power: float, place: float, done: "Array") -> "Array":
    """Return the share of the rise after these completions."""
    import numpy as np

    if kind == "power":
        result: Array = 1 - (1 + done / place) ** -power
        return result
    risen: Array = np.where(done > 0, 1 / (1 + (place / np.maximum(done, 1e-9)) ** power), 0.0)
    return risen


@dataclass(frozen=True)
class _Regression:
    """The posterior of start and gain: a multivariate t distribution with its evidence."""

    mean: "Array"
    factor: "Array"  # lower Cholesky factor of the covariance over the noise variance
    degrees: float
    variance: float  # of the noise
    evidence: float  # logarithm, up to a constant


def _regress(share: "Array", seen: "Array", noise: float, wide: float) -> _Regression:
    """Return the regression of values on a shape, with a normal-inverse-gamma prior."""
    import numpy as np

    design = np.stack([np.ones_like(share), share / share[-1]], axis=1)  # all shapes explain a rise so far equally well
    centre = np.array([seen[0], 0.0])
    prior = np.eye(2) * (noise / wide) ** 2  # precision, in units of the noise
    precision = design.T @ design + prior
    mean = np.linalg.solve(precision, design.T @ seen + prior @ centre)
    off, pull = seen - design @ mean, mean - centre
    rate = WEIGHT * noise**2 + float(off @ off + pull @ prior @ pull)
    degrees = WEIGHT + len(seen)
    evidence = -0.5 * float(np.linalg.slogdet(precision)[1]) - 0.5 * degrees * math.log(rate)
    mean[1] /= share[-1]  # from the rise so far to the whole one
    factor = np.diag([1.0, 1 / share[-1]]) @ np.linalg.cholesky(np.linalg.inv(precision))
    return _Regression(mean, factor, degrees, rate / degrees, evidence)


def _draw(
    fit: _Regression, shape: tuple[str, float, float], until: float, count: int, random: "np.random.Generator"
) -> "Array":
    """Return draws: the evaluation after ``until`` completions with its noise, the ceiling, where half the rise is done."""
    import numpy as np

    deviation = np.sqrt(fit.variance * fit.degrees / random.chisquare(fit.degrees, count))
    start, gain = fit.mean[:, None] + fit.factor @ random.standard_normal((2, count)) * deviation
    value = start + gain * _shape(*shape, np.array([until])) + deviation * random.standard_normal(count)
    kind, power, place = shape
    half = place if kind == "sigmoid" else place * (2 ** (1 / power) - 1)
    return np.stack([value, start + gain, np.full(count, half)])


def _widen(drawn: "Array", width: float) -> "Array":
    import numpy as np

    middle = np.median(drawn)
    widened: Array = middle + width * (drawn - middle)
    return widened


def _interval(drawn: "Array") -> Interval90:
    import numpy as np

    low, middle, high = np.quantile(drawn, [TAIL, 0.5, 1 - TAIL])
    return Interval90(float(low), float(middle), float(high))
