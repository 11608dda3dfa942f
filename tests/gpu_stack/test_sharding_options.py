"""Options of sharding change where things are, and not what is learned: real DeepSpeed and FSDP on two CPU ranks."""

import json
from pathlib import Path

import pytest

from grposweep.errors import ExitCode
from grposweep.train.sharding import deepspeed_config
from train.conftest import MakeTrial, metrics_of

from .conftest import Ranks, log_of, wrapped
from .test_sharded_training import TWO

pytestmark = pytest.mark.gpu_stack


def check_alike(make_trial: MakeTrial, ranks: Ranks, sharding: str, one: str, other: str) -> None:
    """Train twice with one override each; every metric of every step is the same."""
    overrides = (*TWO, f"trainer.sharding={sharding}", "schedule.max_steps=3")
    first, second = make_trial(*overrides, one), make_trial(*overrides, other, name="0001-b")
    for folder in (first, second):
        assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    assert len(wrapped(first) | wrapped(second)) == 1
    assert metrics_of(first, timeless=True) == metrics_of(second, timeless=True)


def test_fsdps_ranks_get_the_weights_that_the_first_one_has_loaded(make_trial: MakeTrial, ranks: Ranks) -> None:
    """As if each had loaded them."""
    key = "trainer.fsdp_config.cpu_ram_efficient_loading"
    check_alike(make_trial, ranks, "fsdp", f"{key}=true", f"{key}=false")


@pytest.mark.parametrize(("sharding", "offload"), [("zero2", "optimizer"), ("zero3", "all")])
def test_what_is_offloaded_learns_alike(make_trial: MakeTrial, ranks: Ranks, sharding: str, offload: str) -> None:
    """Torch's AdamW steps in main memory as it does on the device."""
    check_alike(make_trial, ranks, sharding, f"trainer.offload={offload}", "trainer.offload=none")


def test_a_file_of_deepspeeds_is_what_trains(make_trial: MakeTrial, ranks: Ranks, tmp_path: Path) -> None:
    """Our own configuration from a file trains as without it."""
    file = tmp_path / "zero2.json"
    file.write_text(json.dumps(deepspeed_config(2)))
    check_alike(make_trial, ranks, "zero2", f"trainer.deepspeed_config={file}", "trainer.offload=none")
