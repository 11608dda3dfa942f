"""Expected improvement per remaining cost: what continues, what is promoted and which points are new, on made-up curves."""

import math
from dataclasses import replace

import pytest

from grposweep.search.early_stopping import Action, Curve, PlannedTraining, SearchContext, State
from grposweep.search.early_stopping.curve_ei import LAST, CurveEiPolicy, any_of, choose_warp
from grposweep.search.space import Choice, Interval, Parameter, Point, Space, freeze

SPACE = Space(
    (
        Parameter("lr", Interval(1e-5, 1e-1, log=True)),
        Parameter("kl", Choice(("none", "low"), ("none", "low"))),
        Parameter("kl.beta", Interval(1e-3, 1e-1, log=True), {"kl": ("low",)}),
    )
)
LR = Space((Parameter("lr", Interval(1e-5, 1e-1, log=True)),))


def planned(point: Point) -> PlannedTraining:
    """32 completions per step, 1,000 in all."""
    return PlannedTraining(float(point["lr"]), 32.0, 8.0, 1000.0)  # type: ignore[arg-type]  # a number


def policy(space: Space = LR, seed: int = 0, more: bool = True) -> CurveEiPolicy:
    """The policy of a search that may start new points, or may not."""
    made = CurveEiPolicy()
    made.begin(SearchContext(space, planned, seed=seed, has_points=lambda: more))
    return made


def curve(number: int, lr: float, to: float, evaluations: int = 10, bend: float = 1.0, offset: float = 0.3) -> Curve:
    """From ``offset`` to a value in ten evaluations; a large bend is a late rise."""
    values = [offset + (to - offset) * ((n + 1) / 10) ** bend for n in range(evaluations)]
    state = State.FINISHED if evaluations == 10 else State.PAUSED
    return Curve(number, {"lr": lr}, state, 1000.0, [100.0 * (n + 1) for n in range(evaluations)], values, offset)


FINISHED = [curve(n, lr, to) for n, (lr, to) in enumerate([(1e-5, 0.4), (1e-4, 0.7), (1e-3, 0.85), (1e-1, 0.0)])]


def running(trial: Curve) -> Curve:
    """The same trial, under way."""
    return replace(trial, state=State.RUNNING)


def test_the_same_curves_and_seed_give_the_same_points() -> None:
    """Another controller proposes what the first one would have, and another seed something else."""
    assert policy().propose(FINISHED) == policy().propose(FINISHED)
    assert policy().propose(FINISHED) != policy(seed=1).propose(FINISHED)


def test_every_decision_is_the_same_after_a_restart() -> None:
    """A policy that saw the whole sweep, and one that sees its curves for the first time."""
    long_lived, paused = policy(), [curve(4, 2e-3, 0.9, 3), curve(5, 5e-2, 0.1, 1)]
    for count in range(1, 5):
        long_lived.decide(running(FINISHED[count - 1]), FINISHED[: count - 1])
        long_lived.promote([*FINISHED[:count], *paused], more=True)
    trial, others = running(curve(6, 1.5e-3, 0.9, 4)), [*FINISHED, *paused]
    assert long_lived.decide(trial, others) == policy().decide(trial, others)
    for more in (True, False):
        assert long_lived.promote(others, more) == policy().promote(list(reversed(others)), more)
    assert long_lived.propose(others) == policy().propose(others)


def test_a_trial_far_behind_is_paused_and_a_leading_one_continues() -> None:
    """After four tenths of their trainings."""
    assert policy().decide(running(curve(4, 8e-2, 0.02, 4)), FINISHED).action is Action.PAUSE
    assert policy().decide(running(curve(4, 2e-3, 1.0, 9)), FINISHED).action is Action.CONTINUE


def test_a_trial_that_is_not_behind_continues_although_another_choice_promises_more() -> None:
    """Its kind is flat and a paused trial is close to a new best; early values tell too little to pause it for that."""
    flat = [curve(4 + n, 1e-5 * (1.1 + n / 10), 0.35) for n in range(3)]
    others = [*FINISHED, *flat, curve(8, 2e-3, 1.0, 9)]
    slow, late = running(curve(9, 1.3e-5, 0.33, 4)), running(curve(9, 1.3e-5, 0.33, 6))
    forecasts = policy().forecasts([*others, slow], 9)
    assert forecasts.scores([slow])[0] < max(forecasts.worths)
    assert policy().decide(slow, others).action is Action.CONTINUE
    assert policy().decide(late, others).action is Action.PAUSE


def test_a_late_riser_is_promoted_before_a_sweep_ends() -> None:
    """Trials of low learning rates rise late here, so one that is still low is trained to its end."""
    late = [curve(4 + n, 1e-5 * (1.5 + n), 0.95, bend=4.0) for n in range(3)]
    early = [curve(8 + n, 1e-3 * (1 + n), 0.6, bend=0.3) for n in range(3)]
    riser, hopeless = curve(12, 2e-5, 0.95, 5, bend=4.0), curve(13, 9e-2, 0.0, 5)
    assert riser.held_out[-1] < min(trial.held_out[4] for trial in early)
    assert policy(more=False).promote([FINISHED[3], *late, *early, riser, hopeless], more=False) == 12
    assert policy(more=False).promote([FINISHED[3], *late, *early, hopeless], more=False) is None


