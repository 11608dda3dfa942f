"""The types of weights and of matrix products: what a configuration means, what cannot be trained,
and what must not be mixed.
"""

import pytest
from omegaconf import OmegaConf

from grporecipe.files import Json
from grposweep.config.compose import Session, open_session, to_experiment
from grposweep.config.identity import ResolvedConfig, is_same_point
from grposweep.config.precision import Precision, read_precision
from grposweep.config.to_setting import read_setting
from grposweep.schema import Experiment
from support import sampled

LORA = "model.lora.r=16"


def build(*overrides: str) -> Experiment:
    """The experiment of a few keys."""
    return to_experiment(OmegaConf.from_dotlist(list(overrides)))


def identity(*overrides: str) -> str:
    """Its identity."""
    experiment = build(*overrides)
    return ResolvedConfig.of(experiment).identity


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ([], ("float32", "none")),
        (["model.dtype=bfloat16"], ("bfloat16", "bf16")),
        (["model.mixed_precision=bf16"], ("float32", "bf16")),
        (["model.dtype=auto"], ("float32", "bf16")),
        (["model.dtype=auto", LORA], ("bfloat16", "bf16")),
        (["model.dtype=auto", "model.mixed_precision=fp16"], ("float32", "fp16")),
        (["model.dtype=auto", "model.mixed_precision=fp16", LORA], ("float16", "fp16")),
        (["model.dtype=auto", "model.mixed_precision=none"], ("float32", "none")),
    ],
)
def test_trained_weights_are_float32_and_frozen_ones_half(
    overrides: list[str], wanted: tuple[str, str]
) -> None:
    """``auto`` fits the weights to the mixed precision; explicit types mean what they meant before
    there was a choice.
    """
    assert read_precision(build(*overrides).model) == Precision(*wanted)


def test_a_setting_holds_both_types() -> None:
    """Rules and the estimate of memory read them."""
    found = [
        read_setting(build(*words)) for words in (["model.dtype=auto"], ["model.dtype=bfloat16"])
    ]
    assert [(s.weights_dtype, s.autocast_dtype) for s in found] == [
        ("float32", "bfloat16"),
        ("bfloat16", None),
    ]


def test_quantized_and_offloaded_states_are_estimated_as_such() -> None:
    """4 bits a weight, or main memory; only under a DeepSpeed configuration of one's own is nothing
    known.
    """
    shape = [
        "model.shape.layers=2",
        "model.shape.hidden=64",
        "model.shape.intermediate=128",
        "model.shape.heads=4",
        "model.shape.vocabulary=1000",
    ]
    assert read_setting(build(*shape, LORA, "model.quantization=4bit")).runtime.weight_bits == 4
    runtime = read_setting(
        build(*shape, "trainer.sharding=zero2", "trainer.offload=optimizer")
    ).runtime
    assert (runtime.offloads, runtime.computes_offloaded) == ({"optimizer"}, True)
    assert read_setting(build(*shape)).architecture is not None
    assert read_setting(build(*shape, "trainer.deepspeed_config=own.json")).architecture is None


def test_a_configured_shape_has_the_positions_of_its_model() -> None:
    """As a rule on the length of a sequence reads them; the other numbers stay as configured."""
    sizes = ("layers=2", "hidden=64", "intermediate=128", "heads=4", "vocabulary=1000")
    shape = [f"model.shape.{size}" for size in sizes]
    found = read_setting(build(*shape, "model.path=Qwen/Qwen2.5-0.5B")).architecture
    assert found is not None
    assert (found.layers, found.positions) == (2, 32_768)


def test_the_same_types_are_the_same_experiment_however_they_are_written() -> None:
    """And others are another one."""
    pure = identity("model.dtype=bfloat16")
    mixed = identity("model.mixed_precision=bf16")
    assert identity("model.dtype=auto") == mixed != pure
    assert identity("model.dtype=auto", LORA) == identity("model.dtype=bfloat16", LORA)
    assert identity("model.mixed_precision=none") == identity()
    assert (
        len(
            {
                pure,
                mixed,
                identity(),
                identity("model.tf32=true"),
                identity("model.mixed_precision=fp16"),
            }
        )
        == 5
    )


def test_a_warm_start_does_not_mix_results_of_different_precision() -> None:
    """The best points are tried first, as with another model."""

    def learnt(*overrides: str) -> Json:
        experiment = build(*overrides)
        return ResolvedConfig.of(experiment).learning()

    pure = learnt("model.dtype=bfloat16")
    mixed = learnt("model.dtype=auto")
    assert pure != mixed
    assert is_same_point(pure, mixed)
    assert learnt("model.mixed_precision=bf16") == mixed


@pytest.mark.parametrize(
    "model",
    sampled(
        ["qwen2_5_0_5b", "qwen2_5_1_5b", "qwen2_5_7b", "qwen3_0_6b", "qwen3_1_7b", "smollm2_135m"],
        6,
    ),
)
def test_real_models_train_float32_weights_under_autocast(model: str) -> None:
    """As TRL does by default; a small learning rate moves nothing in bfloat16."""
    session: Session
    with open_session() as session:
        experiment = to_experiment(session.compose([f"model={model}"]))
    assert read_precision(experiment.model) == Precision("float32", "bf16")
