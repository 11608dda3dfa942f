"""Which parameters decide."""

import random
from collections.abc import Callable, Iterator
from statistics import fmean

import pytest

from grposweep.search.analysis import Contrast, Measured, find_contrasts
from grposweep.search.space import Choice, Interval, Label, Parameter, Point
from support import examples, sampled


def choice(name: str, *labels: Label) -> Parameter:
    """A parameter whose values are its labels."""
    return Parameter(name, Choice(labels, labels))


PARAMETERS = {
    "lr": Parameter("lr", Interval(1e-5, 1e-2, log=True)),
    "kl": choice("kl", "none", "low"),
}


REPEATS = 300
Draw = Callable[[random.Random, Point], Measured]


def contrasts(
    draw: Draw, name: str, kinds: dict[str, Parameter] = PARAMETERS
) -> Iterator[Contrast]:
    """A parameter's contrast in sweeps of 4 to 9 random trials, if both of its sides have two
    trials.
    """
    stream = random.Random(1)
    for repeat in range(REPEATS):
        tried: list[Point] = [
            {"lr": 10 ** stream.uniform(-5, -2), "kl": stream.choice(kinds["kl"].domain.labels)}  # type: ignore[union-attr]
            for _ in range(4 + repeat % 6)
        ]
        found = {
            c.parameter: c
            for c in find_contrasts(kinds, [draw(stream, point) for point in tried], maximize=True)
        }
        if name in found and min(found[name].trials, found[name].others) > 1:
            yield found[name]


def is_upper(point: Point) -> bool:
    """Whether the learning rate is in the upper half of its range."""
    return float(point["lr"] or 0) > 10**-3.5


def uneven(stream: random.Random, point: Point) -> Measured:
    """0.2 better in the upper half, where trials also differ five times as much; kl=low adds
    0.05.
    """
    worth = stream.gauss(0.6, 0.1) if is_upper(point) else stream.gauss(0.4, 0.02)
    return Measured(point, worth + 0.05 * (point["kl"] == "low"))


@pytest.mark.parametrize(("name", "truth"), [("lr", 0.2), ("kl", 0.05)])
def test_intervals_of_few_trials_cover_the_true_effect_in_about_95_percent(
    name: str, truth: float
) -> None:
    """With four to nine trials of unequal spread and of an unbalanced number, each drawn at
    random.
    """
    found = list(contrasts(uneven, name))
    signs = [1 if c.holds("low" if name == "kl" else 1e-2) else -1 for c in found]
    covered = [
        abs(c.difference.mean - sign * truth) <= c.difference.margin
        for c, sign in zip(found, signs, strict=True)
    ]
    assert len(found) > REPEATS / 2
    assert 0.93 <= fmean(covered) <= 0.999


def test_the_best_of_several_values_is_no_effect_where_all_are_equal() -> None:
    """Choosing the best one of four does not make the interval miss 0 more often than one in
    twenty.
    """
    kinds = PARAMETERS | {"kl": choice("kl", "none", "low", "medium", "high")}
    found = list(
        contrasts(lambda stream, point: Measured(point, stream.gauss(0.5, 0.05)), "kl", kinds)
    )
    assert fmean(c.is_significant for c in found) <= 0.05


def test_the_best_of_several_values_has_a_wider_interval_than_the_better_of_two() -> None:
    """The same trials, with four values or with two: the best of four was chosen among more."""
    margins = []
    for labels in ("abcd", "abbb"):
        measured = [
            Measured({"kl": label}, 0.5 + 0.3 * (n == 0) + 0.02 * k)
            for n, label in enumerate(labels)
            for k in range(4)
        ]
        kinds = {"kl": choice("kl", *sorted(set(labels)))}
        (contrast,) = find_contrasts(kinds, measured, maximize=True)
        margins.append(contrast.difference.margin)
    assert margins[0] > 1.3 * margins[1]


