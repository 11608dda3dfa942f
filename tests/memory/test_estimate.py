"""The estimate never falls when a size grows, and each part equals its formula."""

from dataclasses import replace
from typing import Any

import pytest

from grporecipe.fields.memory import describe
from grporecipe.fields.recipes import read_recipe
from grporecipe.files import Json
from grporecipe.memory.catalog import find_model, known_models, memory_of
from grporecipe.memory.estimate import (
    ASLEEP,
    COMMUNICATION,
    FRAGMENTATION,
    GIB,
    GRAPHS,
    PARTS,
    Memory,
    estimate,
    memory_gib,
)
from grporecipe.memory.fit import fit, fit_gpus
from grporecipe.model.architecture import Architecture
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Setting
from grposweep.report.plan import memory_bars

MODELS = known_models()
QWEN = MODELS["qwen2.5-1.5b"]
POINT = Setting(
    processes=1,
    num_generations=8,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    architecture=QWEN,
    weights_dtype="bfloat16",
    max_prompt_length=256,
    max_completion_length=768,
)


def memory(**fields: Any) -> Memory:
    """The estimate at a point."""
    found = estimate(replace(POINT, **fields))
    assert found is not None
    return found


def described(
    config: Json, version: tuple[int, int, int] = (1, 16, 0), framework: str = "trl"
) -> Setting:
    """What a recipe's keys say of memory."""
    recipe = Recipe(framework, version, config)
    return describe(recipe, read_recipe(recipe).setting)


def test_a_shape_counts_the_published_parameters() -> None:
    """To the last one, for every model of the table whose parameters the hub counts; experts and
    vision towers too.
    """
    published = {name: model for name, model in MODELS.items() if model.parameters}
    assert len(published) >= len(MODELS) - 1
    assert {name: model.count() for name, model in published.items()} == {
        name: model.parameters for name, model in published.items()
    }


def test_the_parts_are_named_as_the_plan_shows_them() -> None:
    """In GiB per rank. A model of unknown shape has none."""
    found = memory_gib(POINT)
    assert found is not None
    assert list(found) == list(PARTS)
    assert memory_gib(replace(POINT, architecture=None)) is None


def test_weights_gradients_and_adam_take_two_two_and_four_bytes_per_parameter() -> None:
    """In bfloat16, which the moments are kept in too."""
    found = memory()
    assert [found.weights, found.gradients, found.optimizer] == [
        n * QWEN.parameters for n in (2, 2, 4)
    ]


def test_several_ranks_hold_their_gradients_twice() -> None:
    """DDP's buckets."""
    assert memory(processes=4).gradients == 2 * memory().gradients


@pytest.mark.parametrize(
    ("sharding", "ranks"), [("zero1", 8), ("zero2", 8), ("zero3", 8), ("fsdp", 8)]
)
def test_more_ranks_need_less_of_what_is_sharded(sharding: str, ranks: int) -> None:
    """And never more than two."""
    few, many = (memory(sharding=sharding, processes=n) for n in (2, ranks))
    assert many.optimizer < few.optimizer
    assert many.peak < few.peak
    assert (many.weights < few.weights) == (sharding in ("zero3", "fsdp"))


def test_a_reference_is_held_only_for_kl_without_adapters() -> None:
    """With LoRA the adapter is switched off instead."""
    assert (
        memory().reference,
        memory(beta=0.04).reference,
        memory(beta=0.04, lora=True).reference,
    ) == (
        0,
        memory().weights,
        0,
    )


def test_checkpointing_saves_activations_and_lora_the_optimizer() -> None:
    """Each what it is for."""
    assert memory(gradient_checkpointing=True).activations < memory().activations / 5
    assert memory(lora=True).optimizer < memory().optimizer / 20


@pytest.mark.parametrize(
    "more",
    [
        {"per_device_train_batch_size": 16},
        {"max_completion_length": 1024},
        {"max_prompt_length": 512},
        {"beta": 0.1},
        {"processes": 2},
        {"weights_dtype": "float32"},
        {"architecture": MODELS["qwen2.5-3b"]},
        {"gradient_accumulation_steps": 64},
        {"temperature": 0.9},
        {"top_p": 0.9},
        {"top_k": 50},
    ],
)
def test_the_estimate_never_falls_when_a_size_grows(more: Json) -> None:
    """Otherwise a smaller size might not be a fix."""
    assert memory(**more).peak >= memory().peak


