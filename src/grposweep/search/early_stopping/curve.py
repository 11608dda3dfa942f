"""Pause a trial when it is behind and unlikely to end among the best; the chance comes from a forecast of all learning curves.

The forecast compares a trial with others, most of all with those of similar parameters. It is not asked about a trial that only
starts slowly: early values hardly tell how far a training will rise, and a forecast from curves that were paused early mistakes
short curves for flat ones. A trial is behind if it has fallen below its start. From half of the training on it is also behind if
it is in the lower half of the trials that came as far. No trial is stopped finally. A pause costs little, because a trial
resumes from its checkpoint, and a paused trial is promoted if it becomes promising as more is known.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, NoStopping, State
from grposweep.search.space import Label, Point, freeze

if TYPE_CHECKING:
    from grposweep.search.early_stopping.gaussian_process import Observations

PAUSE = 0.15  # a trial is paused if its chance to end among the best is lower
LAST = 0.02  # a paused trial is resumed if its chance is higher and nothing new will be started
KNOWN = 2  # fewest other curves by which a trial is judged
RIVALS = 3  # fewest curves as long as a trial's by which it is judged, unless it has fallen
JUDGED = 0.5  # share of the training before which a trial only has to stay above its start
SAME = 1e-3  # shares that differ by less are the same
FALLEN = 2.0  # standard errors below the start
BENDS = 4  # fewest second differences from which the noise of a metric without standard errors is estimated
KEPT = 160  # curves that a forecast is made from; of more, the highest and the latest of each
NEW = 64  # unseen points by whose chances a new trial is valued


class CurvePolicy(NoStopping):
    """Pause by the forecast of all curves, and promote trials that become promising."""

    def decide(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """Pause a trial that is unlikely to end among the best."""
        begun = [other for other in others if other.held_out]
        if not is_behind(curve, begun):
            return CONTINUE
        begun = keep(begun)
        known = forecast([*begun, curve])
        bar = _bar(known, begun)
        chance = known.finals([curve])[0].chance(bar)
        if chance >= PAUSE:
            return CONTINUE
        return Decision(
            Action.PAUSE, f"chance to end among the best {chance:.0%} after {curve.share:.0%} of the training"
        )

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return the paused trial that is most likely to end among the best, unless a new one is more likely to."""
        begun = keep([curve for curve in curves if curve.held_out])
        paused = [curve for curve in begun if curve.state == State.PAUSED]
        if not paused:
            return None
        known = forecast(begun)
        bar = _bar(known, begun)
        chances = {c.number: p.chance(bar) for c, p in zip(paused, known.finals(paused), strict=True)}
        number = max(chances, key=chances.__getitem__)
        least = _new_chance(known, begun, bar) if more else LAST
        return number if chances[number] >= least else None

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the expected final values of unfinished trials with an evaluation; of many, the highest and the latest."""
        begun = keep([curve for curve in curves if curve.held_out])
        unfinished = [curve for curve in begun if curve.state != State.FINISHED]
        if not unfinished:
            return {}
        known = forecast(begun)
        means = known.means(unfinished)
        return {curve.number: known.value(mean) for curve, mean in zip(unfinished, means, strict=True)}


def keep(curves: Sequence[Curve]) -> list[Curve]:
    """Return at most ``KEPT`` curves by number: half the highest ones and half the latest."""
    ordered = sorted(curves, key=lambda curve: curve.number)
    if len(ordered) <= KEPT:
        return ordered
    latest = ordered[-KEPT // 2 :]
    highest = sorted(ordered[: -KEPT // 2], key=lambda curve: curve.held_out[-1], reverse=True)
    return sorted([*latest, *highest[: KEPT // 2]], key=lambda curve: curve.number)


def is_behind(curve: Curve, others: Sequence[Curve]) -> bool:
    """Return whether a forecast may pause a trial at all: it has fallen or lags, and does not lead."""
    return len(others) >= KNOWN and not _leads(curve, others) and (_has_fallen(curve, others) or _lags(curve, others))


def _leads(curve: Curve, others: Sequence[Curve]) -> bool:
    """Return whether a trial was above every other one at each of its evaluations: no forecast may pause that one."""
    mine, rivals = _by_share(curve), 0
    for other in others:
        for share, theirs in _by_share(other).items():
            if share not in mine:
                continue
            if theirs >= mine[share]:
                return False
            rivals += 1
    return rivals > 0


def _has_fallen(curve: Curve, others: Sequence[Curve]) -> bool:
    """Return whether a trial is below its start by more than the noise of an evaluation."""
    if curve.start is None or curve.held_out[-1] >= curve.start:
        return False
    error = next((error for error in reversed(curve.errors) if error is not None), None)
    return curve.held_out[-1] < curve.start - FALLEN * (_scatter(keep([curve, *others])) if error is None else error)


def _scatter(curves: Sequence[Curve]) -> float:
    """Estimate the standard error of an evaluation from curves that state none. Return infinity if there are too few.

    It is a median, so that few turns count little. The curvature of a smooth curve counts as noise, which errs on the safe side.
    """
    series = [(*([] if curve.start is None else [curve.start]), *curve.held_out) for curve in curves]
    bends = sorted(
        abs(a - 2 * b + c) for values in series for a, b, c in zip(values, values[1:], values[2:], strict=False)
    )
    if len(bends) < BENDS:
        return math.inf
    return bends[len(bends) // 2] / (0.6745 * math.sqrt(6))  # the median of a - 2b + c if noise is normal


def _lags(curve: Curve, others: Sequence[Curve]) -> bool:
    """Return whether a trial is late enough to be compared, and in the lower half of those that were, at the same share.

    Paused trials count with their last value: survivors alone would be an ever harder comparison.
    """
    if curve.share < JUDGED - SAME:
        return False
    rivals = [_value_at(other, curve.share + SAME) for other in others if other.share >= JUDGED - SAME]
    return len(rivals) >= RIVALS and 2 * sum(value > curve.held_out[-1] for value in rivals) > len(rivals)


def _value_at(curve: Curve, share: float) -> float:
    """Return a trial's last value up to this share of the training, or its first one."""
    seen = bisect_right(curve.completions, share * curve.total)
    return curve.held_out[max(seen, 1) - 1]


