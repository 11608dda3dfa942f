"""One factor at a time: which points that makes, and what the differences from the baseline say."""

import random

import pytest

from grporecipe.errors import UserError
from grposweep.config.points import Compose, Points
from grposweep.search.analysis import Effect, compare_effects
from grposweep.search.evaluate import validate_one_factor
from grposweep.search.parse import parse_space
from grposweep.search.replication import Candidate
from grposweep.search.sampling import Sampling
from grposweep.search.validity import Validator

SEEDS = range(5)


def build_judge(compose: Compose, arguments: list[str], fixed: list[str]) -> Validator:
    """The judge of a space over a base configuration."""
    space, _ = parse_space(arguments, {})
    return Validator(space, Points(compose, fixed))


def effects(**means: float) -> dict[str, Effect]:
    """Of values of one parameter, each over five noisy seeds; ``base`` is the baseline."""
    stream = random.Random(0)
    runners = [
        Candidate(i, {seed: stream.gauss(m, 0.01) for seed in SEEDS})
        for i, m in enumerate(means.values())
    ]
    points = {i: {} if name == "base" else {"kl": name} for i, name in enumerate(means)}
    return {str(effect.label): effect for effect in compare_effects(points, runners, 1).effects}


@pytest.mark.slow
def test_every_point_turns_one_parameter_away_from_the_baseline(compose: Compose) -> None:
    """Two learning rates and two batches make five points, not nine."""
    found = validate_one_factor(
        build_judge(compose, ["lr=1e-4,1e-3", "batch=medium,large"], ["batch=small"])
    )
    assert list(found.valid_points()) == [
        {},
        {"lr": 1e-4},
        {"lr": 1e-3},
        {"batch": "medium"},
        {"batch": "large"},
    ]


def test_invalid_points_are_counted_by_rule_as_in_a_grid(compose: Compose) -> None:
    """One of four."""
    found = validate_one_factor(
        build_judge(compose, ["lr=1e-4,1e-3", "batch.num_generations=choice(12)"], ["batch=small"])
    )
    assert (found.total, found.valid, found.invalid, found.by_rule()) == (4, 3, 1, {"GB101": 1})
    assert list(found.invalid_points("GB101")) == [{"batch.num_generations": 12}]
    assert found.first("GB101").point == {"batch.num_generations": 12}
    assert found.valid_by_label()["batch.num_generations"] == {12: (0, 1)}


def test_an_invalid_baseline_is_refused(compose: Compose) -> None:
    """Nothing could be compared with it; the contradiction of the stalled run is such a one."""
    with pytest.raises(UserError, match=r"which is invalid itself.*KL is off"):
        validate_one_factor(build_judge(compose, ["lr=1e-4,1e-3"], ["kl=none", "kl.beta=0.001"]))


def test_a_parameter_under_a_condition_is_refused(compose: Compose) -> None:
    """Its condition would have to be turned with it."""
    space, _ = parse_space(
        [], {"kl": "none,low", "kl.beta": {"when": {"kl": ["low"]}, "space": "0.1,0.2"}}
    )
    with pytest.raises(UserError, match=r"kl\.beta is asked only under kl"):
        validate_one_factor(Validator(space, Points(compose, [])))


def test_effects_are_called_better_worse_or_tied() -> None:
    """Differences of ten standard deviations, and none."""
    found = effects(base=0.5, up=0.6, down=0.4, same=0.5)
    assert {name: effect.verdict for name, effect in found.items()} == {
        "up": "better",
        "down": "worse",
        "same": "tied",
    }
    assert found["up"].effect is not None
    assert found["up"].effect.mean == pytest.approx(0.1, abs=0.03)


def test_where_less_is_better_a_decrease_is_better() -> None:
    """Runners count upwards; the effect is told in the objective's own units."""
    runners = [
        Candidate(n, {1: v, 2: v}, dict.fromkeys((1, 2), Sampling(0.01)))
        for n, v in enumerate((-0.5, -0.3))
    ]
    (found,) = compare_effects({0: {}, 1: {"lr": 1e-3}}, runners, -1).effects
    assert found.verdict == "better"
    assert found.effect is not None
    assert found.effect.mean == pytest.approx(-0.2)


def test_equal_repeats_give_a_verdict_only_beyond_the_error_of_sampling() -> None:
    """Rewards of 0 and 1 over few prompts agree by chance; without an error there is no verdict at
    all.
    """
    points = {0: {}, 1: {"lr": 1e-3}}
    changed = {1: 0.5625, 2: 0.5625}
    for error, verdict in ((0.12, "tied"), (0.01, "better"), (None, "unknown")):
        errors = dict.fromkeys((1, 2), Sampling(error))
        runners = [Candidate(0, {1: 0.5, 2: 0.5}, errors), Candidate(1, changed, errors)]
        (found,) = compare_effects(points, runners, 1).effects
        assert found.verdict == verdict


def test_no_effect_is_found_where_there_is_none() -> None:
    """Six parameters that do nothing: any verdict but tied in at most one comparison of twenty, all
    six together.
    """
    stream = random.Random(1)
    wrong = 0
    for _ in range(300):
        runners = [Candidate(i, {seed: stream.gauss(0.5, 0.1) for seed in SEEDS}) for i in range(7)]
        found = compare_effects({i: {"lr": i} if i else {} for i in range(7)}, runners, 1).effects
        wrong += any(effect.verdict != "tied" for effect in found)
    assert wrong / 300 <= 0.05


def test_one_seed_tells_nothing_and_a_failure_is_called_unfinished() -> None:
    """No spread, no verdict."""
    runners = [Candidate(0, {1: 0.5}), Candidate(1, {1: 0.9}), Candidate(2, {1: 0.9, 2: None})]
    found = compare_effects({0: {}, 1: {"lr": 1}, 2: {"lr": 2}, 3: {"lr": 3}}, runners, 1)
    assert [effect.verdict for effect in found.effects] == ["unknown", "unfinished", "unfinished"]
    assert found.baseline == 0


def test_without_its_baseline_no_effect_is_known() -> None:
    """It has not finished: means are shown, and no differences."""
    found = compare_effects({0: {}, 1: {"lr": 1}}, [Candidate(1, {1: 0.8, 2: 0.9})], 1)
    (effect,) = found.effects
    assert (found.baseline, effect.verdict, effect.effect) == (None, "unknown", None)
