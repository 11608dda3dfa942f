"""Options of sharding: what goes together, and that a file enters a trial's identity by its content."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grporecipe.errors import UserError
from grposweep.config.compose import to_experiment
from grposweep.config.identity import experiment_id
from grposweep.config.to_setting import read_setting
from grposweep.config.validate import check_experiment
from grposweep.schema import Experiment
from grposweep.storage.inputs import find_inputs
from grposweep.storage.provenance import collect_provenance, difference


def build(*overrides: str) -> Experiment:
    """The experiment of a few keys."""
    return to_experiment(OmegaConf.from_dotlist(list(overrides)))


def write(path: Path, **content: object) -> str:
    """A configuration of DeepSpeed's; the override that names it."""
    path.write_text(json.dumps(content))
    return f"trainer.deepspeed_config={path}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["trainer.offload=optimizer"],
            r"trainer\.offload=optimizer and trainer\.sharding=none: .*zero1, zero2, zero3",
        ),
        (["trainer.offload=all", "trainer.sharding=zero2"], r"zero3, fsdp, or trainer\.offload=none"),
        (["trainer.offload=optimizer", "trainer.sharding=fsdp"], "to one of zero1, zero2, zero3"),
        (["trainer.fsdp_config.state_dict_type=x"], r"trainer\.fsdp_config and trainer\.sharding=none"),
        (["trainer.sharding=fsdp", "trainer.fsdp_config.offload=true"], "has offload: transformers does not know that"),
        (
            ["trainer.sharding=fsdp", "trainer.fsdp_config.cpu_ram_efficient_loading=true", "kl.beta=0.01"],
            r"kl\.beta=0\.01: .*arbitrary weights",
        ),
        (
            [
                "trainer.sharding=fsdp",
                "trainer.fsdp_config.activation_checkpointing=true",
                "model.gradient_checkpointing=true",
            ],
            r"Set model\.gradient_checkpointing=false",
        ),
        (["trainer.deepspeed_config=missing.json"], r"missing\.json: it cannot be read"),
    ],
)
def test_options_that_the_kind_of_sharding_does_not_have_are_bad_input(overrides: list[str], words: str) -> None:
    """One message, with what to set instead."""
    with pytest.raises(UserError, match=words):
        check_experiment(build(*overrides))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"zero_optimization": {"stage": 3}}, r"has stage 3, and trainer\.sharding=zero2.*Set trainer\.sharding=zero3"),
        ({"bf16": {"enabled": True}}, "is not JSON with zero_optimization"),
        (
            {"zero_optimization": {"stage": 2}, "train_batch_size": 64},
            "sets train_batch_size, and every trial has its own",
        ),
    ],
)
def test_a_file_of_deepspeeds_must_fit_the_kind_of_sharding(
    tmp_path: Path, content: dict[str, object], words: str
) -> None:
    """The plan and the estimate of memory go by ``trainer.sharding``."""
    with pytest.raises(UserError, match=words):
        check_experiment(build("trainer.sharding=zero2", write(tmp_path / "d.json", **content)))


def test_a_file_of_deepspeeds_is_part_of_the_identity_by_its_content(tmp_path: Path) -> None:
    """Not by its name; memory is not estimated, because the file may offload anything."""

    def identity(file: str) -> str:
        experiment = build("trainer.sharding=zero2", file)
        check_experiment(experiment)
        return experiment_id(experiment, read_setting(experiment))

    here, there = tmp_path / "a.json", tmp_path / "b.json"
    first = identity(write(here, zero_optimization={"stage": 2}))
    assert identity(write(there, zero_optimization={"stage": 2})) == first
    assert identity(write(there, zero_optimization={"stage": 2}, wall_clock_breakdown=True)) != first
    offloaded = build("trainer.sharding=zero2", "trainer.offload=optimizer")
    assert experiment_id(offloaded, read_setting(offloaded)) != first


def test_a_changed_file_of_deepspeeds_is_named_when_a_sweep_is_resumed(tmp_path: Path) -> None:
    """As changed rewards and prompts are."""
    path = tmp_path / "zero.json"
    experiment = build("trainer.sharding=zero2", write(path, zero_optimization={"stage": 2}))
    before = collect_provenance(find_inputs([experiment]))
    write(path, zero_optimization={"stage": 2, "overlap_comm": False})
    assert difference(before, collect_provenance(find_inputs([experiment]))) == f"{path} has changed"
