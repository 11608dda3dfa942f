"""Choose new points and pause trials by expected improvement per remaining cost.

A Gaussian process forecasts the final value of every unfinished trial and of random new points from all learning curves
(``freeze_thaw.py``). Each is scored by its expected improvement over the best that has finished, divided by the completions
that it still has to generate. The sampler of the same name takes the new point with the highest score. A trial that is behind
(``curve.py``) is paused while a paused trial or a new point scores higher, and may be promoted later. Any other continues:
where most curves are short the forecast is too certain, and without this condition it lost the best point in wide spaces.

With several slots, a new point is scored as if the running trials had finished with their predicted values. So no two slots
start the same idea. Every answer is a pure function of the curves and of the search's seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, NoStopping, SearchContext, State
from grposweep.search.early_stopping.curve import is_behind, keep, landmark
from grposweep.search.early_stopping.freeze_thaw import BOUNDARY, DOUBT, Features, Process, Rows, fit
from grposweep.search.space import Point, Space, freeze

if TYPE_CHECKING:
    from grposweep.search.early_stopping.freeze_thaw import Array

START = 4  # points that fill the space before anything is forecast
STRATA = 4  # equal parts of each coordinate that these points are spread over
CANDIDATES = 200  # random new points
CHEAPEST = 0.05  # of a usual training: the least remaining cost that is assumed
LAST = 0.02  # chance that any paused trial is better than the best, up to which a sweep may end
HEADROOM = 1.25  # times the range seen is the range of a metric without bounds
TAIL = 3  # times as far from the median as the highest value is the lowest that counts
ENDED = (State.FINISHED, State.STOPPED)
MOST = 140  # observations of the forecast,
FITTED = 70  # and of its kernel


class CurveEiPolicy(NoStopping):
    """Pause, promote and propose by expected improvement per remaining cost."""

    def __init__(self) -> None:
        self.begin(SearchContext(Space(), has_points=lambda: False))

    def begin(self, context: SearchContext) -> None:
        """Store the search context."""
        self._context = context
        self._features: Features | None = None
        self._made: dict[object, Forecasts] = {}

    def decide(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """Pause a trial that is behind if a paused one or a new point promises more."""
        begun = [other for other in others if _is_begun(other)]
        if curve.total <= 0 or len(begun) + 1 < START or not is_behind(curve, begun):
            return CONTINUE
        forecasts = self.forecasts([*others, curve], curve.number)
        if not self._context.has_points():
            return self._finish(forecasts, curve, _paused(begun))
        own = forecasts.scores([curve])[0]
        rival = max([*forecasts.scores(_paused(begun)), *forecasts.worths], default=0.0)
        if own >= rival:
            return CONTINUE
        share = own / rival
        return Decision(Action.PAUSE, f"it promises {share:.0%} of the best other choice for its remaining cost")

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the most promising paused trial, unless a new point promises more."""
        paused = _paused(list(filter(_is_begun, curves)))
        if (more and len(curves) < START) or not paused:
            return None
        forecasts = self.forecasts(curves)
        if not more:
            chances = forecasts.chances(paused)
            best = max(zip(chances, paused, strict=True), key=lambda pair: pair[0])
            return best[1].number if any_of(chances) >= LAST else None
        score, trial = max(zip(forecasts.scores(paused), paused, strict=True), key=lambda pair: pair[0])
        return trial.number if score >= max(forecasts.worths, default=0.0) else None

    def _finish(self, forecasts: "Forecasts", curve: Curve, paused: Sequence[Curve]) -> Decision:
        """Decide once no new trial will start: end if the chance that a paused trial is better is at most LAST."""
        own, *others = forecasts.chances([curve, *paused])
        if own >= LAST or (own >= max(others, default=0.0) and any_of([own, *others]) >= LAST):
            return CONTINUE
        return Decision(Action.PAUSE, f"chance to be better than the best that has finished {own:.1%}")

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the expected final values of unfinished trials with an evaluation."""
        unfinished = [c for c in keep(list(filter(_is_begun, curves))) if c.state != State.FINISHED]
        return self.forecasts(curves).values(unfinished) if unfinished else {}

    def propose(self, curves: Sequence[Curve]) -> list[Point]:
        """Return new points, the most promising first; the first ones of a search fill the space."""
        if sum(map(_is_begun, curves)) >= START:
            forecasts = self.forecasts(curves)
            return ranked(forecasts.candidates, forecasts.worths)
        drawn = self._draw(curves)
        return ranked(drawn, self._spread(curves, drawn))

    def _spread(self, curves: Sequence[Curve], points: Sequence[Point]) -> list[float]:
        """Count the coordinates, negated, in which earlier trials lie in the same part."""
        known = self._known_features()
        parts = [[int(value * STRATA * 0.999) for value in known.place(curve.point)[0]] for curve in curves]
        rows = [[int(value * STRATA * 0.999) for value in known.place(point)[0]] for point in points]
        return [-float(sum(a == b for part in parts for a, b in zip(part, row, strict=True))) for row in rows]

    def _draw(self, curves: Sequence[Curve]) -> list[Point]:
        """Return random new points, the same ones for the same curves."""
        context = self._context
        random = Random(f"{context.seed}:{len(curves)}:{sum(len(curve.held_out) for curve in curves)}")
        drawn = context.draw(random, CANDIDATES)
        if not context.space.is_finite:
            return drawn
        started = {freeze(curve.point) for curve in curves}
        return [point for point in drawn if freeze(point) not in started]

    def _known_features(self) -> Features:
        if self._features is None:
            self._features = Features(self._context)
        return self._features

    def forecasts(self, curves: Sequence[Curve], judged: int | None = None) -> "Forecasts":
        """Return the forecast from these curves, of which the last is kept; their order does not matter.

        Pausing a trial changes neither what is known nor what runs. So the same forecast judges it and fills its slot.
        """
        ordered = sorted(curves, key=lambda curve: curve.number)
        pending = [c for c in ordered if c.state == State.RUNNING and c.number != judged]
        known = ((c.number, c.state in ENDED, len(c.held_out), *c.held_out[-1:], c.total) for c in ordered)
        key = (*(curve.number for curve in pending), *known)
        if key not in self._made:
            self._made = {key: Forecasts(self._known_features(), ordered, pending, self._draw(ordered))}
        return self._made[key]


class Forecasts:
    """The state at one moment: forecasts of final values, and the value of each choice.

    ``pending`` are the running trials but for one that is judged. To new points they count as finished.
    ``candidates`` are new points.
    """

    def __init__(
        self, features: Features, curves: Sequence[Curve], pending: Sequence[Curve], candidates: Sequence[Point]
    ) -> None:
        self.candidates, self._features, self._pending = candidates, features, pending
        self._begun = keep(list(filter(_is_begun, curves)))
        self._warp = choose_warp(self._begun)

    @cached_property
    def _process(self) -> Process:
        looks = [(curve, index) for curve in self._begun for index in range(len(curve.held_out))]
        fitted = looks
        if len(looks) > FITTED:  # then a new evaluation changes little
            fitted = [(c, i) for c in self._begun[: landmark(len(self._begun))] for i in _milestones(c)]
        kernel = fit(*self._observed(fitted, FITTED), self._features.groups)
        return Process(*self._observed(looks, MOST), self._features.groups, kernel)

    @cached_property
    def _guessed(self) -> Process:
        """Return the forecast as if the running trials had finished with their predicted values."""
        return self._process.with_guesses(self._finals([curve.point for curve in self._pending]))

    def _observed(self, looks: Sequence[tuple[Curve, int]], most: int) -> "tuple[Rows, Array]":
        """Return these evaluations; of too many each curve's last, and of too many curves those with the highest values."""
        import numpy as np

        if len(looks) > most:
            looks = list({curve.number: (curve, index) for curve, index in looks}.values())
        if len(looks) > most:
            looks = sorted(looks, key=lambda look: -look[0].held_out[look[1]])[:most]
        values = np.array([self._warp(curve.held_out[index]) for curve, index in looks])
        shares = [min(curve.completions[index] / curve.total, 1.0) for curve, index in looks]
        return self._rows([c.point for c, _ in looks], shares, [c.number for c, _ in looks]), values

    def _rows(self, points: Sequence[Point], shares: Sequence[float], trials: Sequence[float]) -> Rows:
        import numpy as np

        places = [self._features.place(point) for point in points]
        times = [self._features.times(end, share) for (_, end, _), share in zip(places, shares, strict=True)]
        features = np.array([coordinates for coordinates, _, _ in places]).reshape(
            len(points), len(self._features.groups)
        )
        return Rows(features, np.array(times).reshape(-1, 2), np.array(trials, dtype=float))

    def _finals(self, points: Sequence[Point]) -> Rows:
        return self._rows(points, [1.0] * len(points), [math.nan] * len(points))

    def _predict(self, points: Sequence[Point], process: Process | None = None) -> "tuple[Array, Array]":
        mean, deviation = (process or self._process).predict(self._finals(points))
        return mean, deviation * self._doubt

    @property
    def _doubt(self) -> float:
        """Return the factor of deviations: with few curves the kernel's best parameters are overconfident."""
        return math.sqrt(1 + DOUBT / max(len(self._begun), 1))

    @cached_property
    def _best(self) -> Curve | None:
        """Return the finished trial with the best forecast."""
        ended = [curve for curve in self._begun if curve.state == State.FINISHED]
        means, _ = self._predict([curve.point for curve in ended])
        return ended[int(means.argmax())] if ended else None

    @cached_property
    def _bar(self) -> float:
        """Return the best forecast of a finished trial; before one has finished, the middle of all."""
        import numpy as np

        ended = [curve for curve in self._begun if curve.state == State.FINISHED]
        means, _ = self._predict([curve.point for curve in ended or self._begun])
        return float(means.max() if ended else np.median(means))

    @cached_property
    def _usual(self) -> float:
        """Return the completions of a usual training."""
        totals = sorted(curve.total for curve in self._begun)
        return max(totals[len(totals) // 2], 1e-9)

    def scores(self, curves: Sequence[Curve]) -> list[float]:
        """Return the expected improvement per remaining cost of unfinished trials."""
        mean, deviation = self._predict([curve.point for curve in curves])
        remaining = [curve.total * (1 - curve.share) for curve in curves]
        return self._per_cost(expected_improvement(mean, deviation, self._bar), remaining)

    @cached_property
    def worths(self) -> list[float]:
        """Return the expected improvement per cost of each candidate."""
        totals = [self._features.place(point)[2] or self._usual for point in self.candidates]
        bar, process = self._bar, self._process
        if self._pending:  # a new point has to beat these as well
            bar = max(bar, *self._predict([curve.point for curve in self._pending])[0])
            process = self._guessed
        mean, deviation = self._predict(self.candidates, process)
        return self._per_cost(expected_improvement(mean, deviation, bar), totals)

    def _per_cost(self, gains: "Array", costs: Sequence[float]) -> list[float]:
        import numpy as np

        shares = np.maximum(np.array(costs) / self._usual, CHEAPEST)
        return [float(gain) for gain in gains / shares]

    def improvement(self) -> float:
        """Return the largest expected improvement of any new point or unfinished trial, in the objective's own unit."""
        unfinished = [curve for curve in self._begun if curve.state in (State.PAUSED, State.RUNNING)]
        mean, deviation = self._predict([*self.candidates, *(curve.point for curve in unfinished)])
        return self._gain(float(expected_improvement(mean, deviation, self._bar).max(initial=0.0)))

    @property
    def noise(self) -> float:
        """Return the standard deviation of an evaluation, estimated from the curves, in the objective's unit."""
        return self._gain(math.sqrt(self._process.kernel.noise * self._process.scale))

    def _gain(self, step: float) -> float:
        """Return what a step above the best forecast is in the objective's own unit."""
        return self._warp.undo(self._bar + step) - self._warp.undo(self._bar)

    def chances(self, curves: Sequence[Curve]) -> list[float]:
        """Return the chance of each trial to be better than the best that has finished, which is not certain itself."""
        if self._best is None:
            return [1.0] * len(curves)
        gap, deviation = self._process.compare(
            self._finals([curve.point for curve in curves]), self._finals([self._best.point])
        )
        doubt = self._doubt
        return [0.5 * math.erfc(-g / (d * doubt * math.sqrt(2))) for g, d in zip(gap, deviation, strict=True)]

    def values(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the predicted final values of trials, in the objective's own unit."""
        mean, _ = self._predict([curve.point for curve in curves])
        return {curve.number: self._warp.undo(float(value)) for curve, value in zip(curves, mean, strict=True)}


def ranked(points: Sequence[Point], worths: Sequence[float]) -> list[Point]:
    """Return points by their worth, the highest first."""
    return [points[index] for index in sorted(range(len(points)), key=lambda index: -worths[index])]


def any_of(chances: Sequence[float]) -> float:
    """Return the chance that at least one of several independent events happens."""
    return 1 - math.prod(1 - chance for chance in chances)


def expected_improvement(mean: "Array", deviation: "Array", bar: float) -> "Array":
    """Return the mean of max(value - bar, 0) of normal values. Source: Jones, Schonlau and Welch 1998."""
    import numpy as np
    from scipy.special import ndtr

    apart = (mean - bar) / deviation
    result: Array = deviation * (apart * ndtr(apart) + np.exp(-apart * apart / 2) / math.sqrt(2 * math.pi))
    return result


@dataclass(frozen=True)
class Logit:
    """Stretch a metric near both ends of its range, where equal steps are not equally hard; values outside are cut off."""

    low: float = 0.0
    width: float = 1.0

    def __call__(self, value: float) -> float:
        """Return a value on this scale."""
        share = min(max((value - self.low) / self.width, 0.0), 1.0)
        return math.log((share + BOUNDARY) / (1 - share + BOUNDARY))

    def undo(self, value: float) -> float:
        """Return the original value."""
        odds = math.exp(min(value, 700.0))
        share = (odds * (1 + BOUNDARY) - BOUNDARY) / (1 + odds)
        return self.low + self.width * min(max(share, 0.0), 1.0)


def choose_warp(curves: Sequence[Curve]) -> Logit:
    """Return the scale of the forecast. The range of a metric that leaves 0 to 1 is that of its values, with headroom.

    Values far below the median do not widen it: how far a trial has collapsed does not matter.
    """
    values = sorted(value for curve in curves for value in curve.held_out)
    if not values or (values[0] >= 0 and values[-1] <= 1):
        return Logit()
    middle, high = values[len(values) // 2], values[-1]
    low = max(values[0], middle - TAIL * max(high - middle, 1e-3 * abs(high)))
    return Logit(low, max(HEADROOM * (high - low), 1e-9))


def _is_begun(curve: Curve) -> bool:
    """Return whether a trial has an evaluation and states its share of the training."""
    return bool(curve.held_out) and curve.total > 0


def _paused(begun: Sequence[Curve]) -> list[Curve]:
    """Return the paused trials of those that a forecast is made from."""
    return [curve for curve in keep(begun) if curve.state == State.PAUSED]


def _milestones(curve: Curve) -> list[int]:
    """Return the indices of evaluations 1, 4, 16, ... and of a finished curve's last: kernels are fitted to few changes."""
    count = len(curve.held_out)
    powers = {4**power - 1 for power in range(count.bit_length()) if 4**power <= count}
    return sorted(powers | ({count - 1} if curve.state == State.FINISHED else set()))
