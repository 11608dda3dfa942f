"""A fix that is shown has been tried: it ends its problem, adds none, and changes what it says."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grporecipe.rules.check import Problem, check, errors
from grporecipe.rules.fixes import Fix, changed, find_fixes, render_problem
from grposweep.config.fields import KEYS
from grposweep.config.fields import PLAIN as OWN
from support import executed_lines
from verdicts import codes_of, the_one

SIZES = frozenset({"per_device_train_batch_size", "gradient_accumulation_steps"})
BASE = Setting(
    processes=1, per_device_train_batch_size=8, max_steps=10, keys=OWN.keys, kl_enabled=False
)

BATCHES = {
    "processes": st.integers(1, 9),
    "num_generations": st.integers(1, 12),
    "per_device_train_batch_size": st.integers(1, 12),
    "gradient_accumulation_steps": st.integers(1, 5),
    "steps_per_generation": st.one_of(st.none(), st.integers(1, 5)),
    "per_device_eval_batch_size": st.integers(1, 24),
    "num_generations_eval": st.one_of(st.none(), st.integers(1, 12)),
    "num_iterations": st.integers(1, 2),
}
CHOICES: dict[str, list[Any]] = {
    "kl_enabled": [None, True, False],
    "beta": [-0.1, 0.0, 0.04],
    "sync_ref_model": [False, True],
    "lora": [False, True],
    "ref_model_sync_steps": [0, 2],
    "max_steps": [None, 0, 10],
    "epochs": [None, -1.0, 1.0],
    "budget_completions": [None, 0, 3, 6400],
    "train_prompts": [None, 3, 1000],
    "prompts_per_step": [None, 0, 3, 8],
    "learning_rate": [-1.0, 0.0, 1e-6],
    "warmup_steps": [-1.0, 0.05],
    "loss_type": ["dapo", "ppo"],
    "temperature": [0.0, 1.0],
    "eval_prompts": [None, 0, 64],
    "auto": [frozenset(), frozenset(), SIZES],
    "max_per_device_train_batch_size": [None, 5, 64],
}
OTHERS = {name: st.sampled_from(values) for name, values in CHOICES.items()}


def draw_settings(**drawn: st.SearchStrategy[Any]) -> st.SearchStrategy[Setting]:
    """Settings over ``drawn``, their automatic sizes solved."""
    return st.fixed_dictionaries(drawn).map(
        lambda fields: planning.realise(replace(BASE, **fields))
    )


def broken(s: Setting) -> set[str]:
    """The codes of its errors."""
    return codes_of(errors(check(s)))


def verify(s: Setting, problem: Problem, fix: Fix) -> Setting:
    """What every fix must do; returns the fixed setting."""
    after = changed(s, dict(fix.change))
    assert {key for key, _ in fix.keys} <= set(KEYS.values()), "not a key of ours"
    assert problem.code not in broken(after)
    assert broken(after) <= broken(s)
    assert not any(
        {name for name, _ in fix.change} & {*other.broken.fields} for other in errors(check(after))
    )
    assert all(getattr(s, name) != value for name, value in fix.change), "repeats what is set"
    assert all(getattr(after, name) == value for name, value in fix.change), (
        "auto takes the change back"
    )
    return after


@pytest.mark.slow
@settings(max_examples=40)
@given(s=draw_settings(**BATCHES, **OTHERS))
def test_a_fix_ends_its_problem_and_causes_none(s: Setting) -> None:
    """Even if other rules are broken as well."""
    for problem in errors(check(s)):
        fixes = find_fixes(s, problem)
        assert len(fixes) <= 3
        assert len({fix.change for fix in fixes}) == len(fixes)
        for fix in fixes:
            verify(s, problem, fix)


@settings(max_examples=50)
@given(s=draw_settings(**BATCHES))
def test_a_batch_with_one_error_has_a_fix_that_leaves_none(s: Setting) -> None:
    """No fix leads from one error to another."""
    found = errors(check(s))
    assume(len(found) == 1)
    fixes = find_fixes(s, found[0])
    assert fixes
    for fix in fixes:
        assert not broken(verify(s, found[0], fix))


@pytest.mark.slow
@settings(max_examples=50)
@given(s=draw_settings(**BATCHES))
def test_no_smaller_change_of_the_same_kind_would_do(s: Setting) -> None:
    """The group size that is proposed is the nearest that works."""
    found = [problem for problem in errors(check(s)) if problem.code == "GB101"]
    assume(found)
    proposed = [
        dict(fix.change)["num_generations"]
        for fix in find_fixes(s, found[0])
        if "num_generations" in dict(fix.change)
    ]
    works = [
        n
        for n in range(2, 65)
        if not broken(replace(s, num_generations=n)) - (broken(s) - {"GB101"})
    ]
    assert [abs(n - s.num_generations) for n in proposed] == [
        min(abs(n - s.num_generations) for n in works) for _ in proposed
    ]
    assert bool(works) == bool(proposed)


def problem_of(s: Setting, code: str) -> Problem:
    """The problem of one code."""
    return next(problem for problem in check(s) if problem.code == code)


def test_fixes_name_the_keys_that_a_user_edits() -> None:
    """The setting's words are ours, the keys theirs."""
    s = replace(BASE, num_generations=7, num_generations_eval=8)
    fixes = find_fixes(s, problem_of(s, "GB101"))
    assert str(fixes[0]) == "batch.per_device_train_batch_size=7"
    assert [key for fix in fixes for key, _ in fix.keys] == [
        KEYS[name] for fix in fixes for name, _ in fix.change
    ]


