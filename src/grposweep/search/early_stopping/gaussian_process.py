"""A Gaussian process over parameters and training time, which predicts the learning curve of any point.

A curve is a smooth function of the parameters and of the logarithm of time, plus an offset of its seed, plus the noise of
each evaluation. How much each parameter matters, and how large both noises are, is fitted (the most probable of a few values
each). It needs numpy and scipy only; its cost is bounded by ``MOST`` observations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


MOST = 120  # observations
LENGTHS = (
    0.15,
    0.3,
    0.6,
    1.2,
    2.5,
    8.0,
)  # length scales, as shares of a parameter's range; the last one means no influence
TIMES = (0.3, 0.6, 1.2, 2.5)  # of training time
SEEDS = (0.003, 0.01, 0.03, 0.1, 0.3)  # variance that a seed adds, relative to that of the curves
NOISES = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)  # variance of an evaluation, likewise
TYPICAL = 0.6  # a parameter's length scale before anything is known,
SPREAD = 1.0  # and how far from it the natural logarithm of one may be

TYPICAL_TIME = 0.6
SPREAD_TIME = 0.25
TYPICAL_SEED = 0.03
PASSES = 2  # over all kernel parameters
FEWEST = 4  # observations to fit anything to
REMEMBERED = 64  # fits


@dataclass(frozen=True)
class KernelParams:
    """Length scales and relative variances of the kernel."""

    lengths: tuple[float, ...]
    time: float = 0.6
    seed: float = 0.03
    noise: float = 0.01


@dataclass(frozen=True)
class Observations:
    """Evaluations: the trial (any number), its parameters, the share of the training, and the value."""

    trial: "Array"
    parameters: "Array"  # (observation, parameter), each from 0 to 1
    labels: "Array"  # (observation, parameter without an order), whole numbers
    share: "Array"
    value: "Array"


class GaussianProcess:
    """The posterior given observations."""

    def __init__(self, seen: Observations, params: KernelParams) -> None:
        import numpy as np
        from scipy.linalg import cho_factor, cho_solve

        self._seen, self.params = seen, params
        self._middle = float(np.mean(seen.value))
        covariance = _covariance(seen, seen, params, shared=False)
        covariance[np.diag_indices_from(covariance)] += params.noise
        self._factor = cho_factor(covariance, lower=True, check_finite=False)
        centred = seen.value - self._middle
        self._weights = cho_solve(self._factor, centred, check_finite=False)
        # a scale that a handful of values does not make absurdly small
        prior = float(np.var(seen.value)) + 1e-12
        self.scale = (float(centred @ self._weights) + 2 * prior) / (len(centred) + 2)

    def probability(self) -> float:
        """Return the logarithm of the posterior probability of the kernel parameters, up to a constant."""
        import numpy as np

        count = len(self._seen.value)
        likelihood = -0.5 * count * np.log(self.scale) - float(np.log(np.diag(self._factor[0])).sum())
        params = self.params
        prior = sum((np.log(length / TYPICAL) / SPREAD) ** 2 for length in params.lengths)
        prior += (np.log(params.time / TYPICAL_TIME) / SPREAD_TIME) ** 2 + np.log(params.seed / TYPICAL_SEED) ** 2
        return float(likelihood - 0.5 * prior)

    def mean(self, wanted: Observations, shared: bool) -> "Array":
        """Return the means without their uncertainty."""
        mean: Array = self._middle + _covariance(wanted, self._seen, self.params, shared) @ self._weights
        return mean

    def predict(self, wanted: Observations, shared: bool) -> tuple["Array", "Array"]:
        """Return means and standard deviations without evaluation noise; with ``shared`` also without the seed's offset."""
        import numpy as np
        from scipy.linalg import solve_triangular

        cross = _covariance(wanted, self._seen, self.params, shared)
        mean = self._middle + cross @ self._weights
        half = solve_triangular(self._factor[0], cross.T, lower=True, check_finite=False)
        own = 1.0 + 1.0 + (0.0 if shared else self.params.seed)
        variance = self.scale * np.maximum(own - np.einsum("ij,ij->j", half, half), 1e-9)
        return mean, np.sqrt(variance)


def _time(share: "Array") -> "Array":
    """Return 0 to 1 on a logarithmic scale: early training counts for more, a tenth of it is 0.28."""
    import numpy as np

    time: Array = np.log1p(9 * share) / np.log(10)
    return time


def _matern(distance: "Array") -> "Array":
    """Matern 5/2."""
    import numpy as np

    scaled = np.sqrt(5.0) * distance
    similarity: Array = (1 + scaled + scaled * scaled / 3) * np.exp(-scaled)
    return similarity


def _covariance(a: Observations, b: Observations, params: KernelParams, shared: bool) -> "Array":
    import numpy as np

    lengths = np.array(params.lengths)
    ordered = a.parameters.shape[1]
    left, right = a.parameters / lengths[:ordered], b.parameters / lengths[:ordered]
    apart = (left * left).sum(1)[:, None] + (right * right).sum(1)[None] - 2 * left @ right.T
    for index in range(a.labels.shape[1]):
        apart = apart + (a.labels[:, index, None] != b.labels[None, :, index]) / lengths[ordered + index] ** 2
    time = _matern(np.abs(_time(a.share)[:, None] - _time(b.share)[None]) / params.time)
    result = (_matern(np.sqrt(np.maximum(apart, 0.0))) + 1.0) * time
    if not shared:
        result = result + params.seed * (a.trial[:, None] == b.trial[None]) * time
    return result


_fitted: dict[object, KernelParams] = {}


def fit(seen: Observations) -> KernelParams:
    """Return the most probable kernel parameters by coordinate search; the latest ``REMEMBERED`` answers are kept."""
    key = tuple(array.tobytes() for array in (seen.trial, seen.parameters, seen.labels, seen.share, seen.value))
    if key not in _fitted:
        while len(_fitted) >= REMEMBERED:
            del _fitted[next(iter(_fitted))]
        _fitted[key] = _fit(seen)
    return _fitted[key]


def _fit(seen: Observations) -> KernelParams:
    best = KernelParams((TYPICAL,) * (seen.parameters.shape[1] + seen.labels.shape[1]))
    if len(seen.value) < FEWEST:
        return best
    reached = GaussianProcess(seen, best).probability()
    for _ in range(PASSES):
        before = best
        for index in range(len(best.lengths) + 3):
            for candidate in _neighbours(best, index):
                probability = GaussianProcess(seen, candidate).probability()
                if probability > reached:
                    best, reached = candidate, probability
        if best == before:
            break
    return best


def _neighbours(params: KernelParams, index: int) -> list[KernelParams]:
    """Return the parameters with one of them a step smaller or larger."""
    parameters = len(params.lengths)
    if index < parameters:
        lengths = params.lengths
        values = _adjacent(LENGTHS, lengths[index])
        return [replace(params, lengths=(*lengths[:index], value, *lengths[index + 1 :])) for value in values]
    if index == parameters:
        return [replace(params, time=value) for value in _adjacent(TIMES, params.time)]
    if index == parameters + 1:
        return [replace(params, seed=value) for value in _adjacent(SEEDS, params.seed)]
    return [replace(params, noise=value) for value in _adjacent(NOISES, params.noise)]


def _adjacent(values: Sequence[float], value: float) -> list[float]:
    at = values.index(value)
    return [values[i] for i in (at - 1, at + 1) if 0 <= i < len(values)]
