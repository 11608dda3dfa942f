"""The leaders of a search on fresh seeds: who gets another one, who drops out, who wins, who is
tied.
"""

import math
import random
from collections.abc import Mapping
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grposweep.search.replication import (
    FIRST_LOOK,
    Candidate,
    EndedTrial,
    Ranking,
    Replication,
    difference,
    estimate,
    fresh_seeds,
    race,
    step_down,
)
from grposweep.search.sampling import Sampling, average, share_error
from grposweep.storage.completions import PromptRewards

SEEDS = fresh_seeds(0, 6)


def run_race(values: Mapping[int, Mapping[int, float | None]]) -> tuple[Ranking, int]:
    """A whole race, one replicate at a time, as a controller with one slot runs it; and what it
    cost.
    """
    results: dict[int, dict[int, float | None]] = {number: {} for number in values}
    spent = 0
    while (
        standing := race([Candidate(number, found) for number, found in results.items()], SEEDS)
    ).wanted:
        number, seed = standing.wanted[0]
        results[number][seed] = values[number][seed]
        spent += 1
    return standing, spent


def drawn(
    means: Mapping[int, float], spread: float, stream: random.Random
) -> dict[int, dict[int, float | None]]:
    """Results around true means."""
    return {
        number: {seed: stream.gauss(mean, spread) for seed in SEEDS}
        for number, mean in means.items()
    }


def test_an_interval_is_that_of_students_t() -> None:
    """Five values with the textbook's t of 2.776 at four degrees of freedom."""
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.margin == pytest.approx(2.7764 * math.sqrt(2.5 / 5), rel=1e-4)


def test_one_value_has_no_interval() -> None:
    """The value alone says nothing about its error over seeds, also if the one over prompts is
    known.
    """
    assert estimate([0.5]).margin == math.inf
    assert estimate([0.5], sampling=Sampling(0.1)).margin == math.inf
    assert str(estimate([0.5])) == "0.5000"


def test_seeds_that_agree_by_chance_have_the_interval_of_their_sampling() -> None:
    """Two seeds with the same share of 16 prompts are less certain than 0, and not less than their
    prompts say.
    """
    sampled = average([Sampling(0.12), Sampling(0.12)])
    assert estimate([0.5, 0.5], sampling=sampled).margin == pytest.approx(
        1.96 * 0.12 / math.sqrt(2), rel=1e-3
    )
    assert estimate([0.5, 0.5]).margin == math.inf


def test_an_interval_is_no_wider_than_rewards_from_0_to_1_allow() -> None:
    """Two seeds that differ by 0.3 say 1.9 by Student's t. A reward without limits keeps that."""
    share = Sampling.of(0.1, PromptRewards("a", [0.0, 0.5, 1.0]))
    wide = Sampling.of(0.1, PromptRewards("a", [0.0, 0.5, 2.0]))
    assert str(estimate([0.2, 0.5], sampling=share)) == "0.3500 ± 0.6500"
    assert str(estimate([0.2, 0.5], sampling=share.minus(share))) == "0.3500 ± 1.3500"
    assert str(estimate([0.2, 0.5], sampling=wide)) == "0.3500 ± 1.9059"
    assert estimate([0.2], sampling=share).margin == math.inf


def test_more_seeds_of_the_same_prompts_do_not_make_the_prompts_more() -> None:
    """The mean of two equal results scatters over prompts as each of them."""
    one = Sampling(0.1, [0.0, 0.5, 1.0], "a")
    assert average([one, one]).error == pytest.approx(0.5 / math.sqrt(3))
    assert average([Sampling(0.1), Sampling(0.1)]).error == pytest.approx(0.1 / math.sqrt(2))


def test_what_is_certain_makes_the_rest_easier_to_be_certain_of() -> None:
    """Of three differences the second is certain at 5 % / 2 and not at 5 % / 3; the last one at no
    level.
    """
    seeds = [[mean - 0.0001, mean + 0.0001] for mean in (0.5, 0.234, 0.1)]
    found = step_down([partial(estimate, values, sampling=Sampling(0.1)) for values in seeds])
    assert [one.excludes_zero for one in found] == [True, True, False]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_share_of_none_or_all_has_an_error(value: float) -> None:
    """The formula over prompts gives 0 there; Agresti and Coull add two of each kind."""
    assert share_error(value, 0.0, 16) == pytest.approx(math.sqrt(0.9 * 0.1 / 16))
    assert share_error(value, 0.0, None) == 0.0


