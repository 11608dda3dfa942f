"""Points that do not fit a GPU get fixes that fit, cheapest first, and only if GPU and model are
known.
"""

from dataclasses import replace
from typing import Any

import pytest

from grporecipe.memory.estimate import GIB, estimate
from grporecipe.model.architecture import Architecture
from grporecipe.model.planning import realise
from grporecipe.model.setting import Setting
from grporecipe.rules.check import Problem, check, errors
from grporecipe.rules.fixes import find_fixes
from grposweep.config.fields import KEYS

# Qwen2.5-0.5B
SMALL = Architecture(24, 896, 4864, 14, 2, 64, 151_936, True, "qwen2", 494_032_768)
# Qwen2.5-7B
LARGE = Architecture(28, 3584, 18_944, 28, 4, 128, 152_064, False, "qwen2", 7_615_616_512)
POINT = Setting(
    processes=1,
    num_generations=8,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=4,
    max_steps=100,
    per_device_eval_batch_size=8,
    eval_prompts=64,
    train_prompts=1000,
    kl_enabled=False,
    keys=KEYS,
    architecture=SMALL,
    weights_dtype="bfloat16",
    max_prompt_length=256,
    max_completion_length=768,
    gpu_memory_gib=16.0,
)


def fixes(**fields: Any) -> list[dict[str, Any]]:
    """What GM101 offers at a point."""
    s = replace(POINT, **fields)
    return [dict(fix.change) for fix in find_fixes(s, memory_problem(s))]


def memory_problem(s: Setting) -> Problem:
    """GM101's finding."""
    return next(problem for problem in check(s) if problem.code == "GM101")


def test_a_smaller_micro_batch_at_the_same_effective_batch_comes_first() -> None:
    """It keeps completions per step and per rollout, so --fix may write it. Then checkpointing, which
    costs a third more computing.
    """
    assert find_fixes(POINT, memory_problem(POINT))[0].safe
    first, second = fixes()[:2]
    assert first["per_device_train_batch_size"] * first["gradient_accumulation_steps"] == 64
    assert second == {"gradient_checkpointing": True}


def test_a_large_share_of_vllm_is_made_smaller() -> None:
    """It stays resident in training; the largest share that fits and starts is named."""
    engine = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.9,
        "gradient_checkpointing": True,
    }
    offered = [
        fix["vllm_gpu_memory_utilization"]
        for fix in fixes(**engine, per_device_train_batch_size=1)
        if len(fix) == 1
    ]
    assert 0.1 <= offered[0] < 0.9


def test_an_automatic_size_is_bounded_instead_of_set() -> None:
    """The planner chooses the size, so it is the planner's bound that a user edits."""
    auto = {
        "auto": frozenset({"per_device_train_batch_size", "gradient_accumulation_steps"}),
        "prompts_per_step": 8,
    }
    assert list(fixes(**auto)[0]) == ["max_per_device_train_batch_size"]


def test_a_large_model_needs_lora_on_one_gpu_and_may_be_sharded_on_several() -> None:
    """Its optimizer alone is larger than the GPU, so no micro-batch helps."""
    alone = fixes(architecture=LARGE, gpu_memory_gib=40.0)
    assert alone
    assert all(fix.get("lora") for fix in alone)
    ranks = {"processes": 8, "per_device_train_batch_size": 1, "gradient_checkpointing": True}
    shared = fixes(architecture=LARGE, gpu_memory_gib=40.0, **ranks)
    assert any("sharding" in fix for fix in shared)


def test_fewer_generations_come_last() -> None:
    """They change what is learnt, and everything else is tried before."""
    auto = {
        "auto": frozenset({"per_device_train_batch_size", "gradient_accumulation_steps"}),
        "prompts_per_step": 4,
    }
    point = realise(replace(POINT, **auto, gpu_memory_gib=18.0))
    changes = [set(change) for change in memory_problem(point).broken.suggestions]
    first = changes.index({"num_generations"})
    assert first > 0
    assert all(change == {"num_generations"} for change in changes[first:])


@pytest.mark.parametrize("fields", [{}, {"gradient_checkpointing": True, "gpu_memory_gib": 5.0}])
def test_every_fix_fits(fields: dict[str, Any]) -> None:
    """It is judged again before it is shown."""
    s = replace(POINT, **fields)
    for change in fixes(**fields):
        after = replace(s, **change)
        assert not errors(check(after))
        memory = estimate(after)
        assert memory is not None
        assert memory.peak <= s.gpu_memory_gib * GIB  # type: ignore[operator]  # it is set


@pytest.mark.parametrize("unknown", [{"architecture": None}, {"gpu_memory_gib": None}])
def test_nothing_is_reported_if_model_or_gpu_is_unknown(unknown: dict[str, Any]) -> None:
    """Silence is better than a guess."""
    assert not [
        problem for problem in check(replace(POINT, **unknown)) if problem.code.startswith("GM")
    ]


def test_unstated_processes_are_judged_by_those_that_fit() -> None:
    """With more ranks a sharded model fits."""
    problems = check(
        replace(
            POINT,
            processes=None,
            sharding="zero3",
            architecture=LARGE,
            per_device_train_batch_size=1,
            gradient_checkpointing=True,
            gpu_memory_gib=32.0,
        )
    )
    assert any("GM101" in problem.broken.why for problem in problems if problem.code == "GT201")


@pytest.mark.parametrize(
    ("gib", "code"), [(18.0, "GM101"), (24.0, "GM201"), (31.0, "GM201"), (40.0, None)]
)
def test_only_a_gpu_below_the_interval_is_refused(gib: float, code: str | None) -> None:
    """Inside it there is a warning, on both sides of the estimate, and above it nothing."""
    problems = check(replace(POINT, gpu_memory_gib=gib))
    assert [problem.code for problem in problems if problem.code.startswith("GM")] == (
        [] if code is None else [code]
    )
