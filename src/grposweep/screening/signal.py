"""Pass rates of prompts, and the share of groups that carry a signal, from a few samples of each prompt.

A group carries a signal if its rewards are not all equal. If a completion passes with probability ``p``, a group of ``G``
does so with probability 1 - p^G - (1 - p)^G. The observed rate of 16 samples misleads: a prompt without a pass may have p = 0 or
p = 0.1. So the distribution of pass rates is fitted to all prompts, and each prompt's posterior follows from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import betaln, gammaln

Array = NDArray[np.float64]
Z95 = 1.959964  # quantile of the normal distribution for a 95 % interval
LOG_SIZES = (-3.0, 5.0)  # bounds of the Beta's parameters: beyond them the Beta is a point
LOG_SPREAD = 2.0  # standard deviation of the normal prior of their logarithms, against extreme fits to few prompts
STARTS = ((-1.0, -1.0), (1.0, 1.0))  # a Beta with two peaks, and with one
STEP = 0.05  # of the finite differences for a fit's covariance
EQUAL = 1e-8  # rewards that differ by less are equal, as in TRL (torch.isclose of the standard deviation and 0)


@dataclass(frozen=True)
class Prior:
    """The distribution of pass rates: shares of prompts that never and that always pass, and a Beta for the others."""

    never: float
    always: float
    a: float
    b: float


@dataclass(frozen=True)
class Share:
    """A share of groups with its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def around(cls, mean: float, error: float) -> "Share":
        """Return a share with this standard error."""
        return cls(mean, max(mean - Z95 * error, 0.0), min(mean + Z95 * error, 1.0))


def log_marginal(prior: Prior, passed: Array, samples: Array) -> Array:
    """Return the log-probability of these counts without the binomial factor. Counts of graded rewards are fractions."""
    with np.errstate(divide="ignore"):
        parts = [
            np.where(passed == 0, np.log(prior.never), -np.inf),
            np.where(passed == samples, np.log(prior.always), -np.inf),
            np.log(max(1 - prior.never - prior.always, 0.0))
            + betaln(prior.a + passed, prior.b + samples - passed)
            - betaln(prior.a, prior.b),
        ]
    return np.asarray(np.logaddexp.reduce(parts, axis=0))


def _prior_at(x: Array) -> Prior:
    """Return the prior from four unbounded numbers: the logits of its points and the logarithms of its Beta's parameters."""
    weights = np.exp([x[0], x[1], 0.0])
    a, b = np.exp(np.clip(x[2:], *LOG_SIZES))
    never, always, _ = weights / weights.sum()
    return Prior(float(never), float(always), float(a), float(b))


def fit_prior(passed: Array, samples: Array) -> tuple[Prior, list[tuple[Prior, Prior]]]:
    """Return the prior with the largest marginal likelihood (empirical Bayes), and pairs of priors around it.

    A Beta alone would give hopeless prompts a small pass rate, so the prior also has a point at 0 and one at 1. A pair
    lies one standard error to either side of the fit, along a principal axis of its covariance.
    """
    pairs, times = np.unique(np.stack([passed, samples]), axis=1, return_counts=True)

    def loss(x: Array) -> float:
        regular = 0.5 * float(np.sum((x[2:] / LOG_SPREAD) ** 2)) + 0.05 * float(np.sum(x[:2] ** 2))
        return regular - float(times @ log_marginal(_prior_at(x), *pairs))

    fits = [minimize(loss, (-2.0, -2.0, *start), method="Nelder-Mead", options={"xatol": 0.01}) for start in STARTS]
    best = min(fits, key=lambda fit: float(fit.fun)).x
    curvatures, axes = np.linalg.eigh(_hessian(loss, best))
    errors = 1 / np.sqrt(np.maximum(curvatures, 1 / LOG_SPREAD**2))
    sides = [(best + error * axis, best - error * axis) for error, axis in zip(errors, axes.T, strict=True)]
    return _prior_at(best), [(_prior_at(one), _prior_at(other)) for one, other in sides]


def _hessian(loss: Callable[[Array], float], x: Array) -> Array:
    """Return second derivatives by central differences."""
    steps = STEP * np.eye(len(x))
    return np.array(
        [
            [(loss(x + i + j) - loss(x + i - j) - loss(x - i + j) + loss(x - i - j)) / (4 * STEP**2) for j in steps]
            for i in steps
        ]
    )


