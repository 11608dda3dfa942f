"""Extrapolate one learning curve to a larger budget: value, ceiling and speed, each with a 90 % interval.

A curve is start + gain x shape(completions). The shape rises from 0 to 1: a sigmoid in log completions (Khatri et al. 2025,
The Art of Scaling Reinforcement Learning Compute for LLMs) or a power law (arXiv 2509.25300). All shapes of a grid are fitted by
Bayesian linear regression and weighted by their evidence, so the interval counts that several shapes explain the curve.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


def extrapolate(
    completions: Sequence[float],
    values: Sequence[float],
    errors: Sequence[float | None] = (),
    start: float | None = None,
    factor: float = 2.0,
) -> Extrapolation | None:
    """Return what ``factor`` times the completions would give; larger values are better. None with too few evaluations."""
    if len(values) < FEWEST or not completions[0] > 0:
        return None
    import numpy as np

    known = [error for error in errors if error]
    done = np.array([*([0.0] if start is not None else []), *completions])
    seen = np.array([*([start] if start is not None else []), *values], dtype=float)
    noise = WANDERS * (sum(known) / len(known) if known else _roughness(seen))
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
    if seen.min() >= 0 and seen.max() <= 1:  # a share, as most rewards are: it ends within its range
        within = (ceiling >= 0) & (ceiling <= 1)
        if within.sum() >= FEWEST_DRAWS:
            value, ceiling, half = value[within], ceiling[within], half[within]
        value, ceiling = value.clip(0, 1), ceiling.clip(0, 1)
    return Extrapolation(until, _interval(value), _interval(ceiling), _interval(half), _doubt(seen, noise / WANDERS))


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


def _interval(drawn: "Array") -> Interval90:
    import numpy as np

    low, middle, high = np.quantile(drawn, [TAIL, 0.5, 1 - TAIL])
    return Interval90(float(low), float(middle), float(high))


def _doubt(seen: "Array", noise: float) -> str:
    """Return why a curve says little about its continuation."""
    last = seen[-2:]
    if float(seen.max() - last.max()) > NOISY * noise:
        return "it has fallen from its best evaluation, and a collapse has no ceiling"
    if float(last.mean() - seen[0]) < NOISY * noise:
        return "it has not risen yet, so nothing says when it will"
    return ""