def _by_share(curve: Curve) -> dict[float, float]:
    """Return a trial's values by the share of the training after which they were measured."""
    return {round(done / curve.total, 3): value for done, value in zip(curve.completions, curve.held_out, strict=True)}


def _bar(known: "Forecast", curves: Sequence[Curve]) -> float:
    """Return the value from which a trial is among the best: the best finished one, less the noise of seeds and evaluations."""
    finished = [curve for curve in curves if curve.state == State.FINISHED]
    return max(known.means(finished or curves)) - known.noise


def _new_chance(known: "Forecast", curves: Sequence[Curve], bar: float) -> float:
    """Return the chance of the most promising of some unseen points, made of the parameters' values seen so far."""
    draw = Random(len(curves))
    started = {freeze(curve.point) for curve in curves}
    points: dict[object, Point] = {}
    for _ in range(NEW):
        point = {name: draw.choice(curves).point.get(name) for name in curves[0].point}
        if freeze(point) not in started:
            points[freeze(point)] = point
    return max((prediction.chance(bar) for prediction in known.unseen(list(points.values()))), default=0.0)


WIDE = 8.0  # positive numbers over at least this ratio are compared by their logarithms
GROWTH = 1.25  # kernel parameters are refitted when there are so many times as many curves
LOOKS = (1.0, 0.5, 0.25)  # the evaluations of a curve that are observed, as shares of those it has
DOUBT = 6  # number of curves at which a forecast's variance is doubled
FITTED = 60  # observations that kernel parameters are fitted to


