"""Samplers ask for valid points only, never twice in a finite space, and the same again after a
restart.
"""

from collections.abc import Callable

import pytest

from grposweep.search.sampler import ValidPoints, choose_sampler
from grposweep.search.space import (
    Choice,
    Interval,
    Label,
    Parameter,
    Point,
    Space,
    build_space,
    freeze,
)
from grposweep.search.study import SweepStudy


def choice(*labels: Label) -> Choice:
    """A choice whose values are its labels."""
    return Choice(labels, labels)


FINITE = Space((Parameter("a", choice(1, 2, 3, 4)), Parameter("b", choice("x", "y", "z"))))
MIXED = build_space(
    [
        Parameter("lr", Interval(1e-5, 1e-2, log=True)),
        Parameter("processes", choice(1, 2, 3, 4, 5, 6, 7, 8)),
        Parameter("generations", choice(3, 4, 5, 6, 7, 8)),
        Parameter("kl", choice("none", "low")),
        Parameter("kl.beta", Interval(1e-3, 1e-1, log=True), {"kl": ("low",)}),
    ]
)


def fits(point: Point) -> bool:
    """Whole groups, and no small learning rate with many processes: valid depends on finite and
    continuous parameters.
    """
    processes, generations, lr = point["processes"], point["generations"], point.get("lr", 1e-3)
    assert isinstance(processes, int)
    assert isinstance(generations, int)
    assert isinstance(lr, float)
    return 8 * processes % generations == 0 and not (processes > 4 and lr < 1e-4)


def valid_of(space: Space, is_valid: Callable[[Point], bool]) -> ValidPoints:
    """What judging the space would know."""
    return ValidPoints(is_valid, tuple(point for point in space.finite_points() if is_valid(point)))


MOSTLY_INVALID = valid_of(MIXED, fits)


def score(point: Point) -> float:
    """Something to learn."""
    lr = point.get("lr", point.get("a", 1))
    assert isinstance(lr, int | float)
    return -abs(lr - 3e-3)


def open_study(space: Space = MIXED) -> SweepStudy:
    """A new study."""
    return SweepStudy(space, "maximize")


def reopened(study: SweepStudy) -> SweepStudy:
    """A study of the same trials, as the next controller builds it."""
    again = open_study(study.space)
    for trial in study.trials:
        again.tell(
            again.add(trial.params, trial.user_attrs), trial.value, trial.intermediate_values
        )
    return again


def search(
    study: SweepStudy, valid: ValidPoints, sampler: str, asks: int, seed: int = 0
) -> list[Point]:
    """SamplerRequest and tell in turns; the points, up to the first None."""
    points = []
    for _ in range(asks):
        point = study.ask(valid, sampler, seed)
        if point is None:
            break
        study.tell(study.add(point, {}), score(point))
        points.append(point)
    return points


