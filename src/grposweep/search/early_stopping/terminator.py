"""Detect when a search has converged: no choice is expected to improve the best by more than the metric's noise.

The idea is Optuna's Terminator (Makarova et al. 2022, Automatic Termination for Hyperparameter Optimization). Here the expected
improvement of new points and of unfinished trials comes from the forecast of all learning curves (``curve_ei.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from grposweep.search.early_stopping import Curve, SearchContext, State
from grposweep.search.early_stopping.curve_ei import CurveEiPolicy

MIN_FINISHED = 4  # trials; with fewer the forecast has not seen how trainings end
MIN_TRIALS = 10  # with an evaluation


@dataclass(frozen=True)
class Convergence:
    """The largest expected improvement of any choice, and the noise of an evaluation, both in the metric's unit."""

    improvement: float
    noise: float

    @property
    def is_reached(self) -> bool:
        """Return whether no choice is expected to gain more than the noise."""
        return self.improvement < self.noise


class Terminator:
    """Judges by the learning curves of a search whether it has converged; a pure function of them and of the seed."""

    def __init__(self, context: SearchContext) -> None:
        self._forecaster = CurveEiPolicy()
        self._forecaster.begin(context)

    def judge(self, curves: Sequence[Curve]) -> Convergence | None:
        """Return the largest possible gain, or None if too little is known."""
        begun = [curve for curve in curves if curve.held_out and curve.total > 0]
        finished = [curve for curve in begun if curve.state == State.FINISHED]
        if len(finished) < MIN_FINISHED or len(begun) < MIN_TRIALS:
            return None
        forecasts = self._forecaster.forecasts(curves)
        best = max(finished, key=lambda curve: curve.held_out[-1])
        error = best.errors[-1] if best.errors else None
        return Convergence(forecasts.improvement(), error or forecasts.noise)
