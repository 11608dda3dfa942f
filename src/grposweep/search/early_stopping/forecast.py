"""What will become of trials: the final value of each, with its uncertainty, from all learning curves so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grposweep.search.early_stopping.learning_curve import Curve, State
from grposweep.search.space import Label, Point

if TYPE_CHECKING:
    from grposweep.search.early_stopping.gaussian_process import Observations


WIDE = 8.0  # positive numbers over at least this ratio are compared by their logarithms
GROWTH = 1.25  # rates are fitted anew when there are so many times as many curves
LOOKS = (1.0, 0.5, 0.25)  # the evaluations of a curve that are observed, as shares of those it has
DOUBT = 6  # curves at which a forecast's variance is taken for twice as large as it says
FITTED = 60  # observations that rates are fitted to


@dataclass(frozen=True)
class Outlook:
    """A trial's final value as far as it can be foreseen."""

    mean: float
    deviation: float

    def chance(self, of: float) -> float:
        """The probability of ending above a value."""
        return 0.5 * math.erfc((of - self.mean) / (self.deviation * math.sqrt(2)))

    def gain(self, over: float) -> float:
        """How far above a value it is expected to end, nothing where it ends below."""
        z = (self.mean - over) / self.deviation
        return self.deviation * (z * self.chance_of(z) + math.exp(-z * z / 2) / math.sqrt(2 * math.pi))

    @staticmethod
    def chance_of(z: float) -> float:
        """The normal distribution."""
        return 0.5 * math.erfc(-z / math.sqrt(2))


def landmark(count: int) -> int:
    """The largest of few numbers, each ``GROWTH`` times the one before, up to this one."""
    return math.ceil(GROWTH ** math.floor(math.log(max(count, 1), GROWTH) + 1e-9))


class CoordinateScaler:
    """Dials as numbers from 0 to 1, and those without an order as codes."""

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
        """A point's place on the ordered dials, and its codes on the others."""
        numbers = [scale.at(point.get(name)) for name, scale in self.ordered.items()]
        return numbers, [float(codes.get(_key(point.get(name)), -1)) for name, codes in self.codes.items()]


class _Scale:
    def __init__(self, labels: Sequence[Label]) -> None:
        numbers = [float(label) for label in labels]  # type: ignore[arg-type]  # numbers, as has been looked at
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
    """What all curves so far let expect of each."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        from grposweep.search.early_stopping.gaussian_process import MOST, Process, fit

        self._places: dict[int, tuple[list[float], list[float]]] = {}
        seen = sorted((curve for curve in curves if curve.held_out), key=lambda curve: curve.number)
        self._scales = CoordinateScaler([curve.point for curve in seen])
        self._warp = OutputTransform(
            [value for curve in seen for value in curve.held_out], [c.held_out[-1] for c in seen]
        )
        rates = fit(self._observe([(c, i) for c in seen[: landmark(len(seen))] for i in _milestones(c)], FITTED))
        # a handful of curves say less about the rates than their most probable values pretend
        self._doubt = math.sqrt(1 + DOUBT / len(seen)) if seen else 1.0
        self._process = Process(self._observe([(c, i) for c in seen for i in _looks(c)], MOST), rates)

    def _observe(self, looks: list[tuple[Curve, int]], most: int) -> "Observations":
        """These evaluations; of too many, each curve's last, and of too many curves those that have come furthest up."""
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
            dials=np.array([numbers for numbers, _ in places]).reshape(len(rows), -1),
            labels=np.array([codes for _, codes in places]).reshape(len(rows), -1),
            share=np.array([share for _, share, _ in rows]),
            value=np.array([self._warp(value) for _, _, value in rows]),
        )

    def _place(self, curve: Curve) -> tuple[list[float], list[float]]:
        if curve.number not in self._places:
            self._places[curve.number] = self._scales.place(curve.point)
        return self._places[curve.number]

    def finals(self, curves: Sequence[Curve]) -> list[Outlook]:
        """How these trials will end, on the forecast's own scale."""
        return self._predict(self._rows([(curve, 1.0, 0.0) for curve in curves]))

    def unseen(self, points: Sequence[Point]) -> list[Outlook]:
        """How trials at other points would end."""
        if not points:
            return []
        strangers = [Curve(-1 - index, point, State.RUNNING, 1.0, (), ()) for index, point in enumerate(points)]
        return self.finals(strangers)

    @property
    def noise(self) -> float:
        """What two trials at one point differ by, and their evaluations: one standard deviation."""
        rates = self._process.rates
        return math.sqrt(self._process.scale * (rates.seed + rates.noise))

    def _predict(self, wanted: "Observations") -> list[Outlook]:
        mean, deviation = self._process.predict(wanted, shared=False)
        return [Outlook(float(m), float(d) * self._doubt) for m, d in zip(mean, deviation, strict=True)]

    def means(self, curves: Sequence[Curve]) -> list[float]:
        """Only what is expected."""
        return [float(mean) for mean in self._process.mean(self._rows([(curve, 1.0, 0.0) for curve in curves]), False)]

    def value(self, scaled: float) -> float:
        """A value from the forecast's scale on that of the objective."""
        return self._warp.undo(scaled)


def forecast(curves: Sequence[Curve]) -> Forecast:
    """The forecast from these curves; the same ones in any order give the same, which is made once."""
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
    """Values as they are near the best, and ever less apart the further they are below: collapsed is collapsed."""

    def __init__(self, values: Sequence[float], ends: Sequence[float]) -> None:
        ordered = sorted(ends)
        self._knee = ordered[len(ordered) // 2]
        best = max(values)
        self._width = max((best - self._knee), 1e-3 * abs(best), 1e-9)

    def __call__(self, value: float) -> float:
        """The value on this scale."""
        below = (self._knee - value) / self._width
        return value if below <= 0 else self._knee - self._width * math.log1p(below)

    def undo(self, value: float) -> float:
        """The value that was."""
        below = (self._knee - value) / self._width
        return value if below <= 0 else self._knee - self._width * math.expm1(below)


def _looks(curve: Curve) -> list[int]:
    """Which evaluations of a curve are observed."""
    return sorted({max(round(len(curve.held_out) * share), 1) - 1 for share in LOOKS})


def _milestones(curve: Curve) -> list[int]:
    """The first evaluation, the second, the fourth, the eighth, ... and the last of a finished curve: they change rarely."""
    count = len(curve.held_out)
    powers = {2**power - 1 for power in range(count.bit_length())}
    return sorted(powers | ({count - 1} if curve.state == State.FINISHED else set()))
