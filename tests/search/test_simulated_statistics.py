"""Simulated sweeps: stated 95 % intervals hold the truth, and verdicts are rarely false.

docs/explanation/statistics.md has the table that these tests print with ``-s``.
"""

import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean, stdev

import pytest

from grposweep.search.analysis import compare_effects
from grposweep.search.replication import Candidate, race
from grposweep.search.sampling import (
    Sampling,
    describe_resolution,
    share_error,
    student_quantile,
)
from support import sampled

REPEATS = 300
# parameters that are compared with the baseline
CHANGES = 6
KINDS = ("0/1", "five steps", "continuous")
# the table of the page has them all
SAMPLES = (8, 64, 256, 2048) if "GRPOSWEEP_THOROUGH" in os.environ else (8, 256)
# standard deviation over seeds of the true value
SPREAD = 0.02


def draw_reward(kind: str, mean: float, stream: random.Random) -> float:
    """One completion's reward with this mean."""
    if kind == "0/1":
        return float(stream.random() < mean)
    if kind == "five steps":
        return sum(stream.random() < mean for _ in range(4)) / 4
    return stream.gauss(mean, 0.3)


def evaluate(
    kind: str, mean: float, samples: int, stream: random.Random
) -> tuple[float, float | None]:
    """An evaluation's mean and standard error, as a trial records them; many samples by their limit
    distribution.
    """
    if samples > 64:
        spread = {"0/1": 1.0, "five steps": 0.5}.get(kind)
        error = (0.3 if spread is None else spread * math.sqrt(mean * (1 - mean))) / math.sqrt(
            samples
        )
        return stream.gauss(mean, error), error
    rewards = [draw_reward(kind, mean, stream) for _ in range(samples)]
    value = fmean(rewards)
    return value, share_error(value, stdev(rewards) / math.sqrt(samples), samples)


def draw_point(
    number: int,
    kind: str,
    mean: float,
    samples: int,
    seeds: int,
    spread: float,
    stream: random.Random,
) -> Candidate:
    """A point on several seeds."""
    true = [min(max(stream.gauss(mean, spread), 0.001), 0.999) for _ in range(seeds)]
    found = [evaluate(kind, value, samples, stream) for value in true]
    return Candidate(
        number,
        dict(enumerate(v for v, _ in found)),
        {seed: Sampling(error) for seed, (_, error) in enumerate(found)},
    )


def draw_sweeps(
    kind: str, samples: int, seeds: int, points: int, best: float = 0.5
) -> Iterator[list[Candidate]]:
    """Simulated sweeps whose last point has a mean of ``best`` and all others 0.5."""
    stream = random.Random(f"{kind} {samples} {seeds} {points} {best}")
    for _ in range(REPEATS):
        means = [0.5] * (points - 1) + [best]
        yield [
            draw_point(n, kind, mean, samples, seeds, SPREAD, stream)
            for n, mean in enumerate(means)
        ]