def test_vllm_takes_its_share_of_the_gpu_all_the_time() -> None:
    """A third of 80 GiB; a server of its own takes none."""
    colocated = {"use_vllm": True, "vllm_gpu_memory_utilization": 0.3, "gpu_memory_gib": 80.0}
    assert memory(**colocated).generation == pytest.approx(24 * GIB)
    assert memory(**colocated, vllm_mode="server").generation == 0


def test_a_sleeping_engine_takes_its_share_only_while_it_generates() -> None:
    """Its sleep mode gives it back for the other phases."""
    colocated = {"use_vllm": True, "vllm_gpu_memory_utilization": 0.3, "gpu_memory_gib": 80.0}
    awake = memory(**colocated).phases
    asleep = memory(**colocated, vllm_enable_sleep_mode=True).phases
    given_back = {
        name: round((awake[name] - asleep[name]) / GIB) for name in awake if name != "sync"
    }
    # its graphs and workspaces stay
    kept = round((24 * GIB + GRAPHS - ASLEEP) / GIB)
    assert given_back == {
        "load": 0,
        "generation": 0,
        "scoring": kept,
        "backward": kept,
        "step": kept,
    }


def test_a_large_evaluation_batch_is_scored_at_once() -> None:
    """Without gradients, but in one piece: it may be what runs out."""
    small, large = (
        memory(evaluates=True, per_device_eval_batch_size=n).phases["scoring"] for n in (8, 64)
    )
    assert large - small > 2 * GIB


def test_ddp_keeps_its_buckets_when_gradients_are_freed() -> None:
    """Two bytes per parameter in every phase, generation among them, and NCCL's buffers."""
    extra = memory(processes=4).phases["generation"] - memory().phases["generation"]
    assert extra == pytest.approx(2 * QWEN.parameters + COMMUNICATION)


@pytest.mark.parametrize(
    ("optim", "bytes_"),
    [
        ("adamw_torch", 4),
        ("adamw_torch_fused", 4),
        ("sgd", 0),
        ("lion_32bit", 4),
        ("paged_adamw_32bit", 8),
        ("ademamix", 12),
        ("rmsprop_bnb", 4),
        ("rmsprop", 2),
    ],
)
def test_optimizer_states_have_their_own_types(optim: str, bytes_: int) -> None:
    """Those of torch are of the weights' type (bfloat16 here), bitsandbytes' of float32."""
    assert memory(optim=optim).optimizer == bytes_ * QWEN.parameters


def test_eight_bits_do_not_hold_the_embedding() -> None:
    """A byte a moment, but four of the embedding's."""
    rest = QWEN.parameters - QWEN.head_parameters
    assert memory(optim="adamw_8bit").optimizer == 2 * rest + 8 * QWEN.head_parameters


def test_fsdp_gathers_a_head_of_its_own_in_addition_to_the_embedding() -> None:
    """They are one group, being outside of the layers."""
    tied = replace(QWEN, parameters=0)
    apart = replace(QWEN, parameters=0, tied_embeddings=False)
    one, two = (
        memory(architecture=model, sharding="fsdp", processes=1000).phases["scoring"]
        for model in (tied, apart)
    )
    assert two - one == pytest.approx(2 * QWEN.head_parameters * (1 + FRAGMENTATION), rel=0.05)


def test_what_fits_is_the_most_that_fits() -> None:
    """One more of any does not."""
    most = fit(POINT, 24.0)
    assert most.batch
    assert most.completion
    for name, value in (("max_completion_length", most.completion),):
        assert memory(**{name: value}).peak <= 24 * GIB < memory(**{name: value + 1}).peak


def test_a_larger_gpu_holds_no_less() -> None:
    """Down the whole table."""
    batches = [fitted.batch or 0 for _, fitted in fit_gpus(POINT)]
    assert batches == sorted(batches)
    assert batches[0] < batches[-1]


