"""Rates: the rules on the learning rate read one function, so they never contradict each other."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grporecipe.files import Json
from grporecipe.linting.linter import lint_recipe
from grporecipe.model.architecture import Architecture
from grporecipe.model.rates import rates_for
from grporecipe.model.setting import Runtime, Setting
from grporecipe.reading.load import Options, build_recipe
from grporecipe.rules.check import check
from support import examples

TOO_HIGH = {"GA202"}
TOO_LOW = {"GA203", "GA206"}
SHAPES = [
    None,
    *(
        Architecture(32, width, 4 * width, 32, 8, 128, 32_000, True, kind)
        for width in (896, 8192)
        for kind in ("qwen2", "llama", "mistral")
    ),
]
SETTINGS = st.fixed_dictionaries(
    {
        "learning_rate": st.floats(-8, -2.1).map(lambda decades: float(10**decades)),
        "parameters": st.sampled_from(
            [None, 500_000_000, 1_500_000_000, 7_000_000_000, 70_000_000_000]
        ),
        "lora": st.booleans(),
        "lora_alpha": st.sampled_from([1.0, 16.0, 32.0, 256.0]),
        "weights_dtype": st.sampled_from(["float32", "bfloat16"]),
        "architecture": st.sampled_from(SHAPES),
        "sharding": st.sampled_from(["none", "fsdp", "zero3"]),
        "runtime": st.sampled_from([Runtime(), Runtime(upcasts=False)]),
        "processes": st.sampled_from([1, 8]),
        "given": st.sampled_from([frozenset(), frozenset({"learning_rate"})]),
        "per_device_train_batch_size": st.sampled_from([8, 64]),
    }
)


def told(s: Setting) -> set[str]:
    """The rules that speak of the rate."""
    return {problem.code for problem in check(s, select=(*TOO_HIGH, *TOO_LOW))}


@settings(max_examples=examples(300))
@given(SETTINGS)
def test_rules_on_the_rate_never_contradict_each_other(fields: dict[str, Any]) -> None:
    """No rate is too high and too low at once, and what is advised or usual is neither too high."""
    s = Setting(**fields)
    codes = told(s)
    assert not (codes & TOO_HIGH and codes & TOO_LOW)
    rates = rates_for(s)
    assert told(s.replace({"learning_rate": rates.advised})) <= {"GA203"} - codes
    assert "GA202" not in told(s.replace({"learning_rate": rates.usual}))


BASE = {
    "model_name_or_path": "Qwen/Qwen2.5-1.5B",
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 8,
    "warmup_steps": 0.1,
    "num_processes": 1,
}


@pytest.mark.parametrize(
    ("rate", "dtype", "code"),
    [
        (3e-5, "bfloat16", ""),
        (1e-4, "bfloat16", "GA202"),
        (5e-6, "bfloat16", "GA206"),
        (3e-5, "float32", "GA202"),
        (5e-6, "float32", ""),
    ],
)
def test_the_type_of_the_weights_decides_without_a_gpu(rate: float, dtype: str, code: str) -> None:
    """The best rate of public sweeps with bfloat16 weights, 3e-5, makes float32 weights diverge."""
    found = lint_recipe(
        build_recipe({**BASE, "learning_rate": rate, "dtype": dtype}, Options("trl"))
    ).diagnostics
    assert {each.code for each in found} & (TOO_HIGH | TOO_LOW) == ({code} if code else set())


@pytest.mark.parametrize(
    ("framework", "config"),
    [
        (
            "ms-swift",
            {
                "rlhf_type": "grpo",
                "torch_dtype": "bfloat16",
                "tuner_type": "full",
                "model": "Qwen/Qwen2.5-1.5B",
                "learning_rate": 1e-6,
            },
        ),
        (
            "verl",
            {
                "actor_rollout_ref.actor.fsdp_config.model_dtype": "bf16",
                "actor_rollout_ref.actor.optim.lr": 1e-6,
            },
        ),
    ],
)
def test_other_frameworks_round_updates_away_too(framework: str, config: Json) -> None:
    """ms-swift without DeepSpeed, and verl, whose FSDP steps shards of the model's type."""
    found = lint_recipe(build_recipe(config, Options(framework, processes=1))).diagnostics
    assert "GA206" in {each.code for each in found}
