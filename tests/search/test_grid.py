"""Judging a space by look-up says what composing and judging each point says."""

import random
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from grporecipe.rules.check import check, errors
from grposweep.config.points import Compose, Points
from grposweep.config.to_setting import read_setting
from grposweep.search.evaluate import validate_points
from grposweep.search.parse import parse_space
from grposweep.search.validity import Validator

WIDE = (
    [
        "lr=tag(log,interval(1e-5,1e-2))",
        "batch=small,medium,reuse,auto",
        "batch.num_generations=1,4,8,12",
        "cluster.processes=1,2,3",
        "kl=none,low,sync_ref",
        "schedule=completions,steps",
        "task.eval_prompts=7,256",
        "task.max_completion_length=4,8",
        "loss=dapo,bnpo",
        "batch.per_device_eval_batch_size=auto,5",
    ],
    {"kl.beta": {"when": {"kl": ["low", "sync_ref"]}, "space": "0.0,0.01"}},
)


def build_validator(
    compose: Compose, arguments: list[str], params: dict[str, Any] | None = None
) -> Validator:
    """The judge of a space."""
    space, fixed = parse_space(arguments, params or {})
    return Validator(space, Points(compose, fixed))


@pytest.mark.slow
def test_a_setting_by_look_up_equals_the_composed_one(compose: Compose) -> None:
    """At 60 random points of a space of groups, values, a conditional and a continuous parameter,
    and interpolations.
    """
    validator = build_validator(compose, *WIDE)
    choose = random.Random(1)
    points = choose.sample(list(validator.space.finite_points()), 60)
    for point in points:
        point["lr"] = 10 ** choose.uniform(-5, -2)
        assert validator.fields.setting(point) == read_setting(
            validator.points.experiment(validator.space.values(point))
        )


@pytest.mark.slow
def test_a_small_space_is_judged_point_by_point(compose: Compose) -> None:
    """Totals, the valid points in order, and the counts of each rule."""
    arguments = [
        argument
        for argument in WIDE[0]
        if not argument.startswith(("lr", "task", "loss", "schedule"))
    ]
    validator = build_validator(compose, arguments, WIDE[1])
    counts = validate_points(validator)
    points = list(validator.space.finite_points())
    found = [
        {problem.code for problem in errors(check(validator.fields.setting(point)))}
        for point in points
    ]
    assert counts.total == len(points)
    assert list(counts.valid_points()) == [
        point for point, codes in zip(points, found, strict=True) if not codes
    ]
    assert list(counts.invalid_points()) == [
        point for point, codes in zip(points, found, strict=True) if codes
    ]
    assert counts.by_rule() == {
        code: sum(code in codes for codes in found) for code in counts.by_rule()
    }
    assert set().union(*found) == set(counts.by_rule())


