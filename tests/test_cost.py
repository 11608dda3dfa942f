"""Costs are predicted from the cost of generated and trained tokens. Prices are never negative."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.model.setting import Setting
from grposweep.cost import find_work
from grposweep.token_rates import Work, fit_rates, read_work

SIZES = st.floats(1e3, 1e9)
POINT = Setting(
    processes=2, num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=10,
    evaluations=2, eval_prompts=16, num_generations_eval=4, max_prompt_length=50, max_completion_length=100,
)  # fmt: skip


def test_work_counts_rollouts_evaluations_and_what_is_trained_on() -> None:
    """10 steps of 32 completions of 100 tokens, two evaluations of 64; 150 tokens per completion in training."""
    assert find_work(POINT) == Work(generated=(320 + 128) * 100, trained=320 * 150)


def test_without_a_length_there_is_no_work_to_count() -> None:
    """No schedule, no forecast."""
    assert find_work(POINT.replace({"max_steps": None})) is None


@settings(derandomize=True, max_examples=100, deadline=None)
@given(prices=st.tuples(st.floats(1e-7, 1e-3), st.floats(1e-7, 1e-3)), sizes=st.tuples(SIZES, SIZES, SIZES, SIZES))
def test_trials_of_two_kinds_give_both_prices_away(
    prices: tuple[float, float], sizes: tuple[float, float, float, float]
) -> None:
    """It explains what was measured, and predicts a third kind."""
    works = [Work(sizes[0], sizes[1]), Work(sizes[2], sizes[3])]
    seen = [(work, prices[0] * work.generated + prices[1] * work.trained) for work in works]
    rates = fit_rates(seen)
    assert rates is not None
    assert min(rates.generated, rates.trained) >= 0
    for work, seconds in seen:
        assert rates.hours(work) * 3600 == pytest.approx(seconds, rel=0.01)


def test_a_price_is_never_below_nothing() -> None:
    """More generated tokens that took less time: the estimated cost of generation is then 0."""
    rates = fit_rates([(Work(1000, 1000), 10.0), (Work(3000, 1000), 8.0)])
    assert rates is not None
    assert rates.generated == 0.0
    assert rates.trained > 0


def test_trials_of_one_kind_foretell_their_own() -> None:
    """Twice the work, twice the hours."""
    rates = fit_rates([(Work(500, 1000), 3600.0), (Work(500, 1000), 3600.0)])
    assert rates is not None
    assert rates.hours(Work(1000, 2000)) == pytest.approx(2.0)


def test_nothing_finished_is_nothing_known() -> None:
    """And a plan that holds nonsense is none."""
    assert fit_rates([]) is None
    assert read_work({"generated": "many", "trained": 1}) is None
    assert read_work(None) is None
