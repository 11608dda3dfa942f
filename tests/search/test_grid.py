"""Judging a space by look-up says what composing and judging each point says."""

import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from omegaconf import DictConfig

from grporecipe.errors import UserError
from grporecipe.rules.check import check, errors
from grposweep.config.points import Points
from grposweep.config.to_setting import read_setting
from grposweep.search.grid import evaluate_grid
from grposweep.search.parse import parse_space
from grposweep.search.validity import Validator
from support import executed_lines

Compose = Callable[[list[str]], DictConfig]

WIDE = (
    ["lr=tag(log,interval(1e-5,1e-2))", "batch=small,medium,reuse,auto,open_r1_medium", "batch.num_generations=1,4,8,12",
     "cluster.processes=1,2,3", "kl=none,low,sync_ref", "schedule=completions,steps", "task.eval_prompts=7,256",
     "task.max_completion_length=4,8", "loss=dapo,bnpo", "batch.per_device_eval_batch_size=auto,5"],
    {"kl.beta": {"when": {"kl": ["low", "sync_ref"]}, "space": "0.0,0.01"}},
)  # fmt: skip


def build_validator(compose: Compose, arguments: list[str], params: dict[str, Any] | None = None) -> Validator:
    """The judge of a space."""
    space, fixed = parse_space(arguments, params or {})
    return Validator(space, Points(compose, fixed))


@pytest.mark.slow
def test_a_setting_by_look_up_equals_the_composed_one(compose: Compose) -> None:
    """At 60 random points of a space of groups, values, a conditional and a continuous parameter, and interpolations."""
    validator = build_validator(compose, *WIDE)
    choose = random.Random(1)
    points = choose.sample(list(validator.space.finite_points()), 60)
    for point in points:
        point["lr"] = 10 ** choose.uniform(-5, -2)
        assert validator.fields.setting(point) == read_setting(
            validator.points.experiment(validator.space.values(point))
        )


def test_the_grid_finds_what_judging_each_point_finds(compose: Compose) -> None:
    """Totals, the valid points in order, and the counts of each rule."""
    arguments = [argument for argument in WIDE[0] if not argument.startswith(("lr", "task", "loss", "schedule"))]
    validator = build_validator(compose, arguments, WIDE[1])
    counts = evaluate_grid(validator)
    points = list(validator.space.finite_points())
    found = [{problem.code for problem in errors(check(validator.fields.setting(point)))} for point in points]
    assert counts.total == len(points)
    assert list(counts.valid_points()) == [point for point, codes in zip(points, found, strict=True) if not codes]
    assert list(counts.invalid_points()) == [point for point, codes in zip(points, found, strict=True) if codes]
    assert counts.by_rule() == {code: sum(code in codes for codes in found) for code in counts.by_rule()}
    assert set().union(*found) == set(counts.by_rule())


def test_a_new_value_of_an_interval_composes_nothing(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search asks for hundreds of new points at a time, and composing one takes longer than all rules."""
    validator = build_validator(compose, ["lr=interval(1e-5,1e-2)", "kl.beta=interval(0.0,0.1)", "batch=small,medium"])
    for batch in ("small", "medium"):
        validator.fields.setting({"lr": 1e-3, "kl.beta": 0.0, "batch": batch})
    monkeypatch.setattr(validator.points, "experiment", lambda values: pytest.fail(f"{values} is composed"))
    setting = validator.fields.setting({"lr": 2e-3, "kl.beta": 0.05, "batch": "medium"})
    assert (setting.learning_rate, setting.beta) == (2e-3, 0.05)


def test_a_conditional_parameter_never_hides_a_branch(compose: Compose) -> None:
    """kl=none has one point, the others one for each coefficient."""
    validator = build_validator(compose, ["kl=none,low"], {"kl.beta": {"when": {"kl": "low"}, "space": "0.01,0.1"}})
    assert list(evaluate_grid(validator).valid_points()) == [
        {"kl": "none"}, {"kl": "low", "kl.beta": 0.01}, {"kl": "low", "kl.beta": 0.1},
    ]  # fmt: skip


def test_a_combination_is_valid_where_some_value_of_a_continuous_parameter_is(compose: Compose) -> None:
    """An interval whose lower end is invalid prunes nothing; kl=none is invalid with any coefficient but 0."""
    counts = evaluate_grid(build_validator(compose, ["kl=low,none", "kl.beta=interval(0.0,0.1)"]))
    assert (counts.total, counts.valid) == (2, 2)
    counts = evaluate_grid(build_validator(compose, ["kl=low,none", "kl.beta=interval(0.01,0.1)"]))
    assert [point["kl"] for point in counts.valid_points()] == ["low"]
    for words in (["kl=low,none", "kl.beta=interval(0.01,0.1)"], ["kl.beta=interval(0.01,0.1)", "kl=low,none"]):
        counts = evaluate_grid(build_validator(compose, words))
        assert [point["kl"] for point in counts.invalid_points()] == ["none"]


def test_each_label_says_how_much_of_it_is_valid(compose: Compose) -> None:
    """One process holds no group of open_r1_medium."""
    counts = evaluate_grid(
        build_validator(compose, ["batch=small,open_r1_medium", "cluster.processes=1,4", "lr=1e-4,2e-4,3e-4"])
    )
    assert counts.valid_by_label()["batch"] == {"small": (6, 6), "open_r1_medium": (3, 6)}
    assert counts.valid_by_label()["cluster.processes"] == {1: (3, 6), 4: (6, 6)}


@pytest.mark.slow
def test_a_million_points_are_judged(compose: Compose) -> None:
    """960,000 combinations of nine parameters; benchmarks/space.py measures the seconds."""
    validator = build_validator(
        compose,
        ["lr=" + ",".join(f"{n}e-5" for n in range(1, 11)), "batch=small,medium,large,open_r1_small,open_r1_medium",
         "batch.num_generations=2,4,6,8,12", "kl=none,low,high,sync_ref", "kl.beta=0,0.001,0.01,0.04,0.1",
         "loss=grpo,dapo,bnpo,dr_grpo", "cluster.processes=1,2,4,8",
         "optimizer=adamw,adamw_linear,adamw_cosine", "seed=range(4)"],
    )  # fmt: skip
    counts = evaluate_grid(validator)
    assert (counts.total, counts.invalid) == (960_000, 604_320)
    assert all(validator.is_valid(point) for point in islice(counts.valid_points(), 50))


def test_a_parameter_that_no_rule_reads_costs_next_to_nothing(compose: Compose) -> None:
    """Points are not visited one by one: a hundred times as many by other seeds are judged in about the same lines."""
    space = ["batch=small,open_r1_medium", "kl=none,low"]
    few, many = (build_validator(compose, [*space, f"seed=range({seeds})"]) for seeds in (5, 500))
    assert evaluate_grid(many).total == 2_000
    assert executed_lines(lambda: evaluate_grid(many), 10**7) < 2 * executed_lines(lambda: evaluate_grid(few), 10**7)


def test_more_points_than_memory_holds_are_bad_input(compose: Compose) -> None:
    """A hundred million combinations."""
    arguments = [f"{name}=range(100)" for name in ("seed", "schedule.evaluations", "search.seed", "cluster.threads")]
    with pytest.raises(UserError, match="100,000,000"):
        evaluate_grid(build_validator(compose, arguments))
