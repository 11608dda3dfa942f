"""What one learning curve says of twice the budget."""

import random

import pytest

from grposweep.search.extrapolation import (
    FEWEST,
    FEWEST_TRAININGS,
    Calibration,
    Evaluations,
    Extrapolation,
    calibrate,
    extrapolate,
)

DONE = [100.0 * (n + 1) for n in range(8)]


def rising(ceiling: float = 0.8, half: float = 200.0, start: float = 0.2, noise: float = 0.0) -> list[float]:
    """A sigmoid in log completions, measured with noise."""
    stream = random.Random(0)
    return [start + (ceiling - start) / (1 + (half / done) ** 1.5) + stream.gauss(0, noise) for done in DONE]


def found(values: list[float], error: float = 0.005, start: float | None = 0.2) -> Extrapolation:
    """The extrapolation, which there is."""
    result = extrapolate(Evaluations(DONE[: len(values)], values, [error] * len(values), start))
    assert result is not None
    return result


def test_the_interval_holds_what_the_curve_comes_to() -> None:
    """At twice the completions, and at its ceiling; a noisier curve says less."""
    exact = found(rising())
    truth = 0.2 + 0.6 / (1 + (200 / 1600) ** 1.5)
    assert exact.completions == 1600
    assert exact.value.low < truth < exact.value.high
    assert exact.ceiling.low < 0.8 < exact.ceiling.high
    assert 100 < exact.half.middle < 400
    assert exact.doubt == ""
    noisy = found(rising(noise=0.03), error=0.03)
    assert noisy.value.high - noisy.value.low > 1.5 * (exact.value.high - exact.value.low)


def test_a_share_is_never_forecast_outside_its_range() -> None:
    """A reward that rises to 1 by a straight line, and one in other units, which has no such bound."""
    line = [0.2 + 0.09 * n for n in range(8)]
    assert found(line).value.high <= 1
    assert found([10 * value for value in line], error=0.05, start=1.1).value.high > 10


@pytest.mark.parametrize(
    ("values", "word"),
    [([0.3, 0.6, 0.8, 0.7, 0.4, 0.2, 0.1, 0.1], "fallen"), ([0.2, 0.205, 0.195, 0.2, 0.2, 0.2, 0.2, 0.2], "not risen")],
)
def test_a_curve_without_a_trend_is_not_extrapolated(values: list[float], word: str) -> None:
    """A collapse, and a rise that has not begun."""
    assert word in found(values).doubt


def test_few_evaluations_and_unknown_costs_give_no_forecast() -> None:
    """Programs that count no completions."""
    assert extrapolate(Evaluations(DONE[: FEWEST - 1], rising()[: FEWEST - 1])) is None
    assert extrapolate(Evaluations([0.0] * 8, rising())) is None


def test_metrics_without_errors_and_minimized_metrics_have_a_forecast_too() -> None:
    """Their noise is that of their second differences; a minimized metric is negated before and after."""
    bare = extrapolate(Evaluations(DONE, rising(noise=0.01), (), 0.2))
    assert bare is not None
    assert bare.value.low < 0.775 < bare.value.high
    down = extrapolate(Evaluations(DONE, [-value for value in rising(5.0, start=9.0)], [0.02] * 8, -9.0))
    assert down is not None
    assert 4 < down.negated().value.low < down.negated().value.middle < down.negated().value.high < 6


def surprising(seed: int) -> Evaluations:
    """A rise that seems to level off at half, and then rises by up to 0.2 again."""
    late = random.Random(seed).uniform(0.0, 0.2)
    values = [value + (late * (n - 3) / 4 if n > 3 else 0.0) for n, value in enumerate(rising(0.6))]
    return Evaluations(DONE, values, [0.005] * 8, 0.2)


def test_intervals_are_as_wide_as_finished_trainings_cut_at_half_need() -> None:
    """Of 200 further ones nine in ten end inside, which holds for far fewer with their own curve alone."""
    calibration = calibrate(map(surprising, range(20)))
    assert calibration.trainings == 20
    assert calibration.width > 1.5
    shares = []
    for used in (Calibration(), calibration):
        cut = [(curve, extrapolate(curve.until(4), calibration=used)) for curve in map(surprising, range(100, 300))]
        shares.append(sum(f is not None and f.value.low <= c.values[-1] <= f.value.high for c, f in cut) / len(cut))
    assert shares[0] < 0.75
    assert 0.85 < shares[1] < 1


def test_few_finished_trainings_widen_nothing() -> None:
    """Nor do those that were too short or had not risen at half."""
    short, flat = Evaluations(DONE[:6], rising()[:6]), Evaluations(DONE, [0.2] * 8, [0.005] * 8, 0.2)
    assert calibrate(map(surprising, range(FEWEST_TRAININGS - 1))) == Calibration()
    assert calibrate([short, flat] * 20) == Calibration()
