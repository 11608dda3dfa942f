"""Recipes of each framework as ``grposweep fit`` and ``lint --gpu`` estimate their memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import UserError
from grporecipe.fields.memory import describe
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json
from grporecipe.memory.catalog import find_bits, find_model
from grporecipe.memory.estimate import GIB, Memory, estimate
from grporecipe.memory.host import find_host_memory
from grporecipe.model.releases import text
from grporecipe.model.setting import Setting
from grporecipe.reading.load import Options, load_recipes
from grporecipe.registries import NEWEST
from grposweep.cli._plan import show_fit
from support import Printed

ACTOR = "actor_rollout_ref.actor"
VERL = {
    "data.train_batch_size": 64,
    "data.max_prompt_length": 512,
    "data.max_response_length": 1024,
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
    "actor_rollout_ref.model.use_remove_padding": True,
    f"{ACTOR}.ppo_mini_batch_size": 64,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 8,
    f"{ACTOR}.use_kl_loss": True,
    "actor_rollout_ref.rollout.n": 5,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
    "trainer.n_gpus_per_node": 8,
}
EASYR1 = {
    "data.rollout_batch_size": 512,
    "data.max_prompt_length": 2048,
    "data.max_response_length": 2048,
    "worker.actor.model.model_path": "Qwen/Qwen2.5-VL-7B-Instruct",
    "worker.actor.global_batch_size": 128,
    "worker.actor.micro_batch_size_per_device_for_update": 1,
    "worker.rollout.n": 5,
    "trainer.n_gpus_per_node": 8,
}
TRL = {
    "model_name_or_path": "Qwen/Qwen3-0.6B",
    "per_device_train_batch_size": 4,
    "max_completion_length": 1024,
    "gradient_checkpointing": False,
}


def write(folder: Path, config: Json) -> Path:
    """A file with a recipe."""
    path = folder / "recipe.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in config.items()))
    return path


def setting(tmp_path: Path, config: Json, **options: Any) -> Setting:
    """The setting behind a recipe in a file, with its memory, on a GPU of 80 GiB."""
    path = write(tmp_path, config)
    (recipe,) = load_recipes(path, Options(**options))
    return describe(recipe, read_recipe(recipe).setting).replace({"gpu_memory_gib": 80.0})


def memory(s: Setting) -> Memory:
    """Its estimate."""
    found = estimate(s)
    assert found is not None
    return found


def test_verl_keeps_float32_shards_and_sends_weights_while_vllm_wakes(tmp_path: Path) -> None:
    """16 bytes per parameter among 8 GPUs in the step, and 4 for its square roots; all logits of a
    micro-batch.
    """
    s = setting(tmp_path, VERL)
    found = memory(s)
    step = found.parts["step"]
    assert step["weights"] + step["gradients"] + step["optimizer"] == pytest.approx(
        20 / 8 * 7.6156e9, rel=0.01
    )
    assert found.phases.keys() >= {"generation", "sync", "backward"}
    assert found.parts["backward"]["logits"] == pytest.approx(8 * 1536 * 152_064 * 4, rel=0.2)


@pytest.mark.parametrize(
    ("key", "part", "phase"),
    [
        ("param_offload", "weights", "generation"),
        ("optimizer_offload", "optimizer", "backward"),
    ],
)
def test_parts_that_verl_offloads_are_on_the_gpu_only_while_used(
    tmp_path: Path, key: str, part: str, phase: str
) -> None:
    """Weights come back to be sent and to train, optimizer states for the step; main memory holds
    them meanwhile.
    """
    s = setting(tmp_path, {**VERL, f"{ACTOR}.fsdp_config.{key}": True})
    found = memory(s)
    host = find_host_memory(s)
    assert part not in found.parts[phase]
    assert part in found.parts["step"]
    assert host is not None
    # 4 or 8 bytes per parameter, of all ranks
    assert host.offloaded > 25 * GIB


def test_a_dynamic_micro_batch_is_sized_by_its_tokens(tmp_path: Path) -> None:
    """For every number of sequences."""
    dynamic = {**VERL, f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 4096}
    small, large = (
        memory(setting(tmp_path, dynamic | {f"{ACTOR}.ppo_max_token_len_per_gpu": n}))
        for n in (4096, 16_384)
    )
    assert large.phases["backward"] > small.phases["backward"] + 5 * GIB


def test_easyr1_counts_the_vision_tower(tmp_path: Path) -> None:
    """8.29 billion parameters, of which 0.68 are the tower and its projector."""
    s = setting(tmp_path, EASYR1)
    assert s.architecture is not None
    assert s.architecture.weights == 8_292_166_656
    assert memory(s).weights == pytest.approx(4 * 8.292e9 / 8, rel=0.01)


def test_older_releases_of_trl_hold_all_logits(tmp_path: Path) -> None:
    """From 1.15 on they are made in tiles; the version is the requested one."""
    old, new = (
        memory(setting(tmp_path, TRL, processes=1, own_version=version))
        for version in ("0.19", "1.16")
    )
    assert old.phases["backward"] - new.phases["backward"] > 3 * 4 * 1024 * 151_936 * 4 * 0.6


def test_a_version_is_refused_for_this_projects_own_trainer() -> None:
    """Its TRL is pinned, so another version would be silently ignored."""
    with pytest.raises(UserError, match=f"--framework-version 0.17: .* TRL {text(NEWEST['trl'])}"):
        show_fit(["model=qwen2_5_1_5b"], Options(own_version="0.17"), 80.0, as_json=True)


def test_fit_names_the_change_that_saves_most(tmp_path: Path, printed: Printed) -> None:
    """With its interval, its phase and the verdict, for programs as well."""
    show_fit([str(write(tmp_path, TRL))], Options(processes=2), 24.0, as_json=True)
    answer = json.loads(printed())
    assert answer["verdict"] in ("may fit", "does not fit")
    assert answer["low"] < answer["peak"] < answer["high"]
    assert (answer["phase"], next(iter(answer["savings"]))) == (
        "backward",
        "gradient checkpointing",
    )
    assert {"LoRA", "ZeRO-2", "micro-batch 4 to 2"} <= answer["savings"].keys()


def test_a_local_folder_is_known_by_its_configuration(tmp_path: Path) -> None:
    """No name, no hub: a config.json is enough; one that is damaged says nothing."""
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **sizes}))
    found = find_model(str(tmp_path))
    assert found is not None
    assert (found.layers, found.head_dim) == (2, 16)
    (tmp_path / "config.json").write_text("[" * 10_000)
    assert find_model(str(tmp_path)) is None


def test_experts_count_as_memory_but_few_of_them_compute() -> None:
    """30.5 billion parameters, 3.3 of which are active."""
    model = find_model("Qwen/Qwen3-30B-A3B")
    assert model is not None
    assert model.weights == 30_532_122_624
    assert model.active == pytest.approx(3.3e9, rel=0.02)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", 4),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", 8),
        ("Qwen/Qwen2.5-7B", 0),
    ],
)
def test_a_name_says_how_weights_are_quantized(name: str, bits: int) -> None:
    """As the makers of quantized models write it."""
    assert find_bits(name) == bits


def test_quantized_weights_take_a_quarter(tmp_path: Path) -> None:
    """4 bits and their scales, but for embedding and head."""
    lora = {**TRL, "model_name_or_path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16", "use_peft": True}
    half, four = (
        memory(setting(tmp_path, lora | {"load_in_4bit": on}, processes=1)).weights
        for on in (False, True)
    )
    assert 0.3 < four / half < 0.4


@pytest.mark.parametrize(("share", "verdict"), [(0.3, "does not fit"), (0.6, "may fit")])
def test_fit_knows_whether_vllm_starts(
    tmp_path: Path, printed: Printed, share: float, verdict: str
) -> None:
    """7B on 40 GB: 12 GiB do not hold weights of 14.2, however small the rest is."""
    config = {
        **TRL,
        "model_name_or_path": "Qwen/Qwen2.5-7B",
        "dtype": "bfloat16",
        "use_peft": True,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": share,
        "per_device_train_batch_size": 1,
        "gradient_checkpointing": True,
    }
    show_fit([str(write(tmp_path, config))], Options(processes=1), 40.0, as_json=True)
    answer = json.loads(printed())
    assert (answer["verdict"], answer["engine_needs"] > answer["engine_share"]) == (
        verdict,
        share == 0.3,
    )


@pytest.mark.parametrize(
    ("release", "offers"), [("0.24.0", True), ("0.29.0", False), ("1.16.0", True)]
)
def test_vllms_sleep_is_offered_where_it_keeps_the_policy(
    here: Path, printed: Printed, release: str, offers: bool
) -> None:
    """In between, vLLM wakes up with the base model's weights."""
    recipe = here / "r.yaml"
    recipe.write_text(
        "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nnum_generations: 8\nuse_vllm: true\n"
        "per_device_train_batch_size: 8\nvllm_mode: colocate\n"
    )
    options = Options(processes=4, own_version=release)
    show_fit([str(recipe)], options, 80.0, as_json=False)
    assert ("sleep mode" in printed()) == offers