def test_a_warning_has_no_fix_and_a_problem_without_one_has_advice() -> None:
    """Only errors prune; data cannot be multiplied by a setting."""
    s = replace(BASE, steps_per_generation=3, gradient_accumulation_steps=2)
    assert find_fixes(s, problem_of(s, "GS201")) == []
    few = replace(BASE, train_prompts=0)
    assert render_problem(few, problem_of(few, "GS104")).endswith(
        "Use more prompts, or a smaller batch."
    )


def test_a_rule_that_is_switched_off_does_not_stand_in_the_way_of_a_fix() -> None:
    """What is ignored in judging is ignored in verifying."""
    s = replace(BASE, per_device_train_batch_size=1, num_generations=1, num_generations_eval=8)
    problem = problem_of(s, "GB102")
    assert [str(fix) for fix in find_fixes(s, problem)] == [
        "batch.num_generations=8 batch.per_device_train_batch_size=8"
    ]
    assert str(find_fixes(s, problem, ["GB101"])[0]) == "batch.num_generations=8"


def test_a_size_under_auto_is_no_fix() -> None:
    """The planner would take it back: the fix must change what it says."""
    s = planning.realise(
        replace(
            BASE,
            auto=SIZES,
            prompts_per_step=3,
            steps_per_generation=1,
            max_per_device_train_batch_size=7,
        )
    )
    named = {name for fix in find_fixes(s, problem_of(s, "GB101")) for name, _ in fix.change}
    assert named
    assert named.isdisjoint(SIZES)
    s = planning.realise(
        replace(
            BASE, auto=SIZES, prompts_per_step=16, num_generations=1, per_device_eval_batch_size=2
        )
    )
    assert [str(fix) for fix in find_fixes(s, problem_of(s, "GB102"))] == [
        "batch.num_generations=2",
        "batch.num_generations=8 batch.per_device_eval_batch_size=8",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (8, "8"),
        (0.04, "0.04"),
        (1e-6, "1e-06"),
        ("a", "a"),
    ],
)
def test_a_fix_is_written_as_hydra_takes_it(value: object, text: str) -> None:
    """Paste it into the command line."""
    assert str(Fix((("beta", value),), (("kl.beta", value),))) == f"kl.beta={text}"


