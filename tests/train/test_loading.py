"""What of the model's keys reaches from_pretrained and TRL's GRPOConfig, and which packages they
need.
"""

from typing import Any

import pytest
import torch
from trl import GRPOConfig

from grposweep.schema import Lora, Model, trl_arguments
from grposweep.train import _models as models
from grposweep.train._models import Loaded
from grposweep.train._trl_config import grpo_arguments
from grposweep.train.attempt import load_attempt
from grposweep.train.prompts import longest_prompt

from .conftest import MakeTrial

# torch and TRL take 8 s to import
pytestmark = pytest.mark.slow

OPTIONAL = {
    "model.chat_template_kwargs.enable_thinking=false": (
        "chat_template_kwargs",
        {"enable_thinking": False},
    ),
    "model.trust_remote_code=true": ("trust_remote_code", True),
    "trainer.args.ddp_timeout=7200": ("ddp_timeout", 7200),
    "trainer.args.use_liger_kernel=true": ("use_liger_kernel", True),
    "trainer.args.gradient_checkpointing_kwargs.use_reentrant=true": (
        "gradient_checkpointing_kwargs",
        {"use_reentrant": True},
    ),
}


def arguments(make_trial: MakeTrial, *overrides: str) -> dict[str, Any]:
    """What GRPOConfig is told."""
    return grpo_arguments(
        load_attempt(make_trial(*overrides)), Loaded("model", None, None, {"dtype": "float32"})
    )


def test_every_copied_key_is_an_argument_of_grpo_config() -> None:
    """The installed release's own."""
    assert set(trl_arguments().values()) <= set(GRPOConfig.__dataclass_fields__)


@pytest.mark.parametrize("override", OPTIONAL)
def test_an_optional_key_reaches_trl_as_it_is(override: str, make_trial: MakeTrial) -> None:
    """In its own configuration object."""
    name, value = OPTIONAL[override]
    given = arguments(make_trial, override)
    assert given[name] == value
    assert getattr(GRPOConfig(**given), name) == value


def test_an_optional_key_that_is_not_set_is_left_to_trl(make_trial: MakeTrial) -> None:
    """Its default is the release's."""
    # false
    assert {name for name, _ in OPTIONAL.values()} & set(arguments(make_trial)) == {
        "trust_remote_code"
    }


def test_loading_options_reach_from_pretrained(make_trial: MakeTrial) -> None:
    """In addition to the type of the weights; null and false are left out."""
    given = arguments(make_trial, "model.attn_implementation=eager", "model.use_kernels=true")
    assert given["model_init_kwargs"] == {
        "dtype": "float32",
        "attn_implementation": "eager",
        "use_kernels": True,
    }


def test_four_bits_are_qloras() -> None:
    """NF4, quantized twice, computed in what the model computes in; bitsandbytes itself reads
    this.
    """
    model = Model(dtype="auto", quantization="4bit", lora=Lora(r=16))
    found = models.build_quantization(model)
    assert found is not None
    assert (found.load_in_4bit, found.bnb_4bit_quant_type, found.bnb_4bit_use_double_quant) == (
        True,
        "nf4",
        True,
    )
    assert found.bnb_4bit_compute_dtype is torch.bfloat16
    eight = models.build_quantization(Model(quantization="8bit"))
    assert eight is not None
    assert eight.load_in_8bit
    assert models.build_quantization(Model()) is None


def test_many_prompts_are_chosen_by_their_bytes() -> None:
    """Fewer characters of another script may be more tokens."""

    def tokenizer(prompt: str) -> dict[str, list[int]]:
        return {"input_ids": [0] * sum(3 if letter > "~" else 1 for letter in prompt)}

    assert longest_prompt(tokenizer, ["x" * 40] * 1000 + ["\u6570" * 30]) == 90


@pytest.mark.parametrize(("mixed", "wanted"), [("fp16", torch.float32), ("bf16", torch.bfloat16)])
def test_adapters_on_quantized_weights_can_be_unscaled(mixed: str, wanted: torch.dtype) -> None:
    """TRL makes them bfloat16; fp16 needs gradients in float32. Frozen weights stay as they are."""
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to(torch.bfloat16)
    network[0].requires_grad_(False)
    models.widen_adapters(
        Model(dtype="auto", mixed_precision=mixed, quantization="4bit", lora=Lora(r=16)),
        network,
    )
    assert [part.weight.dtype for part in network] == [torch.bfloat16, wanted]


def test_the_longest_prompt_is_measured_with_the_templates_variables() -> None:
    """A template may add turns that bound vLLM's longest sequence."""

    class Tokenizer:
        def apply_chat_template(
            self, *_: Any, enable_thinking: bool = True, **__: Any
        ) -> dict[str, list[int]]:
            return {"input_ids": [0] * (10 if enable_thinking else 14)}

    prompts = [[{"role": "user", "content": "2+2?"}]]
    assert longest_prompt(Tokenizer(), prompts) == 10
    assert longest_prompt(Tokenizer(), prompts, {"enable_thinking": False}) == 14