@dataclass(frozen=True)
class Prediction:
    """A trial's predicted final value: mean and standard deviation."""

    mean: float
    deviation: float

    def chance(self, of: float) -> float:
        """Return the probability of ending above a value."""
        return 0.5 * math.erfc((of - self.mean) / (self.deviation * math.sqrt(2)))


def landmark(count: int) -> int:
    """Return the largest number up to ``count`` of a series in which each is ``GROWTH`` times the one before."""
    return math.ceil(GROWTH ** math.floor(math.log(max(count, 1), GROWTH) + 1e-9))


class CoordinateScaler:
    """Scales parameters to 0..1, logarithmically over wide ranges, and encodes those without an order."""

    def __init__(self, points: Sequence[Point]) -> None:
        names = list(dict.fromkeys(name for point in points for name in point))
        columns = {name: [point.get(name) for point in points] for name in names}
        varied = {name: labels for name, labels in columns.items() if len({_key(label) for label in labels}) > 1}
        self.ordered = {name: _Scale(labels) for name, labels in varied.items() if all(map(_is_number, labels))}
        self.codes = {
            name: {key: code for code, key in enumerate(dict.fromkeys(map(_key, labels)))}
            for name, labels in varied.items()
            if name not in self.ordered
        }

    def place(self, point: Point) -> tuple[list[float], list[float]]:
        """Return a point's coordinates on the ordered parameters, and its codes on the others."""
        numbers = [scale.at(point.get(name)) for name, scale in self.ordered.items()]
        return numbers, [float(codes.get(_key(point.get(name)), -1)) for name, codes in self.codes.items()]


class _Scale:
    def __init__(self, labels: Sequence[Label]) -> None:
        numbers = [float(label) for label in labels]  # type: ignore[arg-type]  # numbers, as checked above
        low, high = min(numbers), max(numbers)
        self._log = low > 0 and high / low >= WIDE
        self._low, self._high = self._own(low), self._own(high)

    def _own(self, number: float) -> float:
        return math.log(number) if self._log else number

    def at(self, label: Label) -> float:
        return (self._own(float(label)) - self._low) / (self._high - self._low)  # type: ignore[arg-type]  # a number


def _key(label: Label) -> str:
    return f"{type(label).__name__} {label}"


def _is_number(label: Label) -> bool:
    return isinstance(label, int | float) and not isinstance(label, bool) and math.isfinite(label)


