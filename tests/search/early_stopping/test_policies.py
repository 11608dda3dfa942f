"""What each way of stopping does with small made-up curves."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grposweep.search.early_stopping import POLICIES, Action, Curve, State, build_policy

STOPPING = [name for name in POLICIES if name != "none"]


def curve(number: int, held_out: list[float], lr: float = 1e-3, state: State | None = None) -> Curve:
    """Ten evaluations make a whole training."""
    completions = [100.0 * (n + 1) for n in range(len(held_out))]
    state = state or (State.FINISHED if len(held_out) == 10 else State.PAUSED)
    return Curve(number, {"lr": lr}, state, 1000.0, completions, held_out, 0.3)


def rising(number: int, lr: float, to: float, evaluations: int = 10, bend: float = 1.0) -> Curve:
    """From 0.3 to a value; a large bend is a late rise."""
    values = [0.3 + (to - 0.3) * ((n + 1) / 10) ** bend for n in range(evaluations)]
    return curve(number, values, lr)


GOOD = [rising(n, 1e-3 * (1 + n / 10), 0.9) for n in range(6)]
BAD = [rising(6 + n, 1e-1 * (1 + n / 10), 0.0) for n in range(4)]


def running(trial: Curve) -> Curve:
    """The same trial, under way."""
    return replace(trial, state=State.RUNNING)


@pytest.mark.parametrize("name", ["curve", "median", "asha"])
def test_a_trial_that_falls_like_all_of_its_kind_does_not_continue(name: str) -> None:
    """It is far behind, and so are all of its kind."""
    trial = running(rising(20, 1.1e-1, 0.0, 4))
    assert build_policy(name).decide(trial, [*GOOD, *BAD]).action is not Action.CONTINUE


@pytest.mark.parametrize("name", STOPPING)
def test_the_only_trial_continues(name: str) -> None:
    """There is nothing to compare it with."""
    assert build_policy(name).decide(running(curve(0, [0.3, 0.1])), []).action is Action.CONTINUE


def test_a_slow_starter_continues_where_its_kind_rises_late_and_is_paused_where_it_does_not() -> None:
    """The same five evaluations, among two sorts of neighbours."""
    late = [rising(10 + n, 1e-5 * (1 + n / 10), 0.95, bend=3.0) for n in range(4)]
    flat = [rising(10 + n, 1e-5 * (1 + n / 10), 0.35) for n in range(4)]
    trial = running(rising(20, 1.2e-5, 0.95, 5, bend=3.0))
    decide = build_policy("curve").decide
    assert decide(trial, [*GOOD, *late]).action is Action.CONTINUE
    assert decide(trial, [*GOOD, *flat]).action is Action.PAUSE


SHORT = [rising(30 + n, 10 ** (-5 + n / 6), 0.4 + n % 3 / 10, 1) for n in range(18)]
FLAT = [rising(30 + n, 1e-5 * (1 + n / 10), 0.35) for n in range(8)]


def test_a_slow_start_is_not_judged_by_curves_that_were_paused_as_early() -> None:
    """The forecast takes short curves for flat ones, and would pause the trial after a tenth of its training."""
    finished = [rising(0, 1e-2, 0.75, bend=0.4), rising(1, 1e-3, 0.5), rising(2, 1e-4, 0.35)]
    trial = running(rising(90, 3e-5, 0.9, 1, bend=2.0))
    assert build_policy("curve").decide(trial, [*finished, *SHORT]).action is Action.CONTINUE


def test_a_trial_that_falls_below_its_start_is_paused_from_its_first_evaluation_on() -> None:
    """That is no slow start."""
    trial = running(rising(90, 1.1e-1, 0.0, 1))
    assert build_policy("curve").decide(trial, [*GOOD, *BAD]).action is Action.PAUSE


def test_a_dip_below_the_start_within_the_scatter_of_evaluations_is_no_fall() -> None:
    """The metric has no standard errors. Evaluations differ by 0.1 up and down where they are not smooth."""

    def shaken(trial: Curve) -> Curve:
        return replace(trial, held_out=[value + 0.1 * (-1) ** n for n, value in enumerate(trial.held_out)])

    dip, decide = running(curve(90, [0.27], 1.1e-1)), build_policy("curve").decide
    assert decide(dip, [*GOOD, *BAD]).action is Action.PAUSE
    assert decide(dip, list(map(shaken, [*GOOD, *BAD]))).action is Action.CONTINUE
    assert decide(dip, [curve(n, [0.4], 1e-3) for n in range(3)]).action is Action.CONTINUE  # nothing tells the noise


def test_a_trial_in_the_better_half_of_those_that_came_as_far_continues_with_any_forecast() -> None:
    """One in the lower half has the forecast's verdict."""
    others, decide = [*GOOD[:2], *FLAT], build_policy("curve").decide
    assert decide(running(rising(90, 1.2e-5, 0.36, 5)), others).action is Action.CONTINUE
    assert decide(running(rising(90, 1.2e-5, 0.34, 5)), others).action is Action.PAUSE