def test_a_new_value_of_an_interval_composes_nothing(
    compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search asks for hundreds of new points at a time, and composing one takes longer than all
    rules.
    """
    validator = build_validator(
        compose, ["lr=interval(1e-5,1e-2)", "kl.beta=interval(0.0,0.1)", "batch=small,medium"]
    )
    for batch in ("small", "medium"):
        validator.fields.setting({"lr": 1e-3, "kl.beta": 0.0, "batch": batch})
    monkeypatch.setattr(
        validator.points, "experiment", lambda values: pytest.fail(f"{values} is composed")
    )
    setting = validator.fields.setting({"lr": 2e-3, "kl.beta": 0.05, "batch": "medium"})
    assert (setting.learning_rate, setting.beta) == (2e-3, 0.05)


def test_a_conditional_parameter_never_hides_a_branch(compose: Compose) -> None:
    """kl=none has one point, the others one for each coefficient."""
    validator = build_validator(
        compose, ["kl=none,low"], {"kl.beta": {"when": {"kl": "low"}, "space": "0.01,0.1"}}
    )
    assert list(validate_points(validator).valid_points()) == [
        {"kl": "none"},
        {"kl": "low", "kl.beta": 0.01},
        {"kl": "low", "kl.beta": 0.1},
    ]


@pytest.mark.slow
def test_a_combination_is_valid_where_some_value_of_a_continuous_parameter_is(
    compose: Compose,
) -> None:
    """An interval whose lower end is invalid prunes nothing; kl=none is invalid with any
    coefficient but 0.
    """
    counts = validate_points(build_validator(compose, ["kl=low,none", "kl.beta=interval(0.0,0.1)"]))
    assert (counts.total, counts.valid) == (2, 2)
    for words in (
        ["kl=low,none", "kl.beta=interval(0.01,0.1)"],
        ["kl.beta=interval(0.01,0.1)", "kl=low,none"],
    ):
        counts = validate_points(build_validator(compose, words))
        assert [point["kl"] for point in counts.invalid_points()] == ["none"]
        assert [point["kl"] for point in counts.valid_points()] == ["low"]


def test_each_label_says_how_much_of_it_is_valid(compose: Compose) -> None:
    """The 32 completions of one process hold no whole groups of 12."""
    counts = validate_points(
        build_validator(
            compose, ["batch.num_generations=8,12", "cluster.processes=1,3", "lr=1e-4,2e-4,3e-4"]
        )
    )
    assert counts.valid_by_label()["batch.num_generations"] == {8: (6, 6), 12: (3, 6)}
    assert counts.valid_by_label()["cluster.processes"] == {1: (3, 6), 3: (6, 6)}


LARGE = [
    "lr=" + ",".join(f"{n}e-5" for n in range(1, 11)),
    "batch.per_device_train_batch_size=2,8,32,64,128",
    "batch.num_generations=2,4,6,8,12",
    "kl=none,low,high,sync_ref",
    "kl.beta=0,0.001,0.01,0.04,0.1",
    "loss=grpo,dapo,bnpo,dr_grpo",
    "cluster.processes=1,2,4,8",
    "optimizer=adamw,adamw_linear,adamw_cosine",
    "seed=range(4)",
]


@pytest.mark.slow
def test_a_large_space_is_counted_by_sampling(compose: Compose) -> None:
    """Of these 960,000 points 410,400 are valid, 43 %; the same points are drawn each time, and
    every label is among them.
    """
    validator = build_validator(compose, LARGE)
    counts = validate_points(validator)
    assert (counts.size, counts.total) == (960_000, 2_000)
    assert counts.share == pytest.approx(0.4275, abs=0.04)
    assert (
        counts.describe() == f"about {counts.share:.0%} of 960,000 points valid, from 2,000 sampled"
    )
    assert counts.valid + counts.invalid == counts.total
    assert all(validator.is_valid(point) for point in islice(counts.valid_points(), 50))
    assert len(counts.valid_by_label()["batch.per_device_train_batch_size"]) == 5
    assert list(validate_points(build_validator(compose, LARGE)).valid_points()) == list(
        counts.valid_points()
    )


@pytest.mark.slow
def test_the_share_counts_each_point_once_although_branches_have_different_sizes(
    compose: Compose,
) -> None:
    """Half of the draws are of kl=none, which has a third of the points."""
    words = [
        "kl=none,low",
        "seed=range(11)",
        *(f"{name}=range(1,11)" for name in ("task.eval_prompts", "lr", "cluster.threads")),
    ]
    betas = {"kl.beta": {"when": {"kl": "low"}, "space": "0.01,0.02"}}
    counts = validate_points(build_validator(compose, words, betas))
    assert counts.is_sampled
    assert counts.size == 11 * 10**3 * 3
    points = [judged.point for judged in counts.judged]
    low = sum(counts.validator.space.weight(point) for point in points if point["kl"] == "low")
    whole = sum(map(counts.validator.space.weight, points))
    assert low / whole == pytest.approx(2 / 3, abs=0.04)


@pytest.mark.slow
def test_a_value_that_was_not_drawn_is_prepared_as_well(compose: Compose) -> None:
    """Each task of a sampled space has its experiment, with a valid point."""
    tasks = "task.eval_prompts=range(1,10)"
    counts = validate_points(build_validator(compose, [*LARGE, tasks]))
    few = replace(counts, judged=counts.judged[:40])
    assert {item.task.eval_prompts for item in few.distinct("task")} == set(range(1, 10))


@pytest.mark.slow
def test_a_list_has_at_most_ten_thousand_points(compose: Compose) -> None:
    """One more is sampled."""
    few = validate_points(build_validator(compose, ["seed=range(4)", "kl=none,low"]))
    assert (few.total, few.is_sampled) == (8, False)
    many = [
        "seed=range(11)",
        "kl.beta=0,0.1",
        *(f"{name}=range(1,9)" for name in ("task.eval_prompts", "lr", "cluster.threads")),
    ]
    assert validate_points(build_validator(compose, many)).is_sampled