NOISE: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda stream: stream.gauss(0.5, 0.05),
    "right or wrong": lambda stream: sum(stream.random() < 0.5 for _ in range(64)) / 64,
    "lognormal": lambda stream: stream.lognormvariate(0, 1.5),
    "Pareto": lambda stream: stream.paretovariate(1.5),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("trials", sampled([12, 24, 100], 3))
def test_noise_shows_no_parameter_that_decides_with_many_trials_either(
    noise: str, trials: int
) -> None:
    """In one of twenty sweeps at most."""
    group = choice("group", 4, 8, 16)
    kinds = PARAMETERS | {"group": group, "beta": Parameter("beta", Interval(0.0, 0.1))}
    stream, found, repeats = random.Random(2), 0, examples(REPEATS)
    for _ in range(repeats):
        tried = [
            Measured(
                {
                    "lr": 10 ** stream.uniform(-5, -2),
                    "kl": stream.choice(["none", "low"]),
                    "group": stream.choice([4, 8, 16]),
                    "beta": stream.uniform(0, 0.1),
                },
                NOISE[noise](stream),
            )
            for _ in range(trials)
        ]
        found += any(
            contrast.is_significant for contrast in find_contrasts(kinds, tried, maximize=True)
        )
    assert found / repeats <= 0.06


def test_a_clear_effect_of_few_trials_is_significant_and_a_side_with_one_trial_never() -> None:
    """The best choice or half of the range is named, for a metric that is minimized too."""
    tried = [
        Measured(
            {"lr": 1e-4 if n < 3 else 3e-3, "kl": "low" if n % 2 else "none"},
            0.4 + 0.3 * (n < 3) + 0.01 * n,
        )
        for n in range(6)
    ]
    first, second = find_contrasts(PARAMETERS, tried, maximize=True)
    assert (first.parameter, first.is_significant, second.is_significant) == ("lr", True, False)
    assert first.holds(1e-5)
    assert not first.holds(1e-2)
    lower = find_contrasts(PARAMETERS, tried, maximize=False)[0]
    assert lower.holds(1e-2)
    assert lower.difference.mean < 0
    assert not any(
        contrast.is_significant
        for contrast in find_contrasts(PARAMETERS, tried[2:4], maximize=True)
    )


def test_a_full_grid_shows_the_effect_of_one_parameter_apart_from_the_other() -> None:
    """Differences are taken at each learning rate; without any they are significant by chance in at
    most 5 % of sweeps.
    """
    kinds = {"lr": choice("lr", 1, 2, 3), "kl": choice("kl", "a", "b")}

    def grid(stream: random.Random, gain: float) -> Contrast:
        tried = [
            Measured({"lr": lr, "kl": kl}, 0.3 * lr + gain * (kl == "b") + stream.gauss(0, 0.01))
            for lr in (1, 2, 3)
            for kl in "ab"
        ]
        return next(
            found
            for found in find_contrasts(kinds, tried, maximize=True)
            if found.parameter == "kl"
        )

    stream = random.Random(1)
    assert fmean(grid(stream, 0.0).is_significant for _ in range(5 * REPEATS)) <= 0.055
    clear = grid(stream, 0.2)
    assert clear.is_significant
    assert abs(clear.difference.mean - 0.2) < 0.05


def test_an_interval_that_spans_most_of_what_is_possible_is_no_information() -> None:
    """Results lie between 0 and 0.8, and the effect's interval is wider."""
    tried = [
        Measured({"lr": 1e-4, "kl": kl}, value)
        for kl, value in zip(("low", "none") * 3, (0, 0.8, 0.7, 0, 0.1, 0.6), strict=True)
    ]
    assert [found.is_known for found in find_contrasts(PARAMETERS, tried, maximize=True)] == [False]


def test_a_seed_and_a_parameter_with_one_value_have_no_contrast() -> None:
    """Nor does one that no trial has."""
    seed = choice("seed", 0, 1)
    tried = [Measured({"kl": "low", "seed": n % 2}, 0.1 * n) for n in range(6)]
    assert find_contrasts(PARAMETERS | {"seed": seed}, tried, maximize=True) == []
