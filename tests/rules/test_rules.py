"""Every rule fires on a bad setting and is silent on a good one, reads the fields that it declares,
and names the user's keys.
"""

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings

from drawn import NAMES, draw_settings
from grporecipe.model.architecture import Architecture
from grporecipe.model.setting import TRL_FRAMEWORK, Runtime, Setting
from grporecipe.rules import registry as registry_module
from grporecipe.rules.check import REGISTRY, Problem, check, errors
from grporecipe.rules.fixes import find_fixes, render_problem
from grposweep.config.fields import KEYS
from support import examples

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
KL: dict[str, Any] = {"kl_enabled": True, "beta": 0.04}
SYNCED = KL | {"sync_ref_model": True, "ref_model_sync_steps": 16}

V14, V16, V17, V18, V19, V20, V26 = (
    # the one loss that all of them have
    {"version": version, "loss_type": "grpo"}
    for version in [
        (0, 14, 0),
        (0, 16, 1),
        (0, 17, 0),
        (0, 18, 0),
        (0, 19, 1),
        (0, 20, 0),
        (0, 26, 0),
    ]
)
RECIPE: dict[str, Any] = {"given": frozenset({"learning_rate"}), "gradient_accumulation_steps": 3}
LARGE: dict[str, Any] = {"parameters": 7_000_000_000, "learning_rate": 3e-6}
SMALL: dict[str, Any] = {"parameters": 1_500_000_000}
VLLM: dict[str, Any] = {"use_vllm": True}
# the last release whose ratio is that of truncated probabilities
BIASED = VLLM | {"version": (1, 16, 0)}
LONG: dict[str, Any] = VLLM | {"max_completion_length": 4096}
GSPO: dict[str, Any] = {
    "importance_sampling_level": "sequence",
    "loss_type": "grpo",
    "num_iterations": 2,
}
TINY = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 3}
BEST: dict[str, Any] = {
    "load_best_model_at_end": True,
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "eval_steps": 50,
    "save_steps": 100,
}


# Qwen2.5-0.5B
QWEN = Architecture(24, 896, 4864, 14, 2, 64, 151_936, True, "qwen2", 494_032_768)
ON_GPU: dict[str, Any] = {
    "architecture": QWEN,
    "weights_dtype": "bfloat16",
    "gpu_memory_gib": 24.0,
    "lora": True,
}
SHARED_GPU: dict[str, Any] = (
    ON_GPU
    | VLLM
    | {
        "vllm_gpu_memory_utilization": 0.1,
        "prompt_tokens": 128,
        "gradient_checkpointing": True,
    }
)
SPLIT = SHARED_GPU | {"processes": 4}
SERVED: dict[str, Any] = VLLM | {"vllm_mode": "server", "server_gpus": 2, "architecture": QWEN}
LOADED: dict[str, Any] = {
    "sharding": "fsdp",
    "processes": 8,
    "architecture": QWEN,
    "host_memory_gib": 15,
}
LORA: dict[str, Any] = {"lora": True, "learning_rate": 1e-4, "warmup_steps": 0.1}
HALF: dict[str, Any] = LARGE | {"weights_dtype": "bfloat16"}


def told(**fields: Any) -> dict[str, Any]:
    """Fields that a user set in a recipe."""
    return fields | {"given": frozenset(fields)}


# by 0.15 in the trainer
PLACELESS = {"use_vllm": True, "vllm_mode": "server"} | told(vllm_gpu_memory_utilization=0.7)

