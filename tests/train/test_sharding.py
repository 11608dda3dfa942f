"""What transformers makes of our sharding: its own classes fill in every number that is left to
them.
"""

import inspect
import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from accelerate import DeepSpeedPlugin
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from transformers.integrations import deepspeed as transformers_deepspeed
from trl import GRPOConfig

from grporecipe.errors import UserError
from grporecipe.memory.parts import BUCKET
from grposweep.train._trl_config import check_sharding, deepspeed_config, sharding_options

from .conftest import build_experiment

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_accelerate_reads_the_stage_that_was_meant(stage: int) -> None:
    """Its own reader of DeepSpeed's configurations, which needs no DeepSpeed."""
    read = HfDeepSpeedConfig(deepspeed_config(stage))
    assert (read.is_zero2(), read.is_zero3(), read.is_offload()) == (stage == 2, stage == 3, False)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_is_left_open_is_what_transformers_fills_in(stage: int) -> None:
    """A number that stood in two places could differ from the trainer's own."""
    source = inspect.getsource(transformers_deepspeed)
    flat = {
        f"{name}.{inner}" if inner else name: value
        for name, held in deepspeed_config(stage).items()
        for inner, value in (held.items() if isinstance(held, dict) else [("", held)])
    }
    left = [key for key, value in flat.items() if value == "auto"]
    assert len(left) >= 5
    assert all(f'"{key}"' in source for key in left)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_accelerates_plugin_fills_in_the_rest(stage: int) -> None:
    """What trains by the configuration in the end: nothing is left open, and nothing was filled in
    twice.
    """
    plugin = DeepSpeedPlugin(hf_ds_config=deepspeed_config(stage))
    numbers = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "train_batch_size": 64,
        "gradient_clipping": 1.0,
        "bf16.enabled": True,
    }
    if stage == 3:
        numbers["zero_optimization.stage3_param_persistence_threshold"] = 8960
    plugin.deepspeed_config_process(must_match=True, **numbers)
    assert (plugin.zero_stage, plugin.zero3_save_16bit_model) == (stage, stage == 3)
    assert "auto" not in str(plugin.deepspeed_config)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeeds_own_parser_takes_it(stage: int) -> None:
    """Where it is installed; it refuses keys that it does not know."""
    parser = pytest.importorskip("deepspeed.runtime.config", reason="DeepSpeed is not installed")
    numbers = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "train_batch_size": 8,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
    }
    whole = deepspeed_config(stage) | numbers
    whole["zero_optimization"].pop("stage3_param_persistence_threshold", None)
    read = parser.DeepSpeedConfig(whole)
    assert (read.zero_optimization_stage, read.zero_config.reduce_bucket_size) == (stage, BUCKET)


def test_the_real_configuration_takes_fsdp(tmp_path: object) -> None:
    """Version 2, each layer gathered for itself."""
    options = sharding_options(build_experiment("trainer.sharding=fsdp"))
    arguments = GRPOConfig(output_dir=str(tmp_path), bf16=False, use_cpu=True, **options)
    assert arguments.fsdp
    assert arguments.fsdp_config["version"] == 2


def test_without_sharding_nothing_is_reported() -> None:
    """The arguments stay as they were."""
    assert sharding_options(build_experiment()) == {}


@pytest.mark.parametrize(
    ("overrides", "is_once"),
    [([], True), (["kl.beta=0.1"], False), (["kl.beta=0.1", "model.lora.r=16"], True)],
)
def test_fsdp_loads_weights_once_unless_a_reference_needs_them(
    overrides: list[str], is_once: bool
) -> None:
    """TRL shards a reference model without sending it from the first rank: the others' part would
    be arbitrary.
    """
    options = sharding_options(build_experiment("trainer.sharding=fsdp", *overrides))
    assert options["fsdp_config"]["cpu_ram_efficient_loading"] is is_once


@pytest.mark.parametrize(
    ("sharding", "words"), [("zero2", "DeepSpeed is not installed"), ("fsdp", "none is visible")]
)
def test_what_cannot_be_sharded_here_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, sharding: str, words: str
) -> None:
    """Before a model is loaded."""
    monkeypatch.setattr("grposweep.train._trl_config.find_spec", lambda _: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=words):
        check_sharding(build_experiment(f"trainer.sharding={sharding}"))


@pytest.mark.parametrize(
    ("sharding", "processes", "is_taken"),
    [("zero2", 2, True), ("zero2", 1, False), ("fsdp", 2, False)],
)
def test_cpu_ranks_shard_what_the_software_there_can(
    monkeypatch: pytest.MonkeyPatch, sharding: str, processes: int, is_taken: bool
) -> None:
    """DeepSpeed knows CPUs, from two ranks on; accelerate would train FSDP as DDP there."""
    monkeypatch.setattr("grposweep.train._trl_config.find_spec", lambda _: object())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    experiment = build_experiment(f"trainer.sharding={sharding}", f"cluster.processes={processes}")
    with nullcontext() if is_taken else pytest.raises(UserError, match="none is visible"):
        check_sharding(experiment)


def test_offloaded_states_are_in_main_memory() -> None:
    """Of the optimizer, or of the weights as well; torch's AdamW steps there too."""
    zero2 = sharding_options(
        build_experiment("trainer.sharding=zero2", "trainer.offload=optimizer")
    )["deepspeed"]
    zero3 = sharding_options(build_experiment("trainer.sharding=zero3", "trainer.offload=all"))[
        "deepspeed"
    ]
    fsdp = sharding_options(build_experiment("trainer.sharding=fsdp", "trainer.offload=all"))[
        "fsdp_config"
    ]
    assert zero2["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert "offload_param" not in zero2["zero_optimization"]
    assert zero3["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert zero2["zero_force_ds_cpu_optimizer"] is False
    assert fsdp["cpu_offload"] is True
    assert HfDeepSpeedConfig(zero3).is_offload()


def test_a_configuration_of_the_users_own_replaces_ours(tmp_path: Path) -> None:
    """As it is in the file; FSDP's options are put on top of ours."""
    file = tmp_path / "zero2.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}))
    options = sharding_options(
        build_experiment("trainer.sharding=zero2", f"trainer.deepspeed_config={file}")
    )
    assert options["deepspeed"] == {"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}
    sharded = ("trainer.sharding=fsdp", "trainer.fsdp_config.state_dict_type=SHARDED_STATE_DICT")
    config = sharding_options(build_experiment(*sharded))["fsdp_config"]
    assert (config["state_dict_type"], config["version"]) == ("SHARDED_STATE_DICT", 2)
