"""A recipe written for EasyR1 and verl reads back as the same plan, breaks no rule, and lists its losses."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grporecipe.fields.recipes import read_recipe, write_recipe
from grporecipe.linting.linter import LintResult, lint_recipe, plan_numbers
from grporecipe.model import planning
from grporecipe.model.framework import FRAMEWORKS, TranslatedRecipe
from grporecipe.model.setting import Setting
from grporecipe.reading.load import Options, load_recipe, parse_recipe
from support import examples

IN_PROMPTS = sorted(name for name, known in FRAMEWORKS.items() if known.traits.unit == "prompts")
SIZED = ("completions_per_rollout", "prompts_per_rollout", "completions_per_step", "prompts_per_step", "steps_per_rollout",
         "total_steps")  # fmt: skip
PLAIN = Setting(
    processes=4, num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=2, steps_per_generation=4,
    evaluates=False, max_steps=400, lr_scheduler_type="constant", beta=0.04, delta=3.0, max_prompt_length=512,
    train_prompts=1000, model_name_or_path="Qwen/Qwen3-0.6B",
)  # fmt: skip


def again(written: TranslatedRecipe, framework: str, prompts: int | None = 1000) -> LintResult:
    """The verdict on what was written."""
    options = Options(framework, train_prompts=prompts)
    return lint_recipe(parse_recipe(Path(written.file_name), written.recipe, options))


@pytest.mark.parametrize("framework", IN_PROMPTS)
def test_a_plain_setting_keeps_its_numbers(framework: str) -> None:
    """4 processes of 8 completions, four micro-steps per rollout, two a step: 16 prompts, and 8 a step."""
    found = again(write_recipe(PLAIN, framework), framework)
    assert found.ok
    sizes = SIZED[:-1] if framework == "openrlhf" else SIZED  # it has no number of steps
    assert {name: found.plan[name] for name in sizes} == {name: plan_numbers(PLAIN)[name] for name in sizes}
    s = found.setting
    assert (s.prompts_per_rollout, s.prompts_per_step, s.beta, s.kl_placement) == (16, 8, 0.04, "loss")
    assert (s.learning_rate, s.temperature, s.epsilon, s.epsilon_high, s.delta) == (1e-6, 1.0, 0.2, 0.2, 3.0)


@settings(derandomize=True, max_examples=examples(150), deadline=None)
@given(
    framework=st.sampled_from(IN_PROMPTS), processes=st.sampled_from([1, 2, 4, 8, 12, 16]),
    group=st.sampled_from([2, 4, 5, 8]), size=st.integers(1, 8), accumulation=st.integers(1, 4), factor=st.integers(1, 3),
    passes=st.integers(1, 2), steps=st.sampled_from([None, 60, 240]), level=st.sampled_from(["token", "sequence"]),
    loss=st.sampled_from(["dapo", "grpo", "bnpo", "dr_grpo", "cispo"]), beta=st.sampled_from([0.0, 0.04]),
)  # fmt: skip
def test_a_plan_is_kept_except_for_the_reported_losses(framework: str, processes: int, group: int, size: int,
    accumulation: int, factor: int, passes: int, steps: int | None, level: str, loss: str, beta: float,
) -> None:  # fmt: skip
    """Over settings that TRL accepts; even if something is lost, the written recipe is valid."""
    s = PLAIN.replace({
        "processes": processes, "num_generations": group, "per_device_train_batch_size": size, "loss_type": loss,
        "gradient_accumulation_steps": accumulation, "steps_per_generation": accumulation * factor, "beta": beta,
        "num_iterations": passes, "max_steps": steps, "epochs": None if steps else 2.0, "importance_sampling_level": level,
    })  # fmt: skip
    assume(processes * size * accumulation * factor % group == 0)
    assume((planning.prompts_per_rollout(s) or 0) <= 1000)
    written = write_recipe(s, framework)
    found = again(written, framework)
    broken = {finding.code for finding in found.diagnostics if finding.severity == "error"}
    sized = [loss for loss in written.losses if "prompts" in loss or "groups" in loss or "optimizer steps" in loss]
    sized = [loss for loss in sized if "no prompt length limit" not in loss]
    if not sized:
        assert {name: found.plan[name] for name in SIZED} == {name: plan_numbers(s)[name] for name in SIZED}
        assert broken <= {"GB308"}  # generation in equal parts is EasyR1's own demand
    for name in ("num_generations", "num_iterations", "learning_rate", "temperature", "beta"):
        assert getattr(found.setting, name) == getattr(s, name)


@pytest.mark.parametrize(("changes", "framework", "words"), [
    ({"num_generations": 16, "per_device_train_batch_size": 3}, "verl", "not whole groups"),
    ({"steps_per_generation": 1, "per_device_train_batch_size": 16}, "easyr1", "steps have"),
    ({"lr_scheduler_type": "linear"}, "verl", "only constant and cosine"),
    ({"sync_ref_model": True}, "easyr1", "sync_ref_model=True: not written for EasyR1"),
    ({"delta": None}, "verl", "cannot be switched off"),
    ({"scale_rewards": "none"}, "easyr1", "always divides by the deviation"),
    ({"loss_type": "dr_grpo"}, "easyr1", "no such loss"),
    ({"kl_placement": "both", "kl_reward_coefficient": 0.1}, "easyr1", "in the loss or in the reward"),
    ({"use_bias_correction_kl": True}, "verl", "low_var_kl+"),
    ({"warmup_steps": 10}, "verl", "changes once per rollout"),
    ({"processes": None}, "easyr1", "number of GPUs is not known"),
    ({"max_steps": 401}, "verl", "401 optimizer steps are 201 rollouts of 2: 1 more"),
])  # fmt: skip
def test_what_is_lost_is_reported(changes: dict[str, Any], framework: str, words: str) -> None:
    """One sentence each."""
    assert any(words in loss for loss in write_recipe(PLAIN.replace(changes), framework).losses)


CHANGES: dict[str, Any] = {
    "delta": 2.0, "epsilon": 0.1, "epsilon_high": 0.4, "importance_sampling_level": "sequence", "loss_type": "dr_grpo",
    "lora": True, "lr_scheduler_type": "cosine", "mask_truncated_completions": True, "max_grad_norm": 0.5, "min_p": 0.1,
    "off_policy_mask_threshold": 2.0, "optim": "adamw_8bit", "repetition_penalty": 1.1, "scale_rewards": "none", "seed": 7,
    "sync_ref_model": True, "temperature": 0.7, "top_entropy_quantile": 0.2, "top_k": 5, "top_p": 0.9,
    "use_bias_correction_kl": True, "use_liger_kernel": True, "vllm_importance_sampling_correction": False,
    "weight_decay": 0.1,
}  # fmt: skip


@pytest.mark.parametrize("option", CHANGES)
@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_an_option_that_differs_is_written_or_named(framework: str, option: str) -> None:
    """In the recipe, or in the list of what is lost."""
    plain, changed = (
        write_recipe(PLAIN.replace({"use_vllm": True, **more}), framework) for more in ({}, {option: CHANGES[option]})
    )
    assert (plain.recipe, plain.losses) != (changed.recipe, changed.losses)


@pytest.mark.parametrize("framework", IN_PROMPTS)
def test_writing_what_was_written_changes_nothing(framework: str, tmp_path: Path) -> None:
    """The first recipe leaves unset values to the framework. From the second one on nothing changes."""
    texts, setting = [], PLAIN
    for _ in range(3):
        written = write_recipe(setting, framework)
        texts.append(written.recipe)
        path = tmp_path / written.file_name
        path.write_text(written.recipe)
        setting = read_recipe(load_recipe(path, Options(framework, train_prompts=1000))).setting
    assert texts[1] == texts[2]


def test_verl_s_command_finds_the_configuration_next_to_it() -> None:
    """Hydra's own options; the recipe names verl's defaults."""
    written = write_recipe(PLAIN, "verl")
    assert written.command[-4:] == ("--config-dir", ".", "--config-name", "recipe")
    assert yaml.safe_load(written.recipe)["defaults"] == ["ppo_trainer", "_self_"]