# code, what breaks it over GOOD, a neighbour that does not
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("GB101", {"num_generations": 7, "num_generations_eval": 8}, {"num_generations": 16}),
    (
        "GB101",
        {"steps_per_generation": 1, "per_device_train_batch_size": 4},
        {"per_device_train_batch_size": 4},
    ),
    ("GB101", {**V16, "per_device_train_batch_size": 4}, {**V17, "per_device_train_batch_size": 4}),
    ("GB101", {**V17, "num_generations": 7}, {**V14, "num_generations": 7}),
    (
        "GB101",
        {"generation_batch_size": 32, "num_generations": 5, "num_generations_eval": 8},
        {"generation_batch_size": 32},
    ),
    ("GB102", {"num_generations": 1}, {"num_generations": 2}),
    ("GB102", {"num_generations": 0, "num_generations_eval": 8}, {"num_generations": 4}),
    ("GB103", {"processes": 0}, {"processes": 2}),
    ("GB103", {"per_device_train_batch_size": -8}, {"per_device_train_batch_size": 8}),
    ("GB103", {"gradient_accumulation_steps": 0}, {"gradient_accumulation_steps": 1}),
    ("GB103", {"steps_per_generation": 0}, {"steps_per_generation": 4}),
    ("GB103", {"num_iterations": 0}, {"num_iterations": 2}),
    ("GB103", {"max_completion_length": 0}, {"max_completion_length": 1}),
    ("GB104", {"prompts_per_step": 9}, {"prompts_per_step": 8}),
    (
        "GB105",
        {"auto": {"per_device_train_batch_size"}, "unsolved": {"per_device_train_batch_size"}},
        {},
    ),
    (
        "GB105",
        {"unsolved": {"gradient_accumulation_steps"}, "prompts_per_step": 3, "processes": 5},
        {},
    ),
    ("GB106", {"generation_batch_size": 48}, {"generation_batch_size": 64}),
    ("GB106", {"generation_batch_size": 48, **V18}, {"generation_batch_size": 48, **V17}),
    (
        "GB107",
        {"generation_batch_size": 64, "steps_per_generation": 2},
        {"steps_per_generation": 2},
    ),
    ("GB108", {"auto_find_batch_size": True}, {"auto_find_batch_size": True, "version": (1, 8, 0)}),
    ("GB109", {"split_batches": True}, {}),
    (
        "GB110",
        {"generation_batch_size": 32, "processes": 2, **V18},
        {"generation_batch_size": 64, **V18},
    ),
    (
        "GB201",
        {"generation_batch_size": 96, "processes": 2, **V18},
        {"generation_batch_size": 64, **V18},
    ),
    ("GB202", {"auto_find_batch_size": True, "version": (1, 8, 0)}, {"version": (1, 8, 0)}),
    (
        "GE101",
        {"per_device_eval_batch_size": 12},
        {"per_device_eval_batch_size": 12, "evaluates": False},
    ),
    ("GE101", {"num_generations_eval": 5}, {"num_generations_eval": 4}),
    ("GE101", {"per_device_eval_batch_size": 12, **V19}, {"num_generations_eval": 5, **V19}),
    ("GE102", {"per_device_eval_batch_size": 0}, {"per_device_eval_batch_size": 8}),
    ("GE102", {"eval_prompts": 0}, {"eval_prompts": 0, "evaluates": False}),
    ("GE103", {"per_device_eval_batch_size": 12, **V20}, V20),
    ("GE103", {"num_generations_eval": 5, **V26}, {"num_generations_eval": 4, **V26}),
    ("GE201", {"dataloader_drop_last": True, "eval_prompts": 5}, {"dataloader_drop_last": True}),
    ("GE203", {"parameters": 10**9, "evaluations": 10}, {"parameters": 10**9, "evaluations": 6}),
    ("GE203", {"parameters": 10**9, "evaluations": 6, "eval_at_start": True}, {"evaluations": 10}),
    (
        "GE202",
        {"do_eval": True, "evaluates": False, "per_device_eval_batch_size": 3},
        {"do_eval": True, "evaluates": False},
    ),
    ("GK101", {"beta": 0.04}, KL),
    ("GK102", {"kl_enabled": True}, {"kl_enabled": None}),
    ("GK103", {"sync_ref_model": True}, SYNCED),
    ("GK104", SYNCED | {"lora": True}, KL | {"lora": True}),
    ("GK105", SYNCED | {"ref_model_sync_steps": 0}, SYNCED | {"ref_model_sync_steps": 2}),
    ("GK105", SYNCED | {"ref_model_mixup_alpha": 1.5}, SYNCED | {"ref_model_mixup_alpha": 1.0}),
    ("GK106", {"kl_enabled": True, "beta": -0.1}, KL),
    ("GK201", SYNCED | {"ref_model_sync_steps": 101}, SYNCED | {"ref_model_sync_steps": 100}),
    (
        "GK202",
        SYNCED | {"ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0},
        SYNCED | {"ref_model_sync_steps": 1},
    ),
    ("GK203", KL | RECIPE | V18, KL | told(beta=0.04) | V18),
    ("GK204", KL | RECIPE, KL | told(use_bias_correction_kl=True)),
    ("GK205", told(ref_model_sync_steps=64), SYNCED | told(ref_model_sync_steps=64)),
    ("GK206", told(use_bias_correction_kl=True), KL | told(use_bias_correction_kl=True)),
    ("GK207", {"sync_ref_model": True, **V18}, SYNCED | V18),
    ("GK207", SYNCED | {"lora": True, **V18}, KL | {"lora": True, **V18}),
    ("GK208", {**V16, "version": (0, 15, 2)}, V16),
    ("GL101", {"loss_type": "ppo"}, {"loss_type": "dr_grpo"}),
    ("GL101", V18 | {"loss_type": "dapo"}, V18 | {"loss_type": "bnpo"}),
    ("GL102", {"scale_rewards": "std"}, {"scale_rewards": "none"}),
    ("GL102", {"scale_rewards": "batch", **V18}, {"scale_rewards": "batch"}),
    ("GL103", {"importance_sampling_level": "word"}, {"importance_sampling_level": "sequence"}),
    ("GL104", {"temperature": 0.0}, {"temperature": 0.1}),
    (
        "GL105",
        {"multi_objective_aggregation": "x"},
        {"multi_objective_aggregation": "normalize_then_sum"},
    ),
    ("GL106", {"rewards": 2, "reward_weights": 1}, {"rewards": 2, "reward_weights": 2}),
    ("GL107", VLLM | {"loss_type": "vespo"}, {"loss_type": "vespo"}),
    (
        "GL108",
        VLLM | {"vllm_importance_sampling_mode": "x"},
        {"vllm_importance_sampling_mode": "x"},
    ),
    (
        "GL109",
        {"vllm_importance_sampling_clip_min": 3.0},
        {"vllm_importance_sampling_clip_min": 2.5},
    ),
    (
        "GL110",
        {
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": None,
        },
        {"vllm_importance_sampling_mode": "token_truncate"},
    ),
    (
        "GL111",
        {"use_liger_kernel": True, "delta": 4.0, "version": (1, 0, 0)},
        {"use_liger_kernel": True, "delta": 4.0},
    ),
    ("GL112", {"epsilon_high": -0.2}, {"epsilon_high": 0.28}),
    (
        "GL113",
        {"top_p": 1.5},
        {"top_p": 1.0, "min_p": 0.0, "top_k": 0, "repetition_penalty": 1.1, "weight_decay": 0.0},
    ),
    ("GL113", {"vllm_gpu_memory_utilization": 30.0}, {"vllm_gpu_memory_utilization": 0.3}),
    ("GL201", {"loss_type": "cispo"}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    (
        "GL201",
        {"loss_type": "cispo", "epsilon_high": 0.28},
        {"loss_type": "cispo", "epsilon_high": 1.0},
    ),
    ("GL202", {"delta": 0.5}, {"delta": 0.5, "loss_type": "sapo"}),
    ("GL203", {"delta": 1.1}, {"delta": 1.2}),
    ("GL204", told(loss_type="sapo", epsilon=0.2), told(loss_type="dapo") | {"epsilon": 0.2}),
    (
        "GL204",
        told(loss_type="cispo", epsilon_high=5.0, delta=2.0),
        told(loss_type="cispo", epsilon_high=5.0),
    ),
    ("GL205", told(epsilon=0.1), told(epsilon=0.1, num_iterations=2)),
    ("GL205", told(epsilon_high=0.28), told(epsilon=0.2, epsilon_high=0.2)),
    (
        "GL206",
        {"importance_sampling_level": "sequence"},
        {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    ),
    ("GL208", GSPO, GSPO | {"epsilon": 3e-4, "epsilon_high": 4e-4}),
    # the ratio is always 1
    ("GL208", GSPO, GSPO | {"num_iterations": 1}),
    (
        "GL209",
        {"num_iterations": 2, "epsilon_high": 5.0},
        {"num_iterations": 2, "epsilon_high": 0.28},
    ),
    ("GL209", {"num_iterations": 2, "epsilon": 1.0}, {"epsilon": 1.0}),
    (
        "GL209",
        {"num_iterations": 2, "epsilon_high": 5.0},
        {"num_iterations": 2, "epsilon_high": 5.0, "loss_type": "cispo"},
    ),
    (
        "GL209",
        {"num_iterations": 2, "epsilon_high": 5.0},
        {"num_iterations": 2, "epsilon_high": 5.0, "delta": 8.0},
    ),
    ("GL210", BIASED | {"top_p": 0.95}, BIASED | {"top_p": 1.0, "top_k": 0}),
    (
        "GL210",
        BIASED | {"top_k": 50},
        BIASED | {"top_k": 50, "vllm_importance_sampling_correction": False},
    ),
    ("GL210", BIASED | {"min_p": 0.1}, {"min_p": 0.1}),
    ("GL210", BIASED | {"top_p": 0.95}, BIASED | {"top_p": 0.95, "version": (1, 17, 0)}),
    ("GL210", BIASED | {"top_p": 0.95}, BIASED | {"top_p": 0.95, "version": (0, 23, 1)}),
    ("GL211", VLLM | {"max_completion_length": 2200}, VLLM | {"max_completion_length": 2100}),
    ("GL211", LONG, LONG | {"vllm_importance_sampling_mode": "token_truncate"}),
    ("GL211", LONG, LONG | {"vllm_importance_sampling_clip_max": None}),
    (
        "GL207",
        {"loss_type": "luspo"},
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    ),
    ("GS101", {"epochs": 1.0}, {"epochs": 1.0, "max_steps": None}),
    ("GS101", {"max_steps": None}, {"max_steps": None, "budget_completions": 6400}),
    ("GS102", {"max_steps": 0}, {"max_steps": 1}),
    ("GS102", {"max_steps": None, "epochs": -1.0}, {"max_steps": None, "epochs": 0.5}),
    (
        "GS204",
        LARGE | {"max_steps": None, "budget_completions": 6399},
        LARGE | {"max_steps": None, "budget_completions": 6400},
    ),
    (
        "GS103",
        {"max_steps": None, "budget_completions": 63},
        {"max_steps": None, "budget_completions": 64},
    ),
    ("GS104", {"train_prompts": 7}, {"train_prompts": 8}),
    ("GS105", {"learning_rate": 0.0}, told(learning_rate=0.0)),
    ("GS207", told(learning_rate=0.0), told(learning_rate=1e-9)),
    ("GS105", {"learning_rate": -1e-3}, {"learning_rate": 1e-3}),
    ("GS105", {"warmup_steps": -1.0}, {"warmup_steps": 0.05}),
    ("GS106", {"lr_scheduler_type": "greedy", "evaluates": False}, {"lr_scheduler_type": "greedy"}),
    ("GS201", {"steps_per_generation": 3}, {"steps_per_generation": 4}),
    ("GS202", {"warmup_steps": 100.0}, {"warmup_steps": 99.0}),
    ("GS203", told(max_steps=100, epochs=3.0), told(max_steps=100) | {"epochs": 3.0}),
    ("GD201", {"train_prompts": 15}, {"train_prompts": 16}),
    ("GD201", {"train_prompts": 85}, {"train_prompts": 167}),
    (
        "GD202",
        {"chat": False, "has_chat_template": True},
        {"chat": True, "has_chat_template": True},
    ),
    (
        "GC101",
        {"log_completions_hub_repo": "me/log"},
        {"log_completions_hub_repo": "me/log", "log_completions": True},
    ),
    ("GC102", BEST | {"save_strategy": "epoch"}, BEST | {"save_strategy": "best"}),
    ("GC102", BEST | {"save_steps": 75}, BEST),
    (
        "GC201",
        {"save_steps": 3, "steps_per_generation": 4},
        {"save_steps": 4, "steps_per_generation": 4},
    ),
    ("GT101", {"context_parallel_size": 2}, {}),
    ("GT101", {"sequence_parallel_size": 2}, {}),
    ("GT102", {"tensor_parallel_size": 2}, {}),
    (
        "GT103",
        VLLM | {"processes": 4, "vllm_tensor_parallel_size": 3},
        VLLM | {"processes": 4, "vllm_tensor_parallel_size": 2},
    ),
    ("GT104", VLLM | {"vllm_mode": "nearby"}, {"vllm_mode": "nearby"}),
    (
        "GT105",
        {"visible_gpus": 8, "launcher": "python"},
        {"visible_gpus": 8, "launcher": "torchrun"},
    ),
    (
        "GT204",
        {"visible_gpus": 8, "launcher": "python", **V20},
        {"visible_gpus": 8, "launcher": "torchrun", **V20},
    ),
    (
        "GT106",
        {"server_gpus": 4, "nodes": 2, "gpus_per_node": 8},
        {"server_gpus": 8, "nodes": 2, "gpus_per_node": 8},
    ),
    ("GT201", {"processes": None, "num_generations": 24}, {"processes": None}),
    ("GT107", VLLM | told(lora=True, vllm_mode="server"), VLLM | told(lora=True)),
    # ours copies
    (
        "GT107",
        VLLM | told(lora=True, vllm_mode="server"),
        VLLM | {"lora": True, "vllm_mode": "server"},
    ),
    (
        "GT107",
        VLLM | told(lora=True, vllm_mode="server"),
        VLLM | told(lora=True, vllm_mode="server") | {"version": (1, 10, 0)},
    ),
    (
        "GT103",
        VLLM | {"processes": 3, "vllm_tensor_parallel_size": 2},
        VLLM | {"processes": 3, "vllm_tensor_parallel_size": 1},
    ),
    (
        "GT108",
        SERVED | {"server_gpus": 1, "vllm_tensor_parallel_size": 4},
        SERVED | {"server_gpus": 1},
    ),
    ("GT108", SPLIT | {"vllm_tensor_parallel_size": 4}, SPLIT | {"vllm_tensor_parallel_size": 2}),
    ("GT109", SERVED, SERVED | {"server_gpus": 2, "vllm_tensor_parallel_size": 2}),
    ("GT109", SERVED, SERVED | {"server_command": "serve"}),
    ("GT202", V16 | PLACELESS, {"version": (0, 15, 2)} | PLACELESS),
    (
        "GT202",
        VLLM | told(vllm_server_host="x"),
        VLLM | told(vllm_server_host="x") | {"vllm_mode": "server"},
    ),
    (
        "GT203",
        {"launcher": "trl", "processes": 8, **TINY, "num_generations": 64},
        {"launcher": "trl", "processes": 8},
    ),
    (
        "GM101",
        ON_GPU | {"lora": False, "max_completion_length": 1024},
        ON_GPU | {"gradient_checkpointing": True},
    ),
    ("GM101", ON_GPU | {"lora": False, "gpu_memory_gib": 4.0}, ON_GPU | {"architecture": None}),
    ("GM102", SHARED_GPU | {"vllm_max_model_length": 65_536}, SHARED_GPU),
    (
        "GM102",
        SHARED_GPU | {"vllm_gpu_memory_utilization": 0.05},
        SHARED_GPU | {"vllm_mode": "server"},
    ),
    (
        "GM206",
        {
            "architecture": QWEN,
            "processes": 8,
            "sharding": "zero2",
            "host_memory_gib": 4,
            "runtime": Runtime(offloads=frozenset({"optimizer"}), computes_offloaded=True),
        },
        {
            "architecture": QWEN,
            "processes": 8,
            "sharding": "zero2",
            "host_memory_gib": 64,
            "runtime": Runtime(offloads=frozenset({"optimizer"}), computes_offloaded=True),
        },
    ),
    (
        "GM201",
        ON_GPU | {"prompt_tokens": 128, "gpu_memory_gib": 21.0},
        ON_GPU | {"prompt_tokens": 128, "gpu_memory_gib": 30.0},
    ),
    ("GM202", {"sharding": "fsdp"}, {"sharding": "fsdp", "processes": 2}),
    ("GM204", LOADED | {"host_memory_gib": 14}, LOADED | {"host_memory_gib": 15}),
    (
        "GM204",
        LOADED | {"host_memory_gib": 14},
        LOADED | {"host_memory_gib": 14, "loads_on_every_rank": False},
    ),
    (
        "GM204",
        LOADED | {"host_memory_gib": 20, "loads_on_every_rank": None, "beta": 0.04},
        LOADED | {"host_memory_gib": 14, "loads_on_every_rank": None, "beta": 0.0},
    ),
    ("GM205", {"gpu": "Tesla V100", "weights_dtype": "bfloat16"}, {"gpu": "Tesla V100"}),
    (
        "GM205",
        {"gpu": "T4", "autocast_dtype": "bfloat16"},
        {"gpu": "A100", "autocast_dtype": "bfloat16"},
    ),
    ("GA201", RECIPE | TINY | {"gradient_accumulation_steps": 2}, RECIPE | TINY),
    (
        "GA202",
        LARGE | {"learning_rate": 1e-4},
        LARGE | {"learning_rate": 1e-4, "lora": True, "warmup_steps": 0.1},
    ),
    (
        "GA202",
        LARGE | LORA | {"lora_alpha": 256.0},
        LARGE | LORA | {"lora_alpha": 32.0, "lora_rank": 1},
    ),
    ("GA203", LARGE | {"learning_rate": 1e-6}, LARGE),
    ("GA203", SMALL | {"learning_rate": 2e-7}, SMALL | {"learning_rate": 1e-6}),
    (
        "GA203",
        LARGE | {"learning_rate": 1e-6, "lora": True},
        LARGE | {"learning_rate": 1e-5, "lora": True},
    ),
    ("GS107", {"learning_rate": 1e5}, {"learning_rate": 1e-5}),
    ("GS206", {"learning_rate": 0.5}, {"learning_rate": 1e-3}),
    (
        "GL213",
        VLLM | told(vllm_max_model_length=256, max_completion_length=256) | {"use_vllm": True},
        told(vllm_max_model_length=1024, max_completion_length=256, use_vllm=True),
    ),
    ("GA205", {"sharding": "fsdp", "processes": 2}, {"sharding": "fsdp", "processes": 2} | VLLM),
    ("GA206", HALF, HALF | {"weights_dtype": "float32", "autocast_dtype": "bfloat16"}),
    ("GA206", HALF, HALF | {"lora": True}),
    ("GA206", HALF, HALF | {"sharding": "zero2", "processes": 2}),
    ("GA206", HALF, HALF | {"learning_rate": 1e-4, "warmup_steps": 0.1}),
    (
        "GA206",
        HALF | told(weights_dtype="bfloat16"),
        HALF | told(weights_dtype="bfloat16") | {"processes": 2},
    ),
    (
        "GA207",
        {"lora": True, "lora_targets": ("q_proj", "v_proj")},
        {"lora": True, "lora_targets": ("q_proj", "down_proj")},
    ),
    ("GA207", {"lora": True, "lora_targets": (), "launcher": "trl"}, {"lora": True}),
    (
        "GA204",
        LARGE | {"learning_rate": 1e-5},
        LARGE | {"learning_rate": 1e-5, "warmup_steps": 5.0},
    ),
]


def codes(s: Setting) -> set[str]:
    """The codes of all problems."""
    return {problem.code for problem in check(s)}


def only(s: Setting, code: str) -> Problem:
    """The problem of one code."""
    return next(problem for problem in check(s) if problem.code == code)


@pytest.mark.parametrize(("code", "bad", "good"), CASES)
def test_a_rule_fires_on_a_bad_setting_and_not_on_its_neighbour(
    code: str, bad: dict[str, Any], good: dict[str, Any]
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


@settings(derandomize=True, max_examples=examples(200), deadline=None)
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


@settings(derandomize=True, max_examples=examples(200), deadline=None)
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
def test_messages_carry_the_native_names_of_the_keys(
    code: str, bad: dict[str, Any], _good: dict[str, Any]
) -> None:
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
    problem = only(s, "GB101")
    fixes = [str(fix) for fix in find_fixes(s, problem)]
    assert fixes == ["gradient_accumulation_steps=8", "num_generations=7", "processes=8"]
    assert render_problem(s, problem) == (
        "num_generations=8: it does not divide the 7 completions of a rollout (7 processes x 1 "
        "per device x 1 micro-steps); "
        "TRL needs whole groups. Set gradient_accumulation_steps=8, or num_generations=7, or "
        "processes=8."
    )


@pytest.mark.parametrize(
    ("warmup", "advice"), [(0, "Try 5e-06 with"), (0.1, "Try 5e-06, or more prompts per step.")]
)
def test_warmup_that_is_set_is_not_advised(warmup: float, advice: str) -> None:
    """GA203: only what would change something."""
    s = Setting(processes=1, learning_rate=1e-7, parameters=7_000_000_000, warmup_steps=warmup)
    (found,) = check(s, select=("GA203",))
    assert found.broken.instead.startswith(advice)