@dataclass(frozen=True)
class PassRates:
    """The posterior of each prompt's pass rate: 0, 1 or Beta(a, b) with these weights. Each array has one value per prompt."""

    never: Array
    always: Array
    a: Array
    b: Array
    sides: tuple[tuple["PassRates", "PassRates"], ...] = ()  # under priors one standard error from the fit

    @classmethod
    def estimate(cls, passed: Sequence[float], samples: Sequence[int]) -> "PassRates":
        """Return the posterior after ``passed`` of ``samples``. The prior is fitted to all prompts."""
        k, n = np.asarray(passed, float), np.asarray(samples, float)
        prior, sides = fit_prior(k, n)
        return replace(cls.under(prior, k, n), sides=tuple((cls.under(p, k, n), cls.under(q, k, n)) for p, q in sides))

    @classmethod
    def under(cls, prior: Prior, passed: Sequence[float] | Array, samples: Sequence[int] | Array) -> "PassRates":
        """Return the posterior under a prior."""
        k, n = np.asarray(passed, float), np.asarray(samples, float)
        total = log_marginal(prior, k, n)
        with np.errstate(divide="ignore"):
            never = np.where(k == 0, np.exp(np.log(prior.never) - total), 0.0)
            always = np.where(k == n, np.exp(np.log(prior.always) - total), 0.0)
        return cls(never, always, prior.a + k, prior.b + n - k)

    @property
    def between(self) -> Array:
        """Return the probability of a rate between 0 and 1."""
        return np.clip(1 - self.never - self.always, 0.0, 1.0)

    @cached_property
    def means(self) -> Array:
        """Return the expected pass rates."""
        return self.always + self.between * self.a / (self.a + self.b)

    def only(self, prompts: Sequence[int] | Array) -> "PassRates":
        """Return the posteriors of the prompts at these positions."""
        chosen = np.asarray(prompts, int)
        arrays = (self.never[chosen], self.always[chosen], self.a[chosen], self.b[chosen])
        return PassRates(*arrays, tuple((p.only(chosen), q.only(chosen)) for p, q in self.sides))

    def signals(self, group: int) -> Array:
        """Return each prompt's expected probability that a group of ``group`` completions carries a signal (exact)."""
        return self.between * (1 - self._moment(group, 0) - self._moment(0, group))

    def share(self, group: int, population: int | None = None) -> Share:
        """Return the expected share of groups with a signal.

        ``population`` is the number of prompts from which these were drawn (None: these are all). The interval includes the
        variances of the posterior, of the fitted prior, and of the sample.
        """
        expected = self.signals(group)
        squares = self.between * (
            1 + self._moment(2 * group, 0) + self._moment(0, 2 * group)
            - 2 * self._moment(group, 0) - 2 * self._moment(0, group) + 2 * self._moment(group, group)
        )  # fmt: skip
        count = len(expected)
        missing = 0.0 if population is None else max(1 - count / population, 0.0)
        variance = float(np.sum(np.maximum(squares - expected**2, 0.0))) / count**2
        variance += sum(float(np.mean(p.signals(group)) - np.mean(q.signals(group))) ** 2 / 4 for p, q in self.sides)
        variance += missing * float(np.var(expected)) / max(count - 1, 1)
        return Share.around(float(np.mean(expected)), variance**0.5)

    def _moment(self, i: int, j: int) -> Array:
        """Return E[p^i (1 - p)^j] under Beta(a, b)."""
        return np.asarray(np.exp(betaln(self.a + i, self.b + j) - betaln(self.a, self.b)))


def graded_signals(rewards: Sequence[Sequence[float]], groups: Sequence[int]) -> Array:
    """Return the share of groups with variance for each prompt (row) and group size (column). Rewards may have any values.

    Up to the number of samples it is unbiased: the share of all subsets of the samples that are not all equal.
    Beyond it, samples are drawn with replacement, which gives a lower bound.
    """
    return np.stack([_differ(values, np.asarray(groups, float)) for values in rewards])


def _differ(values: Sequence[float], groups: Array) -> Array:
    size = len(values)
    if not size:
        return np.zeros(len(groups))
    ordered = np.sort(np.asarray(values, float))
    ends = np.flatnonzero(np.diff(ordered) > EQUAL)  # of values that count as one
    counts = np.diff(np.concatenate([[-1], ends, [size - 1]])).astype(float)[:, None]
    within = np.exp(_log_choose(counts, groups) - _log_choose(np.array([[float(size)]]), groups))
    within = np.where(groups <= counts, within, 0.0)
    same = np.where(groups <= size, within, (counts / size) ** groups)
    return np.asarray(1 - same.sum(0))


def _log_choose(of: Array, taken: Array) -> Array:
    rest = np.maximum(of - taken, 0.0)  # if there are too few, the caller ignores the result
    return np.asarray(gammaln(of + 1) - gammaln(taken + 1) - gammaln(rest + 1))


def graded_share(rewards: Sequence[Sequence[float]], group: int) -> Share:
    """Return the share of groups with variance over all prompts.

    The error is that of prompts drawn at random, an upper bound.
    """
    expected = graded_signals(rewards, [group])[:, 0]
    error = float(np.std(expected)) / max(len(expected) - 1, 1) ** 0.5
    return Share.around(float(np.mean(expected)), error)
