"""What a precision comes to for TRL: the arguments of its own GRPOConfig, and the type that weights
are loaded in.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOConfig

from grporecipe.errors import UserError
from grposweep.schema import Lora, Model
from grposweep.train import trl
from grposweep.train._trl_config import deepspeed_config, precision_arguments

# torch and TRL take 8 s to import
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (Model(), ("none", None)),
        (Model(dtype="bfloat16"), ("bf16", None)),
        (Model(dtype="auto"), ("bf16", None)),
        (Model(dtype="auto", mixed_precision="fp16", tf32=False), ("fp16", False)),
        (Model(tf32=False), ("none", False)),
        (Model(dtype="bfloat16", mixed_precision="none"), ("none", None)),
    ],
)
def test_grpo_config_takes_the_mixed_precision_that_was_meant(
    model: Model, wanted: tuple[str, bool | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own default is bf16; on a GPU every case says what it wants."""
    arguments: dict[str, Any] = precision_arguments(model, has_gpu=True)
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **arguments)
    found = "fp16" if config.fp16 else "bf16" if config.bf16 else "none"
    assert (found, config.tf32) == wanted


def test_without_a_gpu_all_is_float32() -> None:
    """Half precision is slower and less exact there."""
    assert precision_arguments(Model(dtype="auto", tf32=True), has_gpu=False) == {
        "bf16": False,
        "fp16": False,
    }


def test_deepspeed_is_told_of_float16() -> None:
    """Its engine casts the model by its own configuration."""
    assert deepspeed_config(2, "fp16")["fp16"] == {"enabled": "auto"}
    assert "bf16" not in deepspeed_config(2, "fp16")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Model(dtype="auto"), "Tesla V100: this GPU has no bfloat16"),
        (Model(tf32=True), "Tesla V100 has no TensorFloat-32"),
        (Model(dtype="auto", mixed_precision="fp16", lora=Lora(r=16)), None),
    ],
)
def test_an_older_gpu_says_which_types_it_lacks(
    model: Model, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a model is loaded: torch emulates bfloat16 there, and transformers takes that for
    support.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    if words is None:
        trl.check_gpu_precision(model)
        return
    with pytest.raises(UserError, match=words):
        trl.check_gpu_precision(model)
