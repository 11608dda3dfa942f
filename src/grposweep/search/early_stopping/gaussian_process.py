"""A Gaussian process over dials and training time: what is known of any point's learning curve, given all curves seen.

A curve is a smooth function of the dials and of the logarithm of time, plus what its seed adds, plus the noise of each
evaluation. How much each dial matters, and how large either noise is, is fitted (the most probable of a few values each).
Only numpy and scipy; the cost is bounded by ``MOST`` observations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


MOST = 120  # observations
LENGTHS = (0.15, 0.3, 0.6, 1.2, 2.5, 8.0)  # of a dial, as shares of its range; the last says that it does not matter
TIMES = (0.3, 0.6, 1.2, 2.5)  # of training time
SEEDS = (0.003, 0.01, 0.03, 0.1, 0.3)  # variance that a seed adds, relative to that of the curves
NOISES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)  # variance of an evaluation, likewise
TYPICAL = 0.6  # a dial's length before anything is known,
SPREAD = 1.0  # and how far from it the natural logarithm of one may be

TYPICAL_TIME = 0.6
SPREAD_TIME = 0.25
TYPICAL_SEED = 0.03
PASSES = 2  # over all rates
FEWEST = 4  # observations to fit anything to


@dataclass(frozen=True)
class Rates:
    """How quickly curves change: hyperparameters of the process."""

    lengths: tuple[float, ...]
    time: float = 0.6
    seed: float = 0.03
    noise: float = 0.01


@dataclass(frozen=True)
class Observations:
    """Evaluations: whose (any number), at which dials, when (share of the training) and what was seen."""

    trial: "Array"
    dials: "Array"  # (observation, dial), each from 0 to 1
    labels: "Array"  # (observation, dial without an order), whole numbers
    share: "Array"
    value: "Array"


class Process:
    """The process given observations."""

    def __init__(self, seen: Observations, rates: Rates) -> None:
        import numpy as np
        from scipy.linalg import cho_factor, cho_solve

        self._seen, self.rates = seen, rates
        self._middle = float(np.mean(seen.value))
        covariance = _covariance(seen, seen, rates, shared=False)
        covariance[np.diag_indices_from(covariance)] += rates.noise
        self._factor = cho_factor(covariance, lower=True, check_finite=False)
        centred = seen.value - self._middle
        self._weights = cho_solve(self._factor, centred, check_finite=False)
        # a scale that a handful of values does not make absurdly small
        prior = float(np.var(seen.value)) + 1e-12
        self.scale = (float(centred @ self._weights) + 2 * prior) / (len(centred) + 2)

    def probability(self) -> float:
        """Logarithm of how probable the observations are, up to a constant, with the priors of the rates."""
        import numpy as np

        count = len(self._seen.value)
        likelihood = -0.5 * count * np.log(self.scale) - float(np.log(np.diag(self._factor[0])).sum())
        rates = self.rates
        prior = sum((np.log(length / TYPICAL) / SPREAD) ** 2 for length in rates.lengths)
        prior += (np.log(rates.time / TYPICAL_TIME) / SPREAD_TIME) ** 2 + (np.log(rates.seed / TYPICAL_SEED) / 1.0) ** 2
        return float(likelihood - 0.5 * prior)

    def mean(self, wanted: Observations, shared: bool) -> "Array":
        """What is expected, without its uncertainty."""
        mean: Array = self._middle + _covariance(wanted, self._seen, self.rates, shared) @ self._weights
        return mean

    def predict(self, wanted: Observations, shared: bool) -> tuple["Array", "Array"]:
        """Means and standard deviations without the noise of an evaluation; ``shared``: nor what a seed adds."""
        import numpy as np
        from scipy.linalg import solve_triangular

        cross = _covariance(wanted, self._seen, self.rates, shared)
        mean = self._middle + cross @ self._weights
        half = solve_triangular(self._factor[0], cross.T, lower=True, check_finite=False)
        own = 1.0 + 1.0 + (0.0 if shared else self.rates.seed)
        variance = self.scale * np.maximum(own - np.einsum("ij,ij->j", half, half), 1e-9)
        return mean, np.sqrt(variance)


def _time(share: "Array") -> "Array":
    """Early training counts for more: 0 to 1, a tenth of the training being 0.28."""
    import numpy as np

    time: Array = np.log1p(9 * share) / np.log(10)
    return time


def _matern(distance: "Array") -> "Array":
    """Matern 5/2."""
    import numpy as np

    scaled = np.sqrt(5.0) * distance
    similarity: Array = (1 + scaled + scaled * scaled / 3) * np.exp(-scaled)
    return similarity


def _covariance(a: Observations, b: Observations, rates: Rates, shared: bool) -> "Array":
    import numpy as np

    lengths = np.array(rates.lengths)
    ordered = a.dials.shape[1]
    left, right = a.dials / lengths[:ordered], b.dials / lengths[:ordered]
    apart = (left * left).sum(1)[:, None] + (right * right).sum(1)[None] - 2 * left @ right.T
    for index in range(a.labels.shape[1]):
        apart = apart + (a.labels[:, index, None] != b.labels[None, :, index]) / lengths[ordered + index] ** 2
    time = _matern(np.abs(_time(a.share)[:, None] - _time(b.share)[None]) / rates.time)
    result = (_matern(np.sqrt(np.maximum(apart, 0.0))) + 1.0) * time
    if not shared:
        result = result + rates.seed * (a.trial[:, None] == b.trial[None]) * time
    return result


def fit(seen: Observations) -> Rates:
    """The most probable rates, looked for one after the other."""
    key = (
        seen.trial.tobytes(),
        seen.dials.tobytes(),
        seen.labels.tobytes(),
        seen.share.tobytes(),
        seen.value.tobytes(),
    )
    return _fit(key, _Same(seen))


class _Same:
    """An argument that a cache does not look at."""

    def __init__(self, seen: Observations) -> None:
        self.seen = seen

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=64)
def _fit(_key: object, same: _Same) -> Rates:
    seen = same.seen
    best = Rates((TYPICAL,) * (seen.dials.shape[1] + seen.labels.shape[1]))
    if len(seen.value) < FEWEST:
        return best
    reached = Process(seen, best).probability()
    for _ in range(PASSES):
        before = best
        for index in range(len(best.lengths) + 3):
            for candidate in _neighbours(best, index):
                probability = Process(seen, candidate).probability()
                if probability > reached:
                    best, reached = candidate, probability
        if best == before:
            break
    return best


def _neighbours(rates: Rates, index: int) -> list[Rates]:
    """The rates with one of them a step smaller or larger."""
    dials = len(rates.lengths)
    if index < dials:
        lengths = rates.lengths
        return [
            replace(rates, lengths=(*lengths[:index], value, *lengths[index + 1 :]))
            for value in _beside(LENGTHS, lengths[index])
        ]
    if index == dials:
        return [replace(rates, time=value) for value in _beside(TIMES, rates.time)]
    if index == dials + 1:
        return [replace(rates, seed=value) for value in _beside(SEEDS, rates.seed)]
    return [replace(rates, noise=value) for value in _beside(NOISES, rates.noise)]


def _beside(values: Sequence[float], value: float) -> list[float]:
    at = values.index(value)
    return [values[i] for i in (at - 1, at + 1) if 0 <= i < len(values)]
