"""An asynchronous successive halving of our own: a rival of the rule that ranks trials.

Optuna's pruners end a trial at a rung. Here a trial pauses at evaluations 1, 2, 4, 8, ...
A free slot resumes the best half of each rung, the last rung first, and starts a new point
otherwise (Li et al. 2020, with a reduction factor of 2). The sampler is told the last values of
paused trials.
"""

from collections.abc import Sequence

from grposweep.search.early_stopping import CONTINUE, Action, Curve, Decision, State, StoppingPolicy

FACTOR = 2


class OwnAsha(StoppingPolicy):
    """Resume the best half of each rung."""

    def decide(self, curve: Curve, others: Sequence[Curve], more: bool) -> Decision:  # noqa: ARG002 - the contract's arguments
        """Pause at each rung; a free slot may resume the trial at once."""
        is_at_rung = len(curve.held_out).bit_count() == 1
        return Decision(Action.PAUSE) if is_at_rung else CONTINUE

    def promote(self, curves: Sequence[Curve], more: bool) -> int | None:
        """Return a trial of the best half of its rung. When no new point can start, return the
        best of the last rung.
        """
        paused = [curve for curve in curves if curve.state is State.PAUSED]
        reached = sorted({len(curve.held_out) for curve in paused}, reverse=True)
        for rung in reached:
            here = [curve for curve in paused if len(curve.held_out) == rung]
            best = max(here, key=lambda curve: curve.held_out[rung - 1])
            values = [curve.held_out[rung - 1] for curve in curves if len(curve.held_out) >= rung]
            better = sum(value > best.held_out[rung - 1] for value in values)
            if better < len(values) // FACTOR or not more:
                return best.number
        return None

    def predict(self, curves: Sequence[Curve]) -> dict[int, float]:
        """Return the last values of paused trials."""
        paused = [curve for curve in curves if curve.state is State.PAUSED]
        return {curve.number: curve.held_out[-1] for curve in paused}