class Forecast:
    """Predictions from all curves so far."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        from grposweep.search.early_stopping.gaussian_process import MOST, GaussianProcess, fit

        self._places: dict[int, tuple[list[float], list[float]]] = {}
        seen = sorted((curve for curve in curves if curve.held_out), key=lambda curve: curve.number)
        self._scales = CoordinateScaler([curve.point for curve in seen])
        self._warp = OutputTransform(
            [value for curve in seen for value in curve.held_out], [c.held_out[-1] for c in seen]
        )
        params = fit(self._observe([(c, i) for c in seen[: landmark(len(seen))] for i in _milestones(c)], FITTED))
        # with few curves the fitted kernel is too certain
        self._doubt = math.sqrt(1 + DOUBT / len(seen)) if seen else 1.0
        self._process = GaussianProcess(self._observe([(c, i) for c in seen for i in _looks(c)], MOST), params)

    def _observe(self, looks: list[tuple[Curve, int]], most: int) -> "Observations":
        """Return these evaluations; of too many each curve's last, and of too many curves those with the highest values."""
        if len(looks) > most:
            looks = list({curve.number: (curve, index) for curve, index in looks}.values())
        if len(looks) > most:
            looks = sorted(looks, key=lambda look: -look[0].held_out[look[1]])[:most]
        return self._rows([(c, min(c.completions[i] / c.total, 1.0), c.held_out[i]) for c, i in looks])

    def _rows(self, rows: Sequence[tuple[Curve, float, float]]) -> "Observations":
        import numpy as np

        from grposweep.search.early_stopping.gaussian_process import Observations

        places = [self._place(curve) for curve, _, _ in rows]
        return Observations(
            trial=np.array([float(curve.number) for curve, _, _ in rows]),
            parameters=np.array([numbers for numbers, _ in places]).reshape(len(rows), -1),
            labels=np.array([codes for _, codes in places]).reshape(len(rows), -1),
            share=np.array([share for _, share, _ in rows]),
            value=np.array([self._warp(value) for _, _, value in rows]),
        )

    def _place(self, curve: Curve) -> tuple[list[float], list[float]]:
        if curve.number not in self._places:
            self._places[curve.number] = self._scales.place(curve.point)
        return self._places[curve.number]

    def finals(self, curves: Sequence[Curve]) -> list[Prediction]:
        """Return the predicted final values of these trials, on the forecast's own scale."""
        return self._predict(self._rows([(curve, 1.0, 0.0) for curve in curves]))

    def unseen(self, points: Sequence[Point]) -> list[Prediction]:
        """Return the predicted final values of new trials at these points."""
        if not points:
            return []
        strangers = [Curve(-1 - index, point, State.RUNNING, 1.0, (), ()) for index, point in enumerate(points)]
        return self.finals(strangers)

    @property
    def noise(self) -> float:
        """Return the standard deviation between two trials at one point: seeds and evaluations."""
        params = self._process.params
        return math.sqrt(self._process.scale * (params.seed + params.noise))

    def _predict(self, wanted: "Observations") -> list[Prediction]:
        mean, deviation = self._process.predict(wanted, shared=False)
        return [Prediction(float(m), float(d) * self._doubt) for m, d in zip(mean, deviation, strict=True)]

    def means(self, curves: Sequence[Curve]) -> list[float]:
        """Return the means alone."""
        return [float(mean) for mean in self._process.mean(self._rows([(curve, 1.0, 0.0) for curve in curves]), False)]

    def value(self, scaled: float) -> float:
        """Return a value of the forecast's scale on the scale of the objective."""
        return self._warp.undo(scaled)


def forecast(curves: Sequence[Curve]) -> Forecast:
    """Return the forecast from these curves, cached; their order does not matter."""
    ordered = sorted(curves, key=lambda curve: curve.number)
    key = tuple(
        (c.number, c.state, tuple(c.held_out), tuple(c.completions), c.total, *c.point.values()) for c in ordered
    )
    if key not in _made:
        while len(_made) >= REMEMBERED:
            del _made[next(iter(_made))]
        _made[key] = Forecast(ordered)
    return _made[key]


REMEMBERED = 4
_made: dict[object, Forecast] = {}


class OutputTransform:
    """Keeps values near the best, and compresses those below the median: how far a trial has collapsed does not matter."""

    def __init__(self, values: Sequence[float], ends: Sequence[float]) -> None:
        ordered = sorted(ends)
        self._knee = ordered[len(ordered) // 2]
        best = max(values)
        self._width = max((best - self._knee), 1e-3 * abs(best), 1e-9)

    def __call__(self, value: float) -> float:
        """Return a value on this scale."""
        below = (self._knee - value) / self._width
        return value if below <= 0 else self._knee - self._width * math.log1p(below)

    def undo(self, value: float) -> float:
        """Return the original value."""
        below = (self._knee - value) / self._width
        return value if below <= 0 else self._knee - self._width * math.expm1(below)


def _looks(curve: Curve) -> list[int]:
    """Return the indices of the evaluations that are observed."""
    return sorted({max(round(len(curve.held_out) * share), 1) - 1 for share in LOOKS})


def _milestones(curve: Curve) -> list[int]:
    """Return the indices of evaluations 1, 2, 4, 8, ... and of the last of a finished curve: they change rarely."""
    count = len(curve.held_out)
    powers = {2**power - 1 for power in range(count.bit_length())}
    return sorted(powers | ({count - 1} if curve.state == State.FINISHED else set()))
