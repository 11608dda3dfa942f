"""Which parameters decide."""

import random

from grposweep.search.analysis import ENOUGH, find_importances
from grposweep.search.space import Choice, Interval, Parameter, Point

PARAMETERS = {
    "lr": Parameter("lr", Interval(1e-5, 1e-2, log=True)),
    "kl": Parameter("kl", Choice(("none", "low"), ("none", "low"))),
}


def points(count: int) -> list[Point]:
    """Random ones."""
    stream = random.Random(0)
    return [{"lr": 10 ** stream.uniform(-5, -2), "kl": stream.choice(["none", "low"])} for _ in range(count)]


def test_the_parameter_that_decides_comes_first() -> None:
    """Only the learning rate matters; shares sum to one."""
    tried = points(40)
    found = find_importances(PARAMETERS, tried, [float(point["lr"] or 0) for point in tried], maximize=True)
    assert next(iter(found)) == "lr"
    assert found["lr"] > 0.8
    assert abs(sum(found.values()) - 1) < 1e-6


def test_thousands_of_trials_are_told_by_a_sample() -> None:
    """In a grid's order too, where every fifth trial may be the same seed's."""
    parameters = {
        "lr": Parameter("lr", Choice(tuple(range(40)), tuple(range(40)))),
        "seed": Parameter("seed", Choice((0, 1), (0, 1))),
    }
    grid = [{"lr": rate, "seed": seed} for rate in range(40) for seed in (0, 1)] * 30
    found = find_importances(parameters, grid, [float(point["lr"]) for point in grid], maximize=True)
    assert found["lr"] > 0.9


def test_few_trials_and_equal_ones_tell_nothing() -> None:
    """Nor do points outside the space."""
    tried = points(ENOUGH)
    assert find_importances(PARAMETERS, tried[1:], [0.1] * (ENOUGH - 1), maximize=True) == {}
    assert find_importances(PARAMETERS, [{"lr": 7.0, "kl": "low"}] * ENOUGH, [0.1] * ENOUGH, maximize=True) == {}