def test_a_trial_is_compared_with_paused_ones_too_and_not_with_survivors_only() -> None:
    """Four of twelve that came to half of their training are better; all of those that came further."""
    paused = [rising(30 + n, 1e-5 * (1 + n / 10), 0.35, 5) for n in range(8)]
    trial = running(rising(90, 1.2e-5, 0.36, 8))
    assert build_policy("curve").decide(trial, [*GOOD[:4], *paused]).action is Action.CONTINUE


def test_the_reason_says_the_chance_and_how_much_was_known() -> None:
    """As the record of the trial keeps it."""
    decision = build_policy("curve").decide(running(rising(20, 1.1e-1, 0.0, 4)), [*GOOD, *BAD])
    assert decision.reason.startswith("chance to end among the best 0%")
    assert decision.reason.endswith("after 40% of the training")


def test_of_the_paused_the_most_promising_continues_first_and_hopeless_ones_never() -> None:
    """Where nothing new will be started."""
    promising, hopeless = rising(20, 1.25e-3, 0.9, 4), rising(21, 1.1e-1, 0.0, 4)
    promote = build_policy("curve").promote
    assert promote([*GOOD, *BAD, promising, hopeless], more=False) == 20
    assert promote([*GOOD, *BAD, hopeless], more=False) is None


def test_a_sampler_hears_what_unfinished_trials_are_expected_to_reach() -> None:
    """As far as forecasts go."""
    foreseen = build_policy("curve").predict([*GOOD, *BAD, rising(20, 1.25e-3, 0.9, 5), rising(21, 1.1e-1, 0.0, 5)])
    assert foreseen.keys() == {20, 21}
    assert foreseen[20] == pytest.approx(0.9, abs=0.1)
    assert foreseen[21] < 0.3


def test_optunas_pruners_stop_finally_and_leave_predictions_to_the_sampler() -> None:
    """None of them knows how to continue."""
    way = build_policy("median")
    assert way.decide(running(rising(20, 1e-1, 0.0, 3)), GOOD).action is Action.STOP
    assert way.promote([rising(20, 1e-1, 0.0, 3)], more=False) is None
    assert way.predict([rising(20, 1e-1, 0.0, 3)]) == {}


def test_asha_lets_a_quarter_climb() -> None:
    """At its first rung, the first evaluation."""
    others = [curve(n, [0.1 * n]) for n in range(7)]
    way = build_policy("asha")
    assert way.decide(running(curve(7, [0.65])), others).action is Action.CONTINUE
    assert way.decide(running(curve(7, [0.35])), others).action is Action.STOP


def test_hyperband_stops_in_some_brackets_early_and_in_one_never() -> None:
    """A trial's number deals its bracket."""
    way, others = build_policy("hyperband"), [rising(n, 1e-3, 0.9) for n in range(40)]
    stopped = [
        [way.decide(running(rising(number, 1e-1, 0.0, seen)), others).action is Action.STOP for seen in range(1, 10)]
        for number in range(50, 80)
    ]
    assert {trial.index(True) + 1 if any(trial) else None for trial in stopped} >= {1, 3}


VALUES = st.floats(-1, 1).map(lambda value: round(value, 3))
CURVES = st.lists(st.tuples(st.floats(-5, -1), st.lists(VALUES, min_size=1, max_size=10)), min_size=1, max_size=8).map(
    lambda drawn: [curve(n, values, 10**rate) for n, (rate, values) in enumerate(drawn)]
)
UNDER_WAY = st.lists(VALUES, min_size=1, max_size=9)


@settings(max_examples=10, deadline=None)
@given(CURVES, UNDER_WAY, st.randoms(use_true_random=False))
@pytest.mark.parametrize("name", STOPPING)
def test_the_order_of_the_others_does_not_matter(name: str, others: list[Curve], values: list[float], random) -> None:  # type: ignore[no-untyped-def]
    """Every answer is a function of the set of curves."""
    way, trial = build_policy(name), running(curve(99, values))
    mixed = random.sample(others, len(others))
    assert way.decide(trial, others) == way.decide(trial, mixed)
    assert way.promote([*others, trial], False) == way.promote([*mixed, trial], False)


@settings(max_examples=10, deadline=None)
@given(CURVES, UNDER_WAY)
def test_a_trial_above_all_others_all_the_way_is_never_paused(others: list[Curve], values: list[float]) -> None:
    """No forecast may pause the one that leads."""
    full = [curve(c.number, [*c.held_out, *[0.0] * (10 - len(c.held_out))], c.point["lr"]) for c in others]  # type: ignore[arg-type]
    trial = running(curve(99, [1.1 + value / 100 for value in values]))
    assert build_policy("curve").decide(trial, full).action is Action.CONTINUE


@settings(max_examples=10, deadline=None)
@given(CURVES)
def test_foreseen_values_are_numbers_of_unfinished_trials(curves: list[Curve]) -> None:
    """And of no others."""
    foreseen = build_policy("curve").predict(curves)
    assert foreseen.keys() == {c.number for c in curves if c.state is not State.FINISHED}
    assert all(map(math.isfinite, foreseen.values()))
