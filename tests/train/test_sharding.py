"""What transformers makes of our sharding: its own classes fill in every number that is left to them."""

import pytest
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
from trl import GRPOConfig

from grposweep.errors import BadInput
from grposweep.train.sharding import check_sharding, deepspeed_config, sharding_options

from .conftest import build_experiment

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_transformers_fills_in_what_deepspeed_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, stage: int
) -> None:
    """Stages differ in what they divide; sizes and clipping are the trainer's own, and nothing is left open."""
    arguments = GRPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=8, gradient_accumulation_steps=2,
                           max_grad_norm=0.5, bf16=False, use_cpu=True)  # fmt: skip
    monkeypatch.setattr("transformers.integrations.deepspeed.dep_version_check", lambda _: None)  # it need not be there
    config = HfTrainerDeepSpeedConfig(deepspeed_config(stage))
    config.trainer_config_process(arguments)
    config.trainer_config_finalize(arguments, type("Model", (), {"config": type("C", (), {"hidden_size": 64})()})(), 10)
    filled = config.config
    assert (filled["train_micro_batch_size_per_gpu"], filled["gradient_accumulation_steps"]) == (8, 2)
    assert (filled["gradient_clipping"], filled["zero_optimization"]["stage"]) == (0.5, stage)
    assert "auto" not in str(filled)


def test_the_real_configuration_takes_fsdp(tmp_path: object) -> None:
    """Version 2, each layer gathered for itself."""
    arguments = GRPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, **sharding_options("fsdp"))
    assert arguments.fsdp
    assert arguments.fsdp_config["version"] == 2


def test_without_sharding_nothing_is_said() -> None:
    """The arguments stay as they were."""
    assert sharding_options("none") == {}


@pytest.mark.parametrize(("sharding", "words"), [("zero2", "DeepSpeed is not installed"), ("fsdp", "none is visible")])
def test_what_cannot_be_sharded_here_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, sharding: str, words: str
) -> None:
    """Before a model is loaded."""
    monkeypatch.setattr("grposweep.train.sharding.find_spec", lambda _: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(BadInput, match=words):
        check_sharding(build_experiment(f"trainer.sharding={sharding}"))