def test_many_small_chances_together_resume_a_trial_at_the_end() -> None:
    """Each of eight paused trials is better than the best with a chance below 2 %, and one of them with a chance above it."""
    paused = [curve(4 + n, 5e-3 * (1 + 0.05 * n), 0.65, 5) for n in range(8)]
    last = policy(more=False)
    forecasts = last.forecasts([*FINISHED, *paused])
    assert max(forecasts.chances(paused)) < LAST < any_of(forecasts.chances(paused))
    assert last.promote([*FINISHED, *paused], more=False) == 4
    assert last.decide(running(paused[0]), [*FINISHED, *paused[1:]]).action is Action.CONTINUE
    assert last.promote([*FINISHED, curve(4, 8e-2, 0.1, 5)], more=False) is None


def test_the_chance_to_be_better_counts_that_the_best_is_not_certain_either() -> None:
    """A point next to the best one shares its errors, so it is compared more exactly than a distant one."""
    forecasts = policy().forecasts([*FINISHED, curve(4, 1.1e-3, 0.85, 5)])
    near, best = forecasts._finals([{"lr": 1.1e-3}]), forecasts._finals([{"lr": 1e-3}])
    alone = math.hypot(float(forecasts._process.predict(near)[1][0]), float(forecasts._process.predict(best)[1][0]))
    assert float(forecasts._process.compare(near, best)[1][0]) < 0.8 * alone
    assert [round(float(found[0]), 3) for found in forecasts._process.compare(best, best)] == [0.0, 0.0]


def test_pending_points_are_not_proposed_twice() -> None:
    """Eight slots are filled at once: at the start, and on what four curves tell."""
    for known in ([], FINISHED):
        curves, chosen = list(known), []
        for number in range(len(known), len(known) + 8):
            point = policy().propose(curves)[0]
            chosen.append(math.log10(float(point["lr"])))  # type: ignore[arg-type]  # a number
            curves.append(Curve(number, point, State.RUNNING, 1000.0, (), ()))
        apart = [abs(a - b) for n, a in enumerate(chosen) for b in chosen[:n]]
        assert min(apart) > 2e-3
        assert max(apart) > 1.0


def test_conditional_and_categorical_parameters_are_proposed_where_they_are_active() -> None:
    """kl.beta belongs to kl=low."""
    curves = [replace(trial, point={**trial.point, "kl": "none"}) for trial in FINISHED]
    proposed = policy(SPACE).propose(curves)
    assert {point["kl"] for point in proposed} == {"none", "low"}
    assert all(("kl.beta" in point) == (point["kl"] == "low") for point in proposed)


def test_a_finite_space_is_never_asked_twice() -> None:
    """Two of six points are left."""
    rates = (1e-5, 1e-4, 1e-3, 1e-1, 1e-2, 2e-2)
    space = Space((Parameter("lr", Choice(rates, rates)),))
    left = {freeze(point) for point in policy(space).propose(FINISHED)}
    assert left == {freeze({"lr": 1e-2}), freeze({"lr": 2e-2})}


@pytest.mark.parametrize("scale", [1.0, 25.0, 1000.0])
def test_rewards_without_bounds_are_compared_as_well(scale: float) -> None:
    """The same curves in another unit, negative ones among them."""
    moved = [replace(trial, held_out=[scale * (v - 0.5) for v in trial.held_out]) for trial in FINISHED]
    worse, better = curve(4, 9e-2, 0.02, 4), curve(5, 2e-3, 1.0, 6)
    trials = [replace(trial, held_out=[scale * (v - 0.5) for v in trial.held_out]) for trial in (worse, better)]
    assert policy().promote([*moved, *trials], more=False) == 5
    assert max(policy().predict([*moved, *trials]).values()) < 2 * scale


def test_predictions_are_in_the_objective_s_own_unit() -> None:
    """Logits are undone."""
    warp = choose_warp(FINISHED)
    assert warp.undo(warp(0.37)) == pytest.approx(0.37)
    assert 0.6 < policy().predict([*FINISHED, curve(4, 1.2e-3, 0.86, 6)])[4] < 1.0


def test_the_first_points_fill_the_space() -> None:
    """Four of them, until points can be compared."""
    assert policy().promote([curve(0, 1e-3, 0.9, 1)], more=True) is None
    quarters = set()
    curves: list[Curve] = []
    for number in range(4):
        point = policy().propose(curves)[0]
        quarters.add(int((math.log10(float(point["lr"])) + 5) * 0.999))  # type: ignore[arg-type]  # a number
        curves.append(Curve(number, point, State.PAUSED, 1000.0, [100.0], [0.3]))
    assert quarters == {0, 1, 2, 3}


def test_a_program_that_counts_no_completions_is_trained_to_its_end() -> None:
    """Nothing says how much of its training is done."""
    unknown = [replace(trial, total=0.0, completions=[0.0] * 10) for trial in FINISHED]
    assert policy().decide(
        running(replace(curve(4, 1e-3, 0.1, 3), total=0.0, completions=[0.0] * 3)), unknown
    ).action is (Action.CONTINUE)
    assert policy().promote(unknown, more=False) is None
    assert len(policy().propose(unknown)) > 1


def test_a_search_without_plans_compares_parameters_as_they_are() -> None:
    """A trainer of its own, whose learning rate and sizes are not known."""
    made = CurveEiPolicy()
    made.begin(SearchContext(LR))
    assert made.decide(running(curve(4, 8e-2, 0.02, 4)), FINISHED).action is Action.PAUSE
    assert made.promote([*FINISHED, curve(4, 9e-2, 0.02, 4), curve(5, 2e-3, 1.0, 6)], more=False) == 5


def test_a_collapsed_value_does_not_flatten_the_others() -> None:
    """A reward that was not a number counts as -1e9."""
    collapsed = replace(FINISHED[3], held_out=[-1e9] * 10)
    warp = choose_warp([*FINISHED[:3], collapsed])
    assert warp(0.85) - warp(0.4) > 0.5
