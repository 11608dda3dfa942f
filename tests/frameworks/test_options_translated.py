"""Options of the loss and of sampling are kept if the other framework has them, and reported as lost if not."""

from typing import Any

import pytest
import yaml

from grporecipe.fields.recipes import read_recipe
from grporecipe.model.setting import Setting
from grporecipe.model.values import flatten
from grporecipe.reading.load import Options, build_recipe
from grporecipe.translate import translate
from grposweep.config.from_setting import translate_own

BASE = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "max_steps": 10, "per_device_train_batch_size": 8}
SAPO = {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0}
SAMPLING = {"min_p": 0.05, "repetition_penalty": 1.1, "generation_kwargs": {"min_new_tokens": 4}}
ACTOR = "actor_rollout_ref.actor"
# Framework: what is set, what its recipe has, what is lost.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "open-r1": (SAMPLING, {"min_p": 0.05, "repetition_penalty": 1.1}, ["generation_kwargs="]),
    "ms-swift": (
        {**SAPO, **SAMPLING, "top_entropy_quantile": 0.2, "off_policy_mask_threshold": 0.5, "entropy_coef": 0.01},
        {"tau_pos": 2.0, "tau_neg": 3.0, "min_p": 0.05, "repetition_penalty": 1.1, "top_entropy_quantile": 0.2,
         "off_policy_sequence_mask_delta": 0.5},
        ["entropy_coef=0.01", "generation_kwargs="],
    ),
    "verl": (
        {**SAPO, **SAMPLING, "entropy_coef": 0.01, "multi_objective_aggregation": "normalize_then_sum"},
        {f"{ACTOR}.entropy_coeff": 0.01, f"{ACTOR}.tau_pos": 2.0, f"{ACTOR}.tau_neg": 3.0},
        ["min_p=0.05", "repetition_penalty=1.1", "generation_kwargs=", "multi_objective_aggregation=normalize_then_sum"],
    ),
    "easyr1": (
        {**SAPO, "entropy_coef": 0.01, "use_vllm": True, "vllm_importance_sampling_mode": "token_mask"},
        {"worker.actor.tau_positive": 2.0, "worker.actor.tau_negative": 3.0},
        ["entropy_coef=0.01", "vllm_importance_sampling_mode=token_mask"],
    ),
}  # fmt: skip


def read(config: dict[str, Any]) -> Setting:
    """A recipe of TRL as a setting."""
    return read_recipe(build_recipe({**BASE, **config}, Options("trl", processes=8))).setting


@pytest.mark.parametrize("target", CASES)
def test_options_are_kept_or_reported_as_lost(target: str) -> None:
    """By the target's own key, with the same value."""
    config, kept, lost = CASES[target]
    done = translate(read(config), target)
    written = flatten(yaml.safe_load(next(iter(done.files.values()))))
    assert {key: written.get(key) for key in kept} == kept
    for option in lost:
        assert any(loss.startswith(option) for loss in done.losses), (option, done.losses)


@pytest.mark.parametrize("target", [name for name in CASES if name != "open-r1"])
def test_what_is_not_set_is_neither_written_nor_lost(target: str) -> None:
    """A default that is the same everywhere needs no word."""
    plain = translate(read({}), target)
    assert not [loss for loss in plain.losses if any(name in loss for name in ("entropy", "min_p", "sapo", "penalty="))]
    assert not [key for key in flatten(yaml.safe_load(plain.files["recipe.yaml"])) if "tau" in key or "entropy" in key]


def test_the_correction_and_the_sleep_of_vllm_are_kept_by_ms_swift() -> None:
    """Its bound has a key of its own, and sleep has levels."""
    vllm = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_enable_sleep_mode": True,
        "vllm_importance_sampling_clip_max": 2.5,
    }
    done = translate(read(vllm), "ms-swift")
    written = yaml.safe_load(done.files["recipe.yaml"])
    assert (written["rollout_importance_sampling_threshold"], written["sleep_level"]) == (2.5, 1)
    assert not [loss for loss in done.losses if loss.startswith("vllm_")]


def test_our_own_groups_get_them_all() -> None:
    """A key that has no home here becomes one of ``trainer.args``; a null bound stays one."""
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_importance_sampling_clip_max": None}
    done = translate_own(read({**SAPO, **SAMPLING, **vllm, "entropy_coef": 0.01, "use_liger_kernel": True}))
    groups = {name: yaml.safe_load(text) for name, text in done.files.items()}
    assert groups["loss/translated.yaml"]["loss_type"] == "sapo"
    generation = groups["generation/translated.yaml"]
    assert (generation["min_p"], generation["generation_kwargs"]) == (0.05, {"min_new_tokens": 4})
    assert groups["sweeps/translated.yaml"]["trainer"]["args"] == {
        "entropy_coef": 0.01, "sapo_temperature_neg": 3.0, "sapo_temperature_pos": 2.0, "use_liger_kernel": True,
        "vllm_importance_sampling_clip_max": None,
    }  # fmt: skip
    assert not [loss for loss in done.losses if "has no key" in loss]


@pytest.mark.parametrize(("name", "config", "lost"), [
    ("verl", {"actor_rollout_ref.rollout.max_num_batched_tokens": 4096}, "max_batched_tokens=4096"),
    ("openrlhf", {"actor.min_lr_ratio": 0.2}, "minimum_learning_rate_ratio=0.2"),
    ("ms-swift", {"rlhf_type": "grpo", "torch_dtype": "float16"}, "torch_dtype=float16"),
    ("trl", {"num_generations": 8}, "gradient_checkpointing=true"),
])  # fmt: skip
def test_what_our_own_groups_do_not_hold_is_listed(name: str, config: dict[str, Any], lost: str) -> None:
    """By the field or its key."""
    recipe = build_recipe(config, Options(name, processes=8))
    assert lost in " ".join(translate_own(read_recipe(recipe).setting, "grposweep", recipe).losses)


def test_our_own_groups_have_checkpointing_and_sharding() -> None:
    """As the recipe says."""
    recipe = build_recipe({"actor.gradient_checkpointing_enable": True, "ds.zero_stage": 3}, Options("openrlhf"))
    done = translate_own(read_recipe(recipe).setting, "grposweep", recipe)
    study = yaml.safe_load(done.files["sweeps/translated.yaml"])
    assert (study["model"]["gradient_checkpointing"], study["trainer"]["sharding"]) == (True, "zero3")
