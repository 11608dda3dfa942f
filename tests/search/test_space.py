"""Parameters, labels, and the points that they span."""

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grposweep.search.space import Choice, Interval, Parameter, Point, Space, build_space, freeze


def choice(*values: object) -> Choice:
    """A choice whose labels are its values."""
    return Choice(values, values)  # type: ignore[arg-type]  # labels in these tests


def test_a_journal_may_hand_back_a_label_as_another_type_of_number() -> None:
    """It stands for the same value if no other label does."""
    assert Choice((2.0, 4.0), ("two", "four")).value(2) == "two"


def test_frozen_points_keep_labels_of_different_types_apart_and_forget_the_order() -> None:
    """They are the keys under which verdicts and finished points are remembered."""
    assert len({freeze({"x": label}) for label in (1, 1.0, True, "1", None)}) == 5
    assert freeze({"a": 1, "b": 2}) == freeze({"b": 2, "a": 1})


CONDITIONAL = build_space(
    [
        Parameter("kl.beta", choice(0.001, 0.04), {"kl": ("low", "high")}),
        Parameter("kl", choice("none", "low", "high")),
        Parameter("extra", choice("p", "q"), {"kl.beta": (0.04,), "kl": ("high",)}),
        Parameter("lr", Interval(1e-5, 1e-3, log=True)),
    ]
)


def test_a_conditional_parameter_is_not_asked_where_its_condition_fails() -> None:
    """Conditions chain. none: 1; low: 2; high with 0.001: 1, with 0.04: 2."""
    points = list(CONDITIONAL.finite_points())
    assert len(points) == 6
    assert all(("kl.beta" in point) == (point["kl"] != "none") for point in points)
    assert all(
        ("extra" in point) == (point.get("kl.beta") == 0.04 and point["kl"] == "high")
        for point in points
    )


def test_the_finite_part_leaves_the_continuous_parameters_out() -> None:
    """What the grid of finite parameters judged."""
    point: Point = {"kl": "low", "kl.beta": 0.001, "lr": 3e-4}
    assert CONDITIONAL.finite_part(point) == {"kl": "low", "kl.beta": 0.001}
    assert CONDITIONAL.finite_part(point) in list(CONDITIONAL.finite_points())


def test_a_space_is_finite_when_every_parameter_is() -> None:
    """An empty space too: a single run is a sweep of one point."""
    assert not CONDITIONAL.is_finite
    assert Space().is_finite
    assert list(Space().finite_points()) == [{}]


def test_values_come_from_labels_and_numbers_from_intervals() -> None:
    """A list is searched under its text, and arrives as a list."""
    space = Space(
        (
            Parameter("task.rewards", Choice(("['exact']",), (["exact"],))),
            Parameter("lr", Interval(0.0, 1.0)),
        )
    )
    assert space.values({"task.rewards": "['exact']", "lr": 0.5}) == {
        "task.rewards": ["exact"],
        "lr": 0.5,
    }


def test_a_description_says_all_that_an_identity_needs() -> None:
    """Choices, ends, scale, integers, conditions."""
    described = {content["parameter"]: content for content in CONDITIONAL.describe()}
    assert described["lr"] == {"parameter": "lr", "low": 1e-5, "high": 1e-3, "log": True}
    assert described["kl.beta"] == {
        "parameter": "kl.beta",
        "choices": [0.001, 0.04],
        "when": {"kl": ["low", "high"]},
    }
    assert Parameter("n", Interval(1, 4, integer=True)).describe() == {
        "parameter": "n",
        "low": 1,
        "high": 4,
        "integer": True,
    }


@settings(max_examples=100)
@given(
    ends=st.tuples(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3)),
    share=st.floats(0, 1),
    scale=st.booleans(),
)
def test_a_share_of_an_interval_lies_on_its_own_scale(
    ends: tuple[float, float], share: float, scale: bool
) -> None:
    """The middle of a logarithmic interval is the geometric mean."""
    low = min(ends)
    high = max(ends) * 2
    value = Interval(low, high, log=scale).at(share)
    assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)
    got = log(value / low) / log(high / low) if scale else (value - low) / (high - low)
    assert got == pytest.approx(share, abs=1e-6)


def test_an_integer_interval_gives_integers() -> None:
    """Also on a logarithmic scale."""
    assert Interval(1, 100, log=True, integer=True).at(0.5) == 10
    assert isinstance(Interval(1, 100, integer=True).at(0.3), int)
