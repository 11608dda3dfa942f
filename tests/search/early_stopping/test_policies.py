"""What Optuna's pruners do with small made-up curves, and what every policy keeps to."""

from dataclasses import replace
from random import Random

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna import pruners
from optuna.trial import TrialState

from grposweep.search.early_stopping import POLICIES, Action, Curve, State, build_policy

STOPPING = [name for name in POLICIES if name != "none"]


def curve(
    number: int, held_out: list[float], lr: float = 1e-3, state: State | None = None
) -> Curve:
    """Ten evaluations make a whole training."""
    completions = [100.0 * (n + 1) for n in range(len(held_out))]
    state = state or (State.FINISHED if len(held_out) == 10 else State.PAUSED)
    values = completions, held_out, 0.3
    return Curve(1000.0, *values, number=number, state=state, point={"lr": lr})


def rising(number: int, lr: float, to: float, evaluations: int = 10) -> Curve:
    """From 0.3 to a value."""
    return curve(number, [0.3 + (to - 0.3) * (n + 1) / 10 for n in range(evaluations)], lr)


GOOD = [rising(n, 1e-3 * (1 + n / 10), 0.9) for n in range(6)]


def running(trial: Curve) -> Curve:
    """The same trial, under way."""
    return replace(trial, state=State.RUNNING)


@pytest.mark.parametrize("name", STOPPING)
def test_the_only_trial_continues(name: str) -> None:
    """There is nothing to compare it with."""
    assert (
        build_policy(name, 0.6).decide(running(curve(0, [0.3, 0.1])), [], more=False).action
        is Action.CONTINUE
    )


def test_optunas_pruners_stop_finally_and_leave_predictions_to_the_sampler() -> None:
    """A trial that another policy has paused continues."""
    way = build_policy("median", 1.0)
    assert way.decide(running(rising(20, 1e-1, 0.0, 3)), GOOD, more=True).action is Action.STOP
    assert way.promote([rising(20, 1e-1, 0.0, 3), rising(19, 1e-1, 0.0, 3)], more=True) == 19
    assert way.predict([rising(20, 1e-1, 0.0, 3)]) == {}


PRUNERS: dict[str, pruners.BasePruner] = {
    "median": pruners.MedianPruner(),
    "asha": pruners.SuccessiveHalvingPruner(min_resource=1),
    "halving": pruners.SuccessiveHalvingPruner(1, 2, 1),
    "hyperband": pruners.HyperbandPruner(1, 10, 3),
}


@pytest.mark.parametrize("name", PRUNERS)
def test_a_pruner_stops_the_trials_that_optunas_own_stops(name: str) -> None:
    """After the same evaluations of forty trials."""
    study = optuna.create_study(study_name="sweep", direction="maximize", pruner=PRUNERS[name])
    random = Random(0)
    others = list[Curve]()
    for number in range(40):
        trial, values, state = study.ask(), list[float](), State.FINISHED
        for evaluation in range(1, 10):
            values.append(round(random.random(), 1))
            trial.report(values[-1], evaluation)
            decision = build_policy(name, 1.0).decide(running(curve(number, values)), others, True)
            stops = trial.should_prune()
            assert (decision.action is Action.STOP) == stops
            if stops:
                state = State.STOPPED
                break
        others.append(curve(number, values, state=state))
        if state is State.FINISHED:
            study.tell(trial, values[-1])
        else:
            study.tell(trial, state=TrialState.PRUNED)
    assert {other.state for other in others} == {State.FINISHED, State.STOPPED}


VALUES = st.floats(-1, 1).map(lambda value: round(value, 3))
CURVES = st.lists(
    st.tuples(st.floats(-5, -1), st.lists(VALUES, min_size=1, max_size=10)), min_size=1, max_size=8
).map(lambda drawn: [curve(n, values, 10**rate) for n, (rate, values) in enumerate(drawn)])
UNDER_WAY = st.lists(VALUES, min_size=1, max_size=9)


@settings(max_examples=10)
@given(CURVES, UNDER_WAY, st.randoms(use_true_random=False))
@pytest.mark.parametrize("name", STOPPING)
def test_the_order_of_the_others_does_not_matter(
    name: str, others: list[Curve], values: list[float], random
) -> None:  # type: ignore[no-untyped-def]
    """Every answer is a function of the set of curves."""
    way = build_policy(name, 0.6)
    trial = running(curve(99, values))
    mixed = random.sample(others, len(others))
    assert way.decide(trial, others, True) == way.decide(trial, mixed, True)
    assert way.promote([*others, trial], False) == way.promote([*mixed, trial], False)