PLAIN = Setting(processes=7, per_device_train_batch_size=1, evaluates=False, max_steps=10)
EVALUATED: dict[str, Any] = {
    "processes": 8,
    "evaluates": True,
    "per_device_eval_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "num_generations": 16,
}


OLD: dict[str, Any] = {"version": (0, 16, 1), "loss_type": "grpo"}
OLD_EVALUATED: dict[str, Any] = {
    **OLD,
    "processes": 8,
    "evaluates": True,
    "per_device_eval_batch_size": 3,
    "num_generations": 16,
    "per_device_train_batch_size": 24,
}


@pytest.mark.parametrize(
    ("fields", "code", "wanted"),
    [
        ({}, "GB101", ["gradient_accumulation_steps=8", "num_generations=7", "processes=8"]),
        # Before 0.17 accumulation does not count; before 0.26 evaluation has no groups of its own.
        (OLD, "GB101", ["per_device_train_batch_size=8", "num_generations=7", "processes=8"]),
        (
            OLD_EVALUATED,
            "GE101",
            ["per_device_eval_batch_size=2", "num_generations=12", "processes=16"],
        ),
        # What sizes the rollout alone leaves the step as it is.
        ({"processes": 4, "generation_batch_size": 12}, "GB101", ["generation_batch_size=8"]),
        ({"steps_per_generation": 1}, "GB101", ["steps_per_generation=8"]),
        (
            {"processes": 4, "per_device_train_batch_size": 3},
            "GB101",
            ["per_device_train_batch_size=2"],
        ),
        (
            {"processes": 8, "gradient_accumulation_steps": 4, "train_prompts": 3},
            "GS104",
            ["gradient_accumulation_steps=3", "num_generations=16", "processes=6"],
        ),
    ],
)
def test_kinds_come_in_order_sizes_then_generations_then_processes(
    fields: dict[str, Any], code: str, wanted: list[str]
) -> None:
    """The nearest sizes of each kind, by what the release checks; first the guide's case, 7
    processes of one completion.
    """
    s = replace(PLAIN, **fields)
    assert [str(fix) for fix in find_fixes(s, problem_of(s, code))][: len(wanted)] == wanted


def test_groups_of_two_are_the_smallest_that_a_fix_asks_of_an_evaluation() -> None:
    """Two completions in a batch are one group of two."""
    s = Setting(
        processes=1,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=8,
        num_generations=8,
        max_steps=10,
    )
    assert "num_generations_eval=2" in map(str, find_fixes(s, problem_of(s, "GE101")))


def test_no_fix_changes_the_processes_of_a_job_whose_nodes_and_gpus_decide_them() -> None:
    """On Slurm cluster.processes follows from them, and another number is refused."""
    here = BASE.replace({"per_device_train_batch_size": 2, "num_generations": 8, "processes": 3})
    for s, is_offered in ((here, True), (here.replace({"nodes": 1, "gpus_per_node": 3}), False)):
        problem = the_one(errors(check(s)), "GB101")
        assert any("cluster.processes" in str(fix) for fix in find_fixes(s, problem)) is is_offered


@pytest.mark.parametrize(
    ("fields", "code", "safe"),
    [
        (EVALUATED, "GE101", [True, False, False]),
        ({}, "GB101", [False, False, False]),
        (
            {"processes": 8, "generation_batch_size": 8, "steps_per_generation": 1},
            "GB107",
            [True, True],
        ),
        (
            {"processes": 8, "generation_batch_size": 8, "steps_per_generation": 2},
            "GB107",
            [False, False],
        ),
        ({"processes": 8, "sync_ref_model": True}, "GK103", [True, False]),
        ({"processes": 8, "auto_find_batch_size": True}, "GB108", [True]),
        ({"processes": 8, "loss_type": "ppo"}, "GL101", [False]),
        ({"processes": 8, "log_completions_hub_repo": "a/b"}, "GC101", [True, False]),
    ],
)
def test_a_fix_is_safe_where_training_stays_what_it_was(
    fields: dict[str, Any], code: str, safe: list[bool]
) -> None:
    """Evaluation sizes, words without effect, equivalent splits: what ``--fix`` may write
    unasked.
    """
    s = replace(PLAIN, **fields)
    fixes = find_fixes(s, problem_of(s, code))
    assert [fix.safe for fix in fixes][: len(safe)] == safe, [str(fix) for fix in fixes]


