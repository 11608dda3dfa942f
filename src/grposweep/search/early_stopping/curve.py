"""Pause a trial when it is unlikely to end among the best; the chance comes from a forecast of all learning curves.

The forecast compares a trial with others, most of all with those of similar parameters: if trials of its kind rise late,
it is given time. Nothing is stopped for good. A pause costs little, because a trial resumes from its checkpoint, and a
paused trial is promoted if it becomes promising as more is known.
"""

from collections.abc import Sequence
from random import Random

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, State
from grposweep.search.early_stopping.forecast import Forecast, forecast
from grposweep.search.space import Point, freeze

PAUSE = 0.15  # chance to end among the best below which a trial is paused,
LAST = 0.02  # and from which a paused one is resumed if nothing new will be started
FEWEST = 1  # evaluations before a trial is judged
KNOWN = 2  # other curves before any is judged
KEPT = 160  # curves that a forecast is made from; of more, the highest and the latest of each
NEW = 64  # unseen points whose chances say what a new trial is worth


class CurvePolicy:
    """Pause by the forecast of all curves, and promote trials that become promising."""

    def decide(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """Pause a trial that is unlikely to end among the best."""
        begun = [other for other in others if other.held_out]
        if len(curve.held_out) < FEWEST or len(begun) < KNOWN or _leads(curve, begun):
            return CONTINUE
        begun = _kept(begun)
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
        begun = _kept([curve for curve in curves if curve.held_out])
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
        begun = _kept([curve for curve in curves if curve.held_out])
        unfinished = [curve for curve in begun if curve.state != State.FINISHED]
        if not unfinished:
            return {}
        known = forecast(begun)
        means = known.means(unfinished)
        return {curve.number: known.value(mean) for curve, mean in zip(unfinished, means, strict=True)}


def _kept(curves: Sequence[Curve]) -> list[Curve]:
    """Return at most ``KEPT`` curves by number: half the highest ones and half the latest."""
    ordered = sorted(curves, key=lambda curve: curve.number)
    if len(ordered) <= KEPT:
        return ordered
    latest = ordered[-KEPT // 2 :]
    highest = sorted(ordered[: -KEPT // 2], key=lambda curve: curve.held_out[-1], reverse=True)
    return sorted([*latest, *highest[: KEPT // 2]], key=lambda curve: curve.number)


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


def _by_share(curve: Curve) -> dict[float, float]:
    """Return a trial's values by the share of the training after which they were measured."""
    return {round(done / curve.total, 3): value for done, value in zip(curve.completions, curve.held_out, strict=True)}


def _bar(known: Forecast, curves: Sequence[Curve]) -> float:
    """Return the least value of the best: the best finished value, less the noise of seeds and evaluations."""
    finished = [curve for curve in curves if curve.state == State.FINISHED]
    return max(known.means(finished or curves)) - known.noise


def _new_chance(known: Forecast, curves: Sequence[Curve], bar: float) -> float:
    """Return the chance of the most promising of some unseen points, made of the parameters' values seen so far."""
    draw = Random(len(curves))
    started = {freeze(curve.point) for curve in curves}
    points: dict[object, Point] = {}
    for _ in range(NEW):
        point = {name: draw.choice(curves).point.get(name) for name in curves[0].point}
        if freeze(point) not in started:
            points[freeze(point)] = point
    return max((prediction.chance(bar) for prediction in known.unseen(list(points.values()))), default=0.0)