def test_what_a_seed_does_to_both_points_cancels() -> None:
    """Seeds that move results by tenths hide a difference of a hundredth, unless they are
    paired.
    """
    one = {1: 0.50, 2: 0.71, 3: 0.92}
    other = {1: 0.491, 2: 0.70, 3: 0.909}
    assert difference(Candidate(0, one), Candidate(1, other)).low > 0
    assert estimate(list(one.values())).low < 0.7 < estimate(list(one.values())).high


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """95 % of 2,000 samples of four."""
    stream = random.Random(0)
    samples = (estimate([stream.gauss(1.0, 2.0) for _ in range(4)]) for _ in range(2000))
    assert sum(found.low <= 1.0 <= found.high for found in samples) / 2000 == pytest.approx(
        0.95, abs=0.015
    )


def test_a_clear_loser_drops_out_and_saves_its_replicates() -> None:
    """It runs three seeds, the two good ones all six."""
    standing, spent = run_race(drawn({0: 0.9, 1: 0.895, 2: 0.1}, 0.01, random.Random(3)))
    assert standing.out == {2: f"worse on {FIRST_LOOK} fresh seeds"}
    assert spent == 6 + 6 + FIRST_LOOK


def test_replicates_of_a_point_that_is_no_leader_do_not_count() -> None:
    """The sweep continues with fewer leaders than before."""
    searched = [EndedTrial(0, 0.9, {}), EndedTrial(1, 0.5, {})]
    replicate = EndedTrial(2, 0.99, {"role": "confirm", "of": 1, "seed": 1000})
    replication = Replication((1000, 2000), leaders=1)
    assert replication.ranking([*searched, replicate]).wanted == ((0, 1000), (0, 2000))
    assert (replication.most(5), Replication((1000, 2000), leaders=None).most(5)) == (2, 10)


@pytest.mark.parametrize("prompts", [3, 100])
def test_a_value_at_the_end_of_its_interval_has_a_p_of_five_percent(prompts: int) -> None:
    """For few prompts and many."""
    sampling = Sampling(0.1, [n / prompts for n in range(prompts)])
    assert sampling.p_value(sampling.margin(0.05) or 0.0) == pytest.approx(0.05)


@pytest.mark.parametrize(("deviation", "out"), [(0.3, [1]), (0.45, [])])
def test_of_two_leaders_one_is_worse_at_five_percent(deviation: float, out: list[int]) -> None:
    """Either could be called worse, so each direction has half of it. With three seeds t is 4.3;
    here it is 5.8 or 3.8.
    """
    better = {seed: 1 + deviation * place for seed, place in zip(SEEDS, (-1, 0, 1), strict=False)}
    standing = race([Candidate(0, better), Candidate(1, dict.fromkeys(better, 0.0))], SEEDS[:3])
    assert list(standing.out) == out


def test_few_successes_widen_the_interval_somewhat() -> None:
    """Three of 64 prompts: a third more than Student's t. Half of them: nothing."""
    for successes, factor in ((3, 1.33), (32, 1.0)):
        found = Sampling(0.1, [1.0] * successes + [0.0] * (64 - successes))
        assert found.margin(0.05) == pytest.approx(factor * 1.998 * 0.1, rel=0.01)


@settings(max_examples=20)
@given(st.data())
def test_a_race_does_not_depend_on_the_order_in_which_replicates_end(data: st.DataObject) -> None:
    """In any state: which trial is wanted depends on the results there are, and each of them is
    wanted once.
    """
    values = drawn({0: 0.5, 1: 0.5, 2: 0.4}, 0.1, random.Random(data.draw(st.integers(0, 1000))))
    results: dict[int, dict[int, float | None]] = {number: {} for number in values}
    while (standing := race([Candidate(n, found) for n, found in results.items()], SEEDS)).wanted:
        number, seed = data.draw(st.sampled_from(standing.wanted))
        assert seed not in results[number]
        results[number][seed] = values[number][seed]
    in_order, _ = run_race(values)
    assert (standing.alive, standing.out) == (in_order.alive, in_order.out)