@pytest.mark.parametrize(
    ("name", "gib"),
    [("A100", 80.0), ("rtx4090", 24.0), ("4090", 24.0), ("NVIDIA H100", 79.6), ("a100-40gb", 40.0)],
)
def test_a_gpu_is_known_however_its_name_is_written(name: str, gib: float) -> None:
    """As people and drivers write it."""
    assert memory_of(name, "--gpu") == gib


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen2.5-1.5B-Instruct", True),
        ("meta-llama/Llama-3.2-1B", True),
        ("/models/Qwen3-8B/", True),
        ("Qwen/Qwen2.5-Math-7B", True),
        ("Qwen/Qwen2.5-72B", True),
        ("Qwen/Qwen2.5-99B", False),
        ("", False),
    ],
)
def test_a_recipes_model_is_known_by_its_name(name: str, known: bool) -> None:
    """Variants share a shape; what is not in the table is not guessed."""
    assert (find_model(name) is not None) == known
    s = described(
        {"model_name_or_path": name, "dtype": "bfloat16", "gradient_checkpointing": False}
    )
    assert (s.architecture is not None) == known


@pytest.mark.parametrize(
    ("version", "config", "wanted"),
    [
        ((1, 16, 0), {}, ("float32", True, True)),
        ((1, 16, 0), {"bf16": False}, ("float32", False, True)),
        (
            (1, 16, 0),
            {"dtype": "bfloat16", "gradient_checkpointing": False},
            ("bfloat16", False, False),
        ),
        ((0, 18, 0), {}, ("float32", False, False)),
        ((0, 18, 0), {"bf16": True, "torch_dtype": "auto"}, ("bfloat16", False, False)),
        ((0, 21, 0), {"fp16": True, "bf16": False}, ("float32", True, False)),
    ],
)
def test_what_a_recipe_leaves_out_is_as_its_release_has_it(
    version: tuple[int, int, int], config: Json, wanted: tuple[str, bool, bool]
) -> None:
    """The weights' type, whether autocast computes in less, and checkpointing."""
    s = described({"model_name_or_path": "Qwen/Qwen2.5-1.5B", **config}, version)
    assert (s.weights_dtype, s.autocast_dtype is not None, s.gradient_checkpointing) == wanted


def test_autocast_halves_activations_and_copies_the_weights() -> None:
    """So a large micro-batch needs less of it, and the states as much."""
    full, mixed = (
        memory(weights_dtype="float32", autocast_dtype=half) for half in (None, "bfloat16")
    )
    assert (full.weights, full.optimizer) == (mixed.weights, mixed.optimizer)
    assert 0.5 < mixed.activations / full.activations < 0.7
    scored = mixed.phases["scoring"] - full.phases["scoring"]
    assert scored == pytest.approx(2 * QWEN.layers * QWEN.layer_parameters * (1 + FRAGMENTATION))


def test_adapters_are_on_pefts_modules_unless_the_recipe_names_others() -> None:
    """On queries and values."""
    targets = [
        described({"model_name_or_path": "Qwen/Qwen2.5-1.5B", **config}).lora_targets
        for config in (
            {},
            {"lora_target_modules": ["o_proj"]},
            {"lora_target_modules": "all-linear"},
        )
    ]
    assert targets == [("q_proj", "v_proj"), ("o_proj",), ("all-linear",)]


def test_the_bars_fit_eighty_columns_and_show_what_is_over() -> None:
    """On the GPU's scale."""
    lines = memory_bars(memory(), 16.0).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith("over") for line in lines)
    assert lines[0].startswith("GPU memory a rank, estimated: ")


def test_an_unknown_kind_of_layer_counts_as_llamas() -> None:
    """A new model is estimated before its layers are known here."""
    assert (
        Architecture(2, 64, 128, 4, 2, 16, 100, model_type="new").kind
        == Architecture(2, 64, 128, 4, 2, 16, 100).kind
    )


def test_fsdp_computes_in_half_precision_for_every_dtype_of_the_weights() -> None:
    """It keeps float32 shards of trained weights and gathers bfloat16. Only a reference keeps the
    type it was loaded in.
    """
    mixed = {"weights_dtype": "float32", "autocast_dtype": "bfloat16"}
    many = {"sharding": "fsdp", "processes": 8}
    assert memory(**many, **mixed) == memory(**many)
    assert memory(**many, **mixed, beta=0.1).reference == 2 * memory(**many, beta=0.1).reference
