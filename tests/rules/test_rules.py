"""Every rule fires on a bad setting and is silent on a good one, reads the fields that it declares,
and names the user's keys.
"""

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings

from drawn import NAMES, draw_settings
from grporecipe.files import Json, read_own_yaml
from grporecipe.model.architecture import Architecture
from grporecipe.model.releases import parse_release
from grporecipe.model.setting import TRL_FRAMEWORK, Runtime, Setting
from grporecipe.rules import registry as registry_module
from grporecipe.rules.check import REGISTRY, Problem, check, errors
from grporecipe.rules.fixes import render_problem
from grposweep.config.fields import KEYS
from support import examples
from verdicts import codes_of

GOOD = Setting(
    processes=1,
    num_generations=8,
    per_device_train_batch_size=32,
    gradient_accumulation_steps=2,
    per_device_eval_batch_size=32,
    eval_prompts=64,
    train_prompts=1000,
    max_steps=100,
    learning_rate=1e-6,
    keys=KEYS,
    kl_enabled=False,
)
# Qwen2.5-0.5B
QWEN = Architecture(24, 896, 4864, 14, 2, 64, 151_936, True, "qwen2", 494_032_768)
OFFLOADED = Runtime(offloads=frozenset({"optimizer"}), computes_offloaded=True)
# How a value of cases.yaml becomes that of a field.
READ: dict[str, Callable[[Any], Any]] = {
    "version": parse_release,
    "architecture": {"qwen": QWEN, None: None}.get,
    "runtime": {"offloaded": OFFLOADED}.get,
    "lora_targets": tuple,
    **dict.fromkeys(("given", "auto", "unsolved"), frozenset),
}


def fields_of(row: Json) -> Json:
    """The fields of a row."""
    return {name: READ[name](value) if name in READ else value for name, value in row.items()}


# code, what breaks it over GOOD, a neighbour that does not
CASES = [
    (code, fields_of(case["bad"]), fields_of(case["good"]))
    for code, cases in read_own_yaml(__file__, "cases.yaml").items()
    for case in cases
]


def codes(s: Setting) -> set[str]:
    """The codes of all problems."""
    return codes_of(check(s))


def only(s: Setting, code: str) -> Problem:
    """The problem of one code."""
    return next(problem for problem in check(s) if problem.code == code)


@pytest.mark.parametrize(("code", "bad", "good"), CASES)
def test_a_rule_fires_on_a_bad_setting_and_not_on_its_neighbour(
    code: str, bad: Json, good: Json
) -> None:
    """The neighbour differs in as little as possible and breaks no rule at all."""
    assert code in codes(replace(GOOD, **bad))
    assert code not in codes(replace(GOOD, **good))
    assert not errors(check(replace(GOOD, **good)))


def test_every_rule_has_a_case() -> None:
    """A new rule comes with its table line; those of other frameworks are tested with their
    readers.
    """
    assert {code for code, _, _ in CASES} == {
        code for code, rule in REGISTRY.items() if rule.holds_for(TRL_FRAMEWORK)
    }
    assert check(GOOD) == []


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_a_rule_is_documented_and_its_code_well_formed(code: str) -> None:
    """G, family, and a hundred: of TRL's rules errors (1) and warnings (2), of EasyR1's and verl's
    3 and 4, ms-swift's 5.

    The docstring is what ``explain`` prints.
    """
    rule = REGISTRY[code]
    assert re.fullmatch(r"G[A-Z][1-7]\d\d", code)
    assert code[2] not in "12" or (code[2] == "1") == (rule.severity == "error")
    assert rule.explanation.strip().endswith((".", '"'))
    assert rule.reads <= {field.name for field in fields(Setting)}


def test_a_code_is_given_once() -> None:
    """Codes are permanent, so two rules cannot share one."""
    with pytest.raises(AssertionError, match="GB101 is taken"):
        registry_module.rule("GB101", "error", ())(lambda _: None)
    assert len({rule.find for rule in REGISTRY.values()}) == len(REGISTRY)


class Watched(Setting):
    """A setting that remembers which of its fields were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in NAMES:
            object.__getattribute__(self, "__dict__").setdefault("seen", set()).add(name)
        return object.__getattribute__(self, name)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(s=draw_settings(Watched))
def test_a_rule_reads_no_field_that_it_does_not_declare(s: Setting) -> None:
    """The declared fields decide which verdicts are cached and which fixes are searched."""
    for code, rule in REGISTRY.items():
        s.__dict__["seen"] = set()
        rule.judge(s)
        if rule.counts is not None:
            rule.counts(s)
        assert s.__dict__["seen"] <= rule.reads, code


def test_the_watch_sees_what_a_plan_formula_reads() -> None:
    """Otherwise the test above could not fail."""
    s = Watched(processes=2, train_prompts=100)
    REGISTRY["GD201"].judge(s)
    assert {"processes", "train_prompts", "num_generations"} <= s.__dict__["seen"]


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(s=draw_settings())
def test_every_rule_answers_in_words_for_every_setting(s: Setting) -> None:
    """No setting, however wrong, makes a rule or its message fail; blame is on declared fields."""
    for problem in check(s):
        assert problem.broken.what
        assert problem.broken.why
        assert "None" not in problem.broken.what.replace("=None", "")
        assert problem.broken.instead
        assert {*problem.broken.fields} <= REGISTRY[problem.code].reads


@pytest.mark.parametrize(("code", "bad", "_good"), CASES)
def test_messages_carry_the_native_names_of_the_keys(code: str, bad: Json, _good: Json) -> None:
    """The message has the key as the user wrote it, and not this project's name of the field."""
    native = {name: f"their-{name}" for name in NAMES}
    problem = only(replace(GOOD, **bad, keys=native), code)
    assert re.search(r"their-\w+=", problem.broken.what) or code in (
        "GS101",
        "GS104",
        "GD201",
        "GK203",
        "GT201",
    )
    assert not re.search(
        r"(?<!their-)\b(num_generations|per_device_\w+|gradient_\w+|max_steps)=", problem.message
    )


def test_rules_are_ignored_by_code_and_by_family() -> None:
    """Visibly, by what the message shows."""
    s = replace(GOOD, num_generations=7, beta=0.1, per_device_eval_batch_size=12)
    assert codes(s) == {"GB101", "GE101", "GK101"}
    assert [p.code for p in check(s, ["GB101"])] == ["GE101", "GK101"]
    assert [p.code for p in check(s, ["GB", "GE"])] == ["GK101"]


def test_the_open_r1_case_gets_its_three_fixes() -> None:
    """Seven processes of one completion, eight generations: accumulate, make the group smaller, or
    add a process.
    """
    s = Setting(
        processes=7, num_generations=8, per_device_train_batch_size=1, evaluates=False, max_steps=10
    )
    assert render_problem(s, only(s, "GB101")) == (
        "num_generations=8: it does not divide the 7 completions of a rollout (7 processes x 1 per "
        "device x 1 micro-steps); TRL needs whole groups. Set gradient_accumulation_steps=8, or "
        "num_generations=7, or processes=8."
    )


@pytest.mark.parametrize(
    ("warmup", "advice"), [(0, "Try 5e-06 with"), (0.1, "Try 5e-06, or more prompts per step.")]
)
def test_warmup_that_is_set_is_not_advised(warmup: float, advice: str) -> None:
    """GA203: only what would change something."""
    s = Setting(processes=1, learning_rate=1e-7, parameters=7_000_000_000, warmup_steps=warmup)
    (found,) = check(s, select=("GA203",))
    assert found.broken.instead.startswith(advice)
