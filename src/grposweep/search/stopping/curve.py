"""Early stopping that knows learning curves: a trial is paused while its chance to end as the best is small."""

from collections.abc import Sequence

from grposweep.search.curves import Curve, State
from grposweep.search.forecast import forecast
from grposweep.search.stopping import GO_ON, Action, Decision

PAUSE = 0.12  # chance to end as the best below which a trial is paused,
RESUME = 0.25  # and above which a paused one goes on before anything new is started
LAST = 0.02  # and above which it goes on when nothing new will be started
FEWEST = 1  # evaluations before a trial is judged
KNOWN = 3  # curves before any is judged


class CurveStopping:
    """Pause by the forecast of all curves; go on with those that become promising."""

    def judge(self, curve: Curve, others: Sequence[Curve]) -> Decision:
        """Pause where ending as the best is unlikely."""
        started = [other for other in others if other.held_out]
        if len(curve.held_out) < FEWEST or len(started) < KNOWN:
            return GO_ON
        known = forecast([*started, curve])
        rivals = [other for other in started if other.state in (State.FINISHED, State.RUNNING)] or started
        mine = known.finals([curve])[0]
        chance = mine.chance(max(known.means(rivals)))
        if chance >= PAUSE:
            return GO_ON
        return Decision(Action.PAUSE, f"chance to end as the best {chance:.0%}")

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """The paused trial that is most likely to end as the best."""
        started = [curve for curve in curves if curve.held_out]
        paused = [curve for curve in started if curve.state == State.PAUSED]
        if not paused:
            return None
        known = forecast(started)
        done = [curve for curve in started if curve.state == State.FINISHED]
        if not done:
            return max(paused, key=lambda c: known.means([c])[0]).number if not more else None
        bar = max(known.means(done))
        chances = {c.number: outlook.chance(bar) for c, outlook in zip(paused, known.finals(paused), strict=True)}
        number = max(chances, key=chances.__getitem__)
        return number if chances[number] >= (RESUME if more else LAST) else None

    def foresee(self, curves: Sequence[Curve]) -> dict[int, float]:
        """What the forecast expects of all that have an evaluation."""
        begun = [curve for curve in curves if curve.held_out]
        open_ones = [curve for curve in begun if curve.state != State.FINISHED]
        if not open_ones:
            return {}
        known = forecast(begun)
        means = known.means(open_ones)
        return {curve.number: known.value(mean) for curve, mean in zip(open_ones, means, strict=True)}