@settings(max_examples=60)
@given(s=draw_settings(**BATCHES))
def test_a_safe_fix_keeps_the_step_and_the_rollout(s: Setting) -> None:
    """prompts_per_step x num_generations, and how old completions get."""
    for problem in errors(check(s)):
        for fix in find_fixes(s, problem):
            after = changed(s, dict(fix.change))
            if fix.safe:
                assert planning.completions_per_step(after) == planning.completions_per_step(s)
                assert planning.completions_per_rollout(after) == planning.completions_per_rollout(
                    s
                )
                assert after.num_generations == s.num_generations


@pytest.mark.slow
def test_judging_and_fixing_take_a_bounded_number_of_lines() -> None:
    """Executed lines instead of seconds, which depend on the machine; benchmarks/lint_speed.py
    measures those.
    """
    random = Random(0)
    settings = [
        replace(
            PLAIN,
            processes=random.choice([None, *range(1, 9)]),
            num_generations=random.choice([2, 4, 7, 8, 16]),
            per_device_train_batch_size=random.randint(1, 16),
            train_prompts=8000,
            epochs=1.0,
            given=frozenset({"epochs"}),
        )
        for _ in range(300)
    ]
    valid = [s for s in settings if not errors(check(s))]
    # about 1,100 a setting
    executed_lines(lambda: [check(s) for s in valid], most=1500 * len(valid))
    found: list[object] = []

    def fix_all() -> None:
        found.extend(find_fixes(s, problem) for s in settings for problem in errors(check(s)))

    # about 2,200 a setting
    executed_lines(fix_all, most=3800 * len(settings))
    assert found
    assert all(found)


@pytest.mark.parametrize(
    "name",
    [
        "num_generations",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "per_device_eval_batch_size",
        "generation_batch_size",
        "processes",
    ],
)
@pytest.mark.parametrize("value", [-(10**12), 10**12 + 1])
def test_an_absurd_number_is_answered_at_once(name: str, value: int) -> None:
    """A typing error must not hang the linter."""
    fields: dict[str, Any] = {
        "processes": 8,
        "evaluates": True,
        "num_generations": 6,
        "train_prompts": 100,
        name: value,
    }
    s = replace(PLAIN, **fields)

    def answer() -> None:
        for problem in errors(check(s)) + errors(check(replace(s, processes=None))):
            find_fixes(s, problem)

    # about 400,000 at most
    executed_lines(answer, most=2_000_000)


@pytest.mark.parametrize(("steps", "rollout"), [(3, 48), (5, 48), (3, 50)])
def test_a_rollout_that_is_sized_twice_needs_two_keys(steps: int, rollout: int) -> None:
    """7 processes with 1 completion each: neither 7 x 3 completions nor 48 are whole groups of 8 on
    them.
    """
    s = replace(
        BASE,
        processes=7,
        per_device_train_batch_size=1,
        num_generations=8,
        steps_per_generation=steps,
        generation_batch_size=rollout,
    )
    problem = next(problem for problem in errors(check(s)) if problem.code == "GB107")
    fixes = [dict(fix.change) for fix in find_fixes(s, problem)]
    assert {"generation_batch_size": None, "steps_per_generation": 8} in fixes or {
        "generation_batch_size": 56,
        "steps_per_generation": None,
    } in fixes
    assert all(not broken(changed(s, fix)) for fix in fixes if len(fix) == 2)