def share_of_false_verdicts(kind: str, samples: int, seeds: int) -> float:
    """The share of sweeps in which a parameter without effect is called better or worse."""
    points: Mapping[int, dict[str, int]] = {n: {"lr": n} if n else {} for n in range(CHANGES + 1)}
    return fmean(
        any(
            effect.verdict in ("better", "worse")
            for effect in compare_effects(points, runners, 1).effects
        )
        for runners in draw_sweeps(kind, samples, seeds, CHANGES + 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_over_seeds_hold_the_truth(kind: str) -> None:
    """95 % of them, whether the samples or the seeds scatter more."""
    for samples in SAMPLES:
        for seeds in (2, 3, 5):
            runners = [runner for sweep in draw_sweeps(kind, samples, seeds, 4) for runner in sweep]
            held = fmean(runner.overall.low <= 0.5 <= runner.overall.high for runner in runners)
            print(kind, samples, seeds, f"coverage {held:.3f}")
            assert held >= 0.93, (samples, seeds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_without_effect_get_no_verdict(kind: str) -> None:
    """In at most 5 % of sweeps of six parameters; 7.5 % leave room for the chance of 300 sweeps."""
    for samples in SAMPLES:
        for seeds in (2, 3, 5):
            found = share_of_false_verdicts(kind, samples, seeds)
            print(kind, samples, seeds, f"false verdicts {found:.3f}")
            assert found <= 0.075, (samples, seeds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_equal_leaders_do_not_lose_a_race(kind: str) -> None:
    """One of four is called worse in at most 5 % of races."""
    for samples in SAMPLES:
        for seeds in (2, 3, 5):
            ranked = [
                race(runners, range(seeds)) for runners in draw_sweeps(kind, samples, seeds, 4)
            ]
            found = fmean(bool(ranking.out) for ranking in ranked)
            print(kind, samples, seeds, f"races with a false loser {found:.3f}")
            assert found <= 0.075, (samples, seeds)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [4, 12, 48])
def test_the_interval_of_the_best_of_many_holds_the_truth(trials: int) -> None:
    """On one seed, from 64 prompts on. Of 8 prompts the error itself is too uncertain, and the page
    says so.
    """
    for kind in KINDS:
        for samples in SAMPLES:
            stream = random.Random(f"{kind} {samples} {trials}")
            held = []
            for _ in range(100):
                values = [evaluate(kind, 0.5, samples, stream) for _ in range(trials)]
                value, error = max(values, key=lambda pair: pair[0])
                held.append(abs(value - 0.5) <= normal_margin(trials) * (error or 0.0))
            print(kind, samples, trials, f"coverage of the best {fmean(held):.3f}")
            assert fmean(held) >= 0.9 or samples < 64


def draw_on_prompts(
    number: int,
    mean: float,
    ease: Sequence[float],
    each: int,
    seeds: int,
    by_prompt: bool,
    stream: random.Random,
) -> Candidate:
    """A point whose seeds all answer these prompts, each so often; ``ease`` is a prompt's log-odds
    of a reward of 1.
    """
    values = {}
    samplings = {}
    for seed in range(seeds):
        shift = shift_to(round(min(max(stream.gauss(mean, SPREAD), 0.02), 0.98), 3))
        means = [fmean(stream.random() < share(own + shift) for _ in range(each)) for own in ease]
        values[seed] = fmean(means)
        error = share_error(values[seed], stdev(means) / math.sqrt(len(means)), len(means))
        samplings[seed] = Sampling(
            error, means if by_prompt else (), "prompts" if by_prompt else ""
        )
    return Candidate(number, values, samplings)


def share(log_odds: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-log_odds))


EASE = [math.log((0.02 + p) / (0.98 - p)) for p in (0.96 * (n + 0.5) / 400 for n in range(400))]


@cache
def shift_to(mean: float) -> float:
    """The log-odds by which all prompts together are easier, so that their mean reward is this
    one.
    """
    low = -10.0
    high = 10.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if fmean(share(own + middle) for own in EASE) < mean else (low, middle)
        )
    return low


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompts", "each"), sampled([(8, 8), (32, 1), (32, 4), (128, 4)], 2, pytest.mark.thorough)
)
def test_intervals_hold_where_all_trials_answer_the_same_prompts(prompts: int, each: int) -> None:
    """The truth is the mean over all prompts that there are. Pairing by prompt finds smaller
    differences, and no false ones.
    """
    points: dict[int, dict[str, int]] = {n: {"lr": n} if n else {} for n in range(CHANGES + 1)}
    for seeds in (2, 3, 5):
        powers = {}
        for by_prompt in (False, True):
            stream, held, false, found = random.Random(f"{prompts} {each} {seeds}"), [], [], []
            for _ in range(100):
                ease = stream.choices(EASE, k=prompts)
                means = {**dict.fromkeys(points, 0.5), CHANGES + 1: 0.6}
                drawn = [
                    draw_on_prompts(n, mean, ease, each, seeds, by_prompt, stream)
                    for n, mean in means.items()
                ]
                held.append(drawn[0].overall.low <= 0.5 <= drawn[0].overall.high)
                false.append(
                    any(
                        e.verdict in ("better", "worse")
                        for e in compare_effects(points, drawn, 1).effects
                    )
                )
                pair = compare_effects({0: {}, CHANGES + 1: {"lr": 1}}, drawn, 1).effects
                found.append(pair[0].verdict == "better")
            powers[by_prompt] = fmean(found)
            print(
                prompts,
                each,
                seeds,
                by_prompt,
                f"{fmean(held):.2f} {fmean(false):.2f} {fmean(found):.2f}",
            )
        # 95 % less three standard errors of 100 sweeps
        assert fmean(held) >= 0.88
        # 5 % and three of them
        assert fmean(false) <= 0.11
        assert powers[True] >= powers[False]


def normal_margin(trials: int) -> float:
    """Standard errors of an interval that holds for all of so many values."""
    return student_quantile(0, 1 - 0.05 / trials / 2)


@pytest.mark.slow
def test_a_large_effect_is_found() -> None:
    """Five seeds of 256 prompts find a difference of 0.2 in nearly all sweeps."""
    points = {n: {"lr": n} if n else {} for n in range(2)}
    for seeds in (2, 3, 5):
        for best in (0.55, 0.6, 0.7):
            found = fmean(
                compare_effects(points, runners, 1).effects[0].verdict == "better"
                for runners in draw_sweeps("0/1", 256, seeds, 2, best)
            )
            print(seeds, best, f"power {found:.3f}")
    assert found >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "mean", "least", "most"),
    [
        (lambda stream: stream.gauss(0.0, 1.0), 0.0, 0.93, 0.98),
        (lambda stream: float(stream.random() < 0.5), 0.5, 0.93, 0.98),
        (lambda stream: float(stream.random() < 0.1), 0.1, 0.93, 0.995),
        (lambda stream: stream.lognormvariate(0, 1.5), math.exp(1.125), 0.93, 0.99),
        (lambda stream: stream.paretovariate(1.5), 3.0, 0.92, 0.99),
    ],
    ids=["normal", "right or wrong", "rarely right", "lognormal", "Pareto"],
)
def test_the_interval_of_one_point_covers_its_mean_with_heavy_tails_too(
    draw: Callable[[random.Random], float], mean: float, least: float, most: float
) -> None:
    """In about 95 % of 1,000 samples of 64 prompts; the Pareto distribution has no variance."""
    stream = random.Random(3)
    covered = 0
    for _ in range(1000):
        means = [draw(stream) for _ in range(64)]
        margin = Sampling(stdev(means) / 8, means).margin(0.05)
        covered += margin is not None and abs(fmean(means) - mean) <= margin
    assert least <= covered / 1000 <= most


def test_equal_points_differ_by_less_than_what_can_be_chance() -> None:
    """In 95 % of all pairs, with rewards of 0 and 1 as the start of a sweep assumes them."""
    least = float(describe_resolution(0.5 / math.sqrt(256), 256).split()[2])
    stream = random.Random(0)
    far = 0
    for _ in range(4000):
        first, other = (stream.getrandbits(256).bit_count() / 256 for _ in range(2))
        far += abs(first - other) >= least
    assert 0.03 < far / 4000 < 0.07
