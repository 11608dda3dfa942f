"""When a search has converged: nothing left is expected to improve the best by more than the noise."""

import math
from collections.abc import Sequence

import pytest

from grposweep.search.early_stopping import Curve, SearchContext, State
from grposweep.search.early_stopping.terminator import MIN_FINISHED, MIN_TRIALS, Terminator
from grposweep.search.space import Interval, Parameter, Space

SPACE = Space((Parameter("lr", Interval(1e-5, 1e-1, log=True)),))


def curves(count: int, error: float, finished: int = 100, scale: float = 1.0) -> list[Curve]:
    """Trials over the whole space; the best learning rate is 1e-3. Those after the first ``finished`` have one evaluation."""
    made = []
    for number in range(count):
        lr = 10 ** (-5 + 4 * (number * 0.618 % 1))
        to = scale * (0.8 - 0.1 * (math.log10(lr) + 3) ** 2)
        seen = 4 if number < finished else 1
        values = [to * (n + 1) / 4 for n in range(seen)]
        state = State.FINISHED if seen == 4 else State.PAUSED
        done = [25.0 * (n + 1) for n in range(seen)]
        made.append(Curve(number, {"lr": lr}, state, 100.0, done, values, 0.0, [error] * seen))
    return made


def is_reached(found: Sequence[Curve]) -> bool:
    """Whether a new Terminator says so."""
    result = Terminator(SearchContext(SPACE)).judge(found)
    assert result is not None
    return result.is_reached


@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_a_search_has_converged_when_the_gain_left_is_below_the_noise(scale: float) -> None:
    """A smooth peak is known after 24 trials, up to 10 % of it and not up to a billionth; in any unit of the metric."""
    assert is_reached(curves(24, 0.08 * scale, scale=scale))
    assert not is_reached(curves(24, 1e-9 * scale, scale=scale))


def test_few_trials_tell_nothing() -> None:
    """Few that have begun, and few that have finished."""
    terminator = Terminator(SearchContext(SPACE))
    assert terminator.judge(curves(MIN_TRIALS - 1, 0.08)) is None
    assert terminator.judge(curves(24, 0.08, finished=MIN_FINISHED - 1)) is None
    assert terminator.judge(curves(MIN_TRIALS, 0.08, finished=MIN_FINISHED)) is not None


def test_a_metric_without_standard_errors_has_the_noise_of_its_curves() -> None:
    """As with a program that logs none, or zeros."""
    zeros = curves(24, 0.0)
    for bare in (zeros, [Curve(c.number, c.point, c.state, c.total, c.completions, c.held_out) for c in zeros]):
        found = Terminator(SearchContext(SPACE)).judge(bare)
        assert found is not None
        assert 0 < found.noise < 0.2
