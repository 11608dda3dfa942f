"""Pass rates and shares of groups with a signal: against brute force, and against simulation."""

from itertools import combinations, product

import numpy as np
import pytest

from grposweep.screening.signal import PassRates, Prior, fit_prior, graded_share, graded_signals, log_marginal


def test_the_expected_share_is_the_integral_over_the_posterior() -> None:
    """The closed form against a sum over a fine grid of pass rates."""
    prior = Prior(never=0.2, always=0.1, a=0.7, b=1.6)
    rates = PassRates.under(prior, [0, 3, 16], [16, 16, 16])
    p = (np.arange(200_000) + 0.5) / 200_000
    for i, k in enumerate((0, 3, 16)):
        weights = p ** (0.7 + k - 1) * (1 - p) ** (1.6 + 16 - k - 1)
        inner = np.average(1 - p**8 - (1 - p) ** 8, weights=weights)
        assert rates.signals(8)[i] == pytest.approx(rates.between[i] * inner, rel=2e-3)


def test_the_posterior_of_a_prompt_that_never_passed_is_that_of_bayes() -> None:
    """The probability of each kind of prompt, by hand: (16 failures of p ~ Beta(1, 1): 1/17)."""
    prior = Prior(never=0.5, always=0.1, a=1.0, b=1.0)
    rates = PassRates.under(prior, [0], [16])
    assert rates.never[0] == pytest.approx(0.5 / (0.5 + 0.4 / 17))
    assert rates.always[0] == 0
    assert rates.means[0] == pytest.approx((0.4 / 17) / (0.5 + 0.4 / 17) / 18)


def test_marginal_likelihoods_of_all_outcomes_sum_to_one() -> None:
    """With the binomial factor, over 0 to 6 passes of 6."""
    from math import comb

    k = np.arange(7.0)
    chances = np.exp(log_marginal(Prior(0.3, 0.2, 0.5, 2.0), k, np.full(7, 6.0)))
    assert sum(c * comb(6, i) for i, c in enumerate(chances)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "truth",
    [Prior(0.4, 0.2, 2.0, 3.0), Prior(0.0, 0.0, 0.3, 0.4), Prior(0.0, 0.0, 4.0, 4.0), Prior(0.9, 0.0, 1.0, 1.0)],
)
def test_shares_are_predicted_within_their_intervals(truth: Prior) -> None:
    """Simulated prompts of four kinds of tasks: the true share of groups with a signal is inside nearly always."""
    random = np.random.default_rng(1)
    inside = total = 0
    errors = []
    for _ in range(8):
        kind = random.choice(3, size=300, p=[truth.never, truth.always, 1 - truth.never - truth.always])
        p = np.where(kind == 0, 0.0, np.where(kind == 1, 1.0, random.beta(truth.a, truth.b, size=300)))
        rates = PassRates.estimate(random.binomial(16, p).tolist(), [16] * 300)
        for group in (4, 8, 32):
            share, real = rates.share(group), float(np.mean(1 - p**group - (1 - p) ** group))
            inside, total = inside + (share.low - 0.005 <= real <= share.high + 0.005), total + 1
            errors.append(share.mean - real)
    assert inside >= 0.85 * total
    assert abs(np.mean(errors)) < 0.01


def test_samples_that_mislead_are_shrunk_towards_the_other_prompts() -> None:
    """Where most prompts pass about half the time, one that passed 0 of 4 is expected to pass now and then."""
    random = np.random.default_rng(2)
    passed = [0, *random.binomial(4, random.beta(8, 8, size=400)).tolist()]
    assert 0.3 < PassRates.estimate(passed, [4] * 401).means[0] < 0.5
    mixed = [0, *[0] * 200, *random.binomial(4, 0.5, size=200).tolist()]  # where half of them never do, it is not
    assert PassRates.estimate(mixed, [4] * 401).means[0] < 0.1


def test_prompts_that_are_all_dead_or_all_alike_are_fitted() -> None:
    """The ends of what can be seen: nothing passes, all pass, one prompt."""
    for k in (0, 16):
        assert PassRates.estimate([k] * 50, [16] * 50).share(8).mean < 0.05
    assert 0 <= fit_prior(np.array([5.0]), np.array([16.0]))[0].never <= 1


def test_graded_rewards_are_counted_over_all_subsets() -> None:
    """Exact: the share of subsets whose values differ; beyond the samples, of draws with replacement."""
    values = [0.0, 0.0, 0.5, 0.0, 0.5, 1.0]
    for group in (2, 3, 4):
        subsets = list(combinations(values, group))
        assert graded_signals([values], [group])[0, 0] == pytest.approx(np.mean([len(set(s)) > 1 for s in subsets]))
    draws = list(product(values[:3], repeat=4))
    assert graded_signals([values[:3]], [4])[0, 0] == pytest.approx(np.mean([len(set(s)) > 1 for s in draws]))
    assert graded_share([[1.0, 1.0 + 1e-12], []], 2).mean == 0  # equal to rounding, and a prompt without rewards


def test_both_ways_agree_on_rewards_of_two_values() -> None:
    """The posterior's expectation and the count over subsets estimate the same share."""
    random = np.random.default_rng(4)
    p = np.concatenate([np.zeros(150), random.beta(2, 2, size=250)])
    samples = random.random((400, 16)) < p[:, None]
    rates = PassRates.estimate(samples.sum(1).tolist(), [16] * 400)
    for group in (2, 8, 16):
        assert rates.share(group).mean == pytest.approx(
            graded_share(samples.astype(float).tolist(), group).mean, abs=0.02
        )