@pytest.mark.parametrize("asks", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_all_random_asks_are_valid(asks: int) -> None:
    """Each for itself: the history stays empty, so the number comes from the seed."""
    study = open_study()
    points = [study.ask(MOSTLY_INVALID, "random", seed) for seed in range(asks)]
    assert all(point is not None and fits(point) for point in points)
    assert len({freeze(point) for point in points if point}) == asks


def test_sixty_asks_of_tpe_are_valid_and_learn() -> None:
    """Every parameter that is active is there, no other."""
    points = search(open_study(), MOSTLY_INVALID, "tpe", 60)
    assert len(points) == 60
    assert all(fits(point) and ("kl.beta" in point) == (point["kl"] == "low") for point in points)
    assert sum(map(score, points[30:])) > sum(map(score, points[:30]))


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_finite_space_is_asked_once_each_and_then_exhausted(sampler: str) -> None:
    """One valid point in twelve is found too, and None ends the sweep."""
    valid = valid_of(FINITE, lambda point: point["a"] != 3 or point["b"] == "y")
    points = search(open_study(FINITE), valid, sampler, 99)
    assert len(points) == len(valid.finite) == 10
    assert {freeze(point) for point in points} == {freeze(point) for point in valid.finite}


def test_one_valid_point_among_many_is_found() -> None:
    """Free draws would need a thousand tries; the list of valid combinations needs one."""
    parameters = tuple(Parameter(name, choice(*range(10))) for name in "abc")
    valid = valid_of(Space(parameters), lambda point: list(point.values()) == [7, 7, 7])
    assert open_study(Space(parameters)).ask(valid, "tpe", 0) == {"a": 7, "b": 7, "c": 7}
    assert open_study(Space(parameters)).ask(ValidPoints(lambda _: False, ()), "tpe", 0) is None


def test_rare_valid_points_are_not_taken_from_the_head_of_the_list() -> None:
    """Where free draws find none, the combination is drawn too."""
    parameters = tuple(Parameter(name, choice(*range(12))) for name in "abc")
    valid = valid_of(
        Space(parameters), lambda point: point["a"] == point["b"] == 7 and point["c"] in (1, 5, 9)
    )
    study = open_study(Space(parameters))
    found = [study.ask(valid, "random", seed) for seed in range(12)]
    assert {point["c"] for point in found if point} == {1, 5, 9}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_next_point_is_the_same_for_the_next_controller(sampler: str) -> None:
    """An ask is a pure function of seed, number and told history, not of who asked before."""
    study = open_study()
    search(study, MOSTLY_INVALID, sampler, 15)
    # still running
    study.add({"lr": 1e-3, "processes": 1, "generations": 8, "kl": "none"}, {})
    # failed
    study.tell(study.add({"lr": 2e-3, "processes": 1, "generations": 8, "kl": "none"}, {}), None)
    following = study.ask(MOSTLY_INVALID, sampler, 0)
    assert following is not None
    assert study.ask(MOSTLY_INVALID, sampler, 0) == following
    assert reopened(study).ask(MOSTLY_INVALID, sampler, 0) == following
    assert reopened(study).ask(MOSTLY_INVALID, sampler, 1) != following


def test_invalid_points_in_the_study_do_not_change_what_tpe_asks() -> None:
    """Adaptive samplers neither ask for invalid points nor see them: it is as if those trials had
    failed.
    """
    invalid = open_study()
    failed = open_study()
    bad: list[Point] = [
        {"lr": 1e-5, "processes": 8, "generations": 7, "kl": "none"} for _ in range(12)
    ]
    for point in bad:
        invalid.add_invalid(point, ["GB101"])
        failed.tell(failed.add(point, {}), None)
    assert search(invalid, MOSTLY_INVALID, "tpe", 14) == search(failed, MOSTLY_INVALID, "tpe", 14)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_fixed_parameters_keep_their_values(sampler: str) -> None:
    """A user's own first point; what it leaves out is filled in validly."""
    study = open_study()
    fixed: Point = {"processes": 6, "kl": "low", "kl.beta": 0.05}
    points = [study.ask(MOSTLY_INVALID, sampler, seed, fixed) for seed in range(20)]
    assert all(
        point is not None and fits(point) and point.items() >= fixed.items() for point in points
    )
    assert len({freeze(point) for point in points if point}) > 1


def test_fixed_parameters_that_fit_nothing_give_none() -> None:
    """No endless search."""
    study = open_study(FINITE)
    valid = valid_of(FINITE, lambda point: point["a"] != 2)
    assert study.ask(valid, "random", 0, {"a": 2}) is None
    assert study.ask(valid, "random", 0, {"a": 1}) is not None


def test_auto_is_a_grid_where_the_space_is_finite_and_tpe_otherwise() -> None:
    """What a user did not choose is chosen by the space."""
    assert (choose_sampler("auto", FINITE), choose_sampler("auto", MIXED)) == ("grid", "tpe")
    assert choose_sampler("random", FINITE) == "random"
