"""Known defects of releases: each is told at the first and the last release that has it, not at the
one that mends it, and not of a recipe that does not meet it.
"""

from dataclasses import replace
from typing import Any

import pytest

from grporecipe.linting.linter import lint_recipe
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.setting import Version
from grporecipe.project.versions import releases_of
from grporecipe.reading.load import Options, build_recipe
from grporecipe.rules.defects import Defect, load_defects

COLOCATED = {"use_vllm": True, "vllm_mode": "colocate"}
SLEEPING = {**COLOCATED, "vllm_enable_sleep_mode": True}
ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
# keys that meet a defect; the change of these that does not
CASES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "scale_rewards is inverted": ({}, None),
    "rollouts of the base model": (SLEEPING, {"vllm_mode": "server"}),
    "second generations of the base model": (SLEEPING, {"vllm_enable_sleep_mode": False}),
    "rewards are logged without weights": (
        {"reward_weights": [1.0, 0.2]},
        {"reward_weights": None},
    ),
    "truncated completions count in the divisor": (
        {"mask_truncated_completions": True, "loss_type": "dapo"},
        {"loss_type": "dr_grpo"},
    ),
    "truncated completions count in the divisor of cispo": (
        {"mask_truncated_completions": True, "loss_type": "cispo"},
        {"mask_truncated_completions": False},
    ),
    "colocated vLLM takes a fixed port": (COLOCATED, {"vllm_mode": "server"}),
    "log-probabilities without the temperature": ({}, {"temperature": 1.0}),
    "vLLM answers the whole prompt": ({"use_vllm": True}, {"max_prompt_length": None}),
    "vLLM gets prompts without special tokens": ({"use_vllm": True}, {"max_prompt_length": None}),
    "importance ratios without the temperature": (
        {**COLOCATED, "temperature": 0.7},
        {"temperature": 1.0},
    ),
    "the correction is not in the Liger loss": (
        {**COLOCATED, "use_liger_loss": True},
        {"vllm_importance_sampling_correction": False},
    ),
    "the KL correction is not in the Liger loss": (
        {"use_liger_kernel": True, "use_bias_correction_kl": True, "beta": 0.04},
        {"beta": 0.0},
    ),
    "evaluations take the rewards of a step from the log": (
        {"eval_strategy": "steps", "eval_steps": 10, "logging_steps": 10},
        {"eval_steps": 15},
    ),
    "Megatron's log-probabilities without the temperature": (
        {f"{ACTOR}.strategy": "megatron", f"{ROLLOUT}.temperature": 0.7},
        {f"{ACTOR}.strategy": "fsdp"},
    ),
    "the rollout engine keeps the first weights": (
        {f"{ROLLOUT}.mode": "async", f"{ROLLOUT}.free_cache_engine": False},
        {f"{ROLLOUT}.mode": "sync"},
    ),
    "merged adapters have no effect": ({f"{MODEL}.lora_rank": 32}, {f"{MODEL}.lora_rank": 0}),
    "the transformer gets no gradient": (
        {f"{MODEL}.use_liger": True, f"{MODEL}.use_fused_kernels": True},
        {f"{MODEL}.use_liger": False},
    ),
    "estimators with a plus are not implemented": (
        {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "low_var_kl+"},
        {f"{ACTOR}.kl_loss_type": "low_var_kl"},
    ),
    "the logged KL is the last micro-batch's": (
        {f"{ACTOR}.use_kl_loss": True},
        {f"{ACTOR}.use_kl_loss": False},
    ),
    "Megatron's rate decays to 0": (
        {f"{ACTOR}.strategy": "megatron"},
        {f"{ACTOR}.optim.lr_decay_style": "constant"},
    ),
    "the cosine reward counts characters": (
        {"reward_funcs": ["accuracy", "cosine"]},
        {"reward_funcs": ["accuracy"]},
    ),
    "truncated answers end with a token that was not sampled": ({}, {"overlong_filter": True}),
    "half of each rollout is not trained": (
        {"gradient_accumulation_steps": 8},
        {"gradient_accumulation_steps": 1},
    ),
    "micro-batches count alike": (
        {"worker.actor.loss_avg_mode": "token"},
        {"worker.actor.loss_avg_mode": "seq"},
    ),
    "the first update has no rate": ({}, {"worker.actor.optim.lr_warmup_steps": 5}),
}


def told(defect: Defect, keys: dict[str, Any], version: Version) -> bool:
    """Whether lint tells a defect of keys at a stated release."""
    options = Options(framework=defect.framework)
    base = {"rlhf_type": "grpo"} if defect.framework == "ms-swift" else {}
    recipe = replace(build_recipe({**base, **keys}, options), version=version)
    problems = lint_recipe(recipe).diagnostics
    return any(problem.code == "GV120" and defect.effect in problem.message for problem in problems)


def known(defect: Defect) -> list[Version]:
    """The releases of a defect's framework that lint knows."""
    return list(releases_of(FRAMEWORKS[defect.framework]))


@pytest.mark.parametrize("defect", load_defects(), ids=lambda defect: defect.name)
def test_a_defect_is_told_where_a_recipe_meets_it(defect: Defect) -> None:
    """At its first and last release; not at the next one, and not of the counterpart."""
    keys, change = CASES[defect.name]
    having = [release for release in known(defect) if defect.first <= release <= defect.last]
    after = [release for release in known(defect) if release > defect.last]
    assert told(defect, keys, having[0])
    assert told(defect, keys, having[-1])
    assert not any(told(defect, keys, release) for release in after[:1])
    if change is not None:
        assert not told(defect, {**keys, **change}, having[-1])


def test_a_defect_is_not_told_of_a_release_that_nobody_states() -> None:
    """A release that is only assumed may not be the one that trains."""
    recipe = build_recipe({"temperature": 0.6, "max_prompt_length": 64}, Options())
    assert not [p for p in lint_recipe(recipe).diagnostics if p.code == "GV120"]
