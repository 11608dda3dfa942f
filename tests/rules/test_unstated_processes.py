"""A recipe that states no processes is judged for 1 to 64: a warning names the numbers that work,
an error if none does.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.model.setting import Setting
from grporecipe.rules.check import REGISTRY, check, errors
from grporecipe.rules.fixes import find_fixes
from grporecipe.rules.helpers import (
    NO_COUNT,
    describe_counts,
)
from grporecipe.rules.registry import ALL_COUNTS
from verdicts import codes_of

UNSTATED = Setting(processes=None, num_generations=8, evaluates=False, max_steps=10)
COUNTING = [rule for _, rule in sorted(REGISTRY.items()) if rule.counts is not None]


def warned(**fields: Any) -> str | None:
    """Why GT201 warns."""
    found = [
        problem.broken.why
        for problem in check(replace(UNSTATED, **fields))
        if problem.code == "GT201"
    ]
    return found[0] if found else None


def test_every_error_that_reads_the_processes_says_which_of_them_work() -> None:
    """Otherwise an unstated number would pass unseen."""
    assert {
        rule.code
        for rule in REGISTRY.values()
        if rule.severity == "error" and "processes" in rule.reads
    } == {rule.code for rule in COUNTING}


@pytest.mark.slow
@settings(max_examples=100)
@given(
    size=st.integers(1, 12),
    accumulation=st.integers(1, 4),
    group=st.integers(2, 80),
    eval_size=st.integers(1, 24),
    evaluates=st.booleans(),
)
def test_the_verdict_is_that_of_all_numbers_together(
    size: int, accumulation: int, group: int, eval_size: int, evaluates: bool
) -> None:
    """No finding if all work, a warning if some do, and an error with the codes of the broken rules
    if none does.
    """
    s = replace(
        UNSTATED,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        num_generations=group,
        per_device_eval_batch_size=eval_size,
        evaluates=evaluates,
    )
    stated = {n: codes_of(errors(check(replace(s, processes=n)))) for n in range(1, 65)}
    works = [n for n, codes in stated.items() if not codes]
    problems = check(s)
    assert bool(errors(problems)) == (not works)
    assert ("GT201" in {problem.code for problem in problems}) == (0 < len(works) < 64)
    assert codes_of(errors(problems)) == (set() if works else stated[1])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_generations": 32}, "multiples of 4 work; others break GB101"),
        ({"num_generations": 7}, "multiples of 7 work; others break GB101"),
        ({"generation_batch_size": 56, "num_generations": 7}, "1, 7 work; others break GB106"),
        ({"train_prompts": 12}, "1 to 12 work; others break GS104"),
        (
            {"num_generations": 16, "train_prompts": 12},
            "multiples of 2 up to 24 work; others break GB101 and GS104",
        ),
        ({}, None),
    ],
)
def test_the_numbers_that_work_are_named_in_few_words(
    fields: dict[str, Any], words: str | None
) -> None:
    """As a user would say it."""
    why = warned(**fields)
    assert why == words or (words and why and why.endswith(words))


def test_a_rule_that_is_switched_off_refuses_no_number() -> None:
    """Neither in the warning nor in the error; and the warning itself can be switched off."""
    s = replace(UNSTATED, num_generations=32)
    assert [problem.code for problem in check(s)] == ["GT201"]
    assert check(s, ["GB101"]) == check(s, ["GT"]) == check(s, select=["GB"]) == []
    none = replace(UNSTATED, num_generations=79)
    assert [problem.code for problem in check(none)] == ["GB101"]
    assert check(none, ["GB101"]) == []


def test_there_are_fixes_even_if_no_number_works() -> None:
    """They fix it for some number of processes."""
    s = replace(UNSTATED, num_generations=79)
    problem = check(s)[0]
    assert "no number of processes from 1 to 64 would do" in problem.message
    fixes = find_fixes(s, problem)
    assert fixes
    assert all(not errors(check(replace(s, **dict(fix.change)))) for fix in fixes)


def mask(*counts: int) -> int:
    """A set of process counts."""
    return sum(1 << n - 1 for n in counts)


def test_numbers_in_words() -> None:
    """Masks, and how they read."""
    assert describe_counts(ALL_COUNTS) == "all of 1 to 64"
    assert describe_counts(NO_COUNT) == "none"
    assert describe_counts(mask(*range(3, 65, 3))) == "multiples of 3"
    many = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
    assert describe_counts(mask(*range(1, 12), 20)) == f"{many}, 20"
    assert describe_counts(mask(*range(1, 13), 20)) == f"{many}, 12 and 1 more up to 20"
    assert describe_counts(mask(5, 9)) == "5, 9"
