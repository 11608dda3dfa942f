"""A setting under the keys of EasyR1 or verl, as a trial gets it, reads back as the same plan and
breaks no rule.
"""

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grporecipe.fields.writing import in_prompts
from grporecipe.linting.linter import LintResult, lint_recipe, plan_numbers
from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import Setting
from grporecipe.reading.load import Options, build_recipe
from support import examples

IN_PROMPTS = ("easyr1", "verl")
SIZED = (
    "completions_per_rollout",
    "prompts_per_rollout",
    "completions_per_step",
    "prompts_per_step",
    "steps_per_rollout",
    "total_steps",
)
PLAIN = Setting(
    processes=4,
    num_generations=8,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    steps_per_generation=4,
    evaluates=False,
    max_steps=400,
    lr_scheduler_type="constant",
    beta=0.04,
    delta=3.0,
    max_prompt_length=512,
    train_prompts=1000,
    model_name_or_path="Qwen/Qwen3-0.6B",
)


def write(s: Setting, framework: str) -> dict[str, Any]:
    """Its keys in the newest release, as a setting of the framework."""
    own = FRAMEWORKS[framework]
    assert own.native_keys is not None
    return dict(own.native_keys(own, s.replace({"framework": own.traits}), own.version))


def again(keys: dict[str, Any], framework: str) -> LintResult:
    """The verdict on what was written."""
    return lint_recipe(build_recipe(keys, Options(framework, train_prompts=1000)))


@pytest.mark.parametrize("framework", IN_PROMPTS)
def test_a_plain_setting_keeps_its_numbers(framework: str) -> None:
    """4 processes of 8 completions, four micro-steps per rollout, two a step: 16 prompts, and 8 a
    step.
    """
    found = again(write(PLAIN, framework), framework)
    assert found.ok
    assert {name: found.plan[name] for name in SIZED} == {
        name: plan_numbers(PLAIN)[name] for name in SIZED
    }
    s = found.setting
    assert (s.prompts_per_rollout, s.prompts_per_step, s.beta, s.kl_placement) == (
        16,
        8,
        0.04,
        "loss",
    )
    assert (s.learning_rate, s.temperature, s.epsilon, s.epsilon_high, s.delta) == (
        1e-6,
        1.0,
        0.2,
        0.2,
        3.0,
    )


@settings(derandomize=True, max_examples=examples(150), deadline=None)
@given(
    framework=st.sampled_from(IN_PROMPTS),
    processes=st.sampled_from([1, 2, 4, 8, 12, 16]),
    group=st.sampled_from([2, 4, 5, 8]),
    size=st.integers(1, 8),
    accumulation=st.integers(1, 4),
    factor=st.integers(1, 3),
    passes=st.integers(1, 2),
    steps=st.sampled_from([None, 60, 240]),
    level=st.sampled_from(["token", "sequence"]),
    loss=st.sampled_from(["dapo", "grpo", "bnpo", "dr_grpo", "cispo"]),
    beta=st.sampled_from([0.0, 0.04]),
)
def test_a_plan_is_kept_unless_a_size_is_rounded(
    framework: str,
    processes: int,
    group: int,
    size: int,
    accumulation: int,
    factor: int,
    passes: int,
    steps: int | None,
    level: str,
    loss: str,
    beta: float,
) -> None:
    """Over settings that TRL accepts. The steps of a rollout divide the number of steps."""
    s = PLAIN.replace(
        {
            "processes": processes,
            "num_generations": group,
            "per_device_train_batch_size": size,
            "loss_type": loss,
            "gradient_accumulation_steps": accumulation,
            "steps_per_generation": accumulation * factor,
            "beta": beta,
            "num_iterations": passes,
            "max_steps": steps,
            "epochs": None if steps else 2.0,
            "importance_sampling_level": level,
        }
    )
    assume(processes * size * accumulation * factor % group == 0)
    assume((planning.prompts_per_rollout(s) or 0) <= 1000)
    found = again(write(s, framework), framework)
    broken = {finding.code for finding in found.diagnostics if finding.severity == "error"}
    total = planning.total_steps(s)
    is_whole = total is None or total % planning.steps_per_rollout(s) == 0
    if in_prompts(s)[1] and is_whole:
        assert {name: found.plan[name] for name in SIZED} == {
            name: plan_numbers(s)[name] for name in SIZED
        }
        # generation in equal parts is EasyR1's own demand
        assert broken <= {"GB308"}
    for name in ("num_generations", "num_iterations", "learning_rate", "temperature", "beta"):
        assert getattr(found.setting, name) == getattr(s, name)


@pytest.mark.parametrize("framework", IN_PROMPTS)
def test_writing_what_was_written_changes_nothing(framework: str) -> None:
    """The first recipe leaves unset values to the framework. From the second one on nothing
    changes.
    """
    written, setting = [], PLAIN
    for _ in range(3):
        written.append(write(setting, framework))
        setting = again(written[-1], framework).setting
    assert written[1] == written[2]
