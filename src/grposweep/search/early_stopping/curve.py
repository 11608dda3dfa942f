"""Early stopping that knows learning curves: a trial is paused while its chance to end among the best is small.

The forecast behind it compares a trial with what became of others, most of all with those of similar dials: one whose
kind rises late is given its time. Nothing is stopped for good: a pause costs little, because a trial goes on from its
checkpoint, and whatever becomes promising as more is known is promoted.
"""

from collections.abc import Sequence
from random import Random

from grposweep.search.early_stopping import CONTINUE, Action, Decision
from grposweep.search.early_stopping.forecast import Forecast, forecast
from grposweep.search.early_stopping.learning_curve import Curve, State
from grposweep.search.space import Point, freeze

PAUSE = 0.15  # chance to end among the best below which a trial is paused,
LAST = 0.02  # and from which a paused one goes on when nothing new will be started
FEWEST = 1  # evaluations before a trial is judged
KNOWN = 2  # other curves before any is judged
KEPT = 160  # curves that a forecast is made from; of more, the highest and the latest of each
NEW = 64  # unseen points whose chances say what a new trial is worth


class CurveStopping:
    """Pause by the forecast of all curves; go on with those that become promising."""

    def judge(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """Pause where ending among the best is unlikely."""
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
        """The paused trial that is most likely to end among the best, if a new one is not more so."""
        begun = _kept([curve for curve in curves if curve.held_out])
        paused = [curve for curve in begun if curve.state == State.PAUSED]
        if not paused:
            return None
        known = forecast(begun)
        bar = _bar(known, begun)
        chances = {c.number: o.chance(bar) for c, o in zip(paused, known.finals(paused), strict=True)}
        number = max(chances, key=chances.__getitem__)
        least = _new_chance(known, begun, bar) if more else LAST
        return number if chances[number] >= least else None

    def foresee(self, curves: Sequence[Curve]) -> dict[int, float]:
        """What the forecast expects of those that have an evaluation, of many the highest and the latest."""
        begun = _kept([curve for curve in curves if curve.held_out])
        unfinished = [curve for curve in begun if curve.state != State.FINISHED]
        if not unfinished:
            return {}
        known = forecast(begun)
        means = known.means(unfinished)
        return {curve.number: known.value(mean) for curve, mean in zip(unfinished, means, strict=True)}


def _kept(curves: Sequence[Curve]) -> list[Curve]:
    """Of more curves than a forecast is made from half the highest ones and half the latest, by number."""
    ordered = sorted(curves, key=lambda curve: curve.number)
    if len(ordered) <= KEPT:
        return ordered
    latest = ordered[-KEPT // 2 :]
    highest = sorted(ordered[: -KEPT // 2], key=lambda curve: curve.held_out[-1], reverse=True)
    return sorted([*latest, *highest[: KEPT // 2]], key=lambda curve: curve.number)


def _leads(curve: Curve, others: Sequence[Curve]) -> bool:
    """Whether a trial has been above every other one at each of its evaluations: no forecast may stop that one."""
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
    """A trial's values by the share of the training they came after."""
    return {round(done / curve.total, 3): value for done, value in zip(curve.completions, curve.held_out, strict=True)}


def _bar(known: Forecast, curves: Sequence[Curve]) -> float:
    """Where the best begin: the best finished value, less what seeds and evaluations differ by."""
    finished = [curve for curve in curves if curve.state == State.FINISHED]
    return max(known.means(finished or curves)) - known.noise


def _new_chance(known: Forecast, curves: Sequence[Curve], bar: float) -> float:
    """The chance of the most promising of some unseen points, made of the dials of those that were seen."""
    draw = Random(len(curves))
    started = {freeze(curve.point) for curve in curves}
    points: dict[object, Point] = {}
    for _ in range(NEW):
        point = {name: draw.choice(curves).point.get(name) for name in curves[0].point}
        if freeze(point) not in started:
            points[freeze(point)] = point
    return max((outlook.chance(bar) for outlook in known.unseen(list(points.values()))), default=0.0)
