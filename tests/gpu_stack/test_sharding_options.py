"""Options of sharding change where things are, not what is learned: real DeepSpeed and FSDP on two
CPU ranks.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import ExitCode
from grposweep.train._trl_config import deepspeed_config
from train.conftest import MakeTrial, metrics_of

from .conftest import Ranks, log_of, wrapped
from .test_sharded_training import TWO

pytestmark = pytest.mark.gpu_stack


Lines = list[dict[str, Any]]


def train_both(
    make_trial: MakeTrial, ranks: Ranks, sharding: str, one: str, other: str
) -> tuple[Lines, Lines]:
    """Train twice with one override each; return the metrics of both."""
    overrides = (*TWO, f"trainer.sharding={sharding}", "schedule.max_steps=3")
    first = make_trial(*overrides, one)
    second = make_trial(*overrides, other, name="0001-b")
    for folder in (first, second):
        assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    assert len(wrapped(first) | wrapped(second)) == 1
    return metrics_of(first, timeless=True), metrics_of(second, timeless=True)


def test_fsdps_ranks_get_the_weights_that_the_first_one_has_loaded(
    make_trial: MakeTrial, ranks: Ranks
) -> None:
    """As if each had loaded them."""
    key = "trainer.fsdp_config.cpu_ram_efficient_loading"
    once, each = train_both(make_trial, ranks, "fsdp", f"{key}=true", f"{key}=false")
    assert once == each


@pytest.mark.parametrize(("sharding", "offload"), [("zero2", "optimizer"), ("zero3", "all")])
def test_what_is_offloaded_learns_alike(
    make_trial: MakeTrial, ranks: Ranks, sharding: str, offload: str
) -> None:
    """But for rounding: DeepSpeed adds the norms of offloaded gradients in another order (1e-7 of
    the norm was seen).
    """
    away, here = train_both(
        make_trial, ranks, sharding, f"trainer.offload={offload}", "trainer.offload=none"
    )
    # 3 steps, evaluations before, after the second and at the end
    assert len(away) == len(here) == 6
    for line, other in zip(away, here, strict=True):
        assert line.pop("kind") == other.pop("kind")
        assert line == pytest.approx(other, rel=1e-5, abs=1e-7)


def test_a_file_of_deepspeeds_is_what_trains(
    make_trial: MakeTrial, ranks: Ranks, tmp_path: Path
) -> None:
    """Our own configuration from a file trains as without it."""
    file = tmp_path / "zero2.json"
    file.write_text(json.dumps(deepspeed_config(2)))
    named, ours = train_both(
        make_trial, ranks, "zero2", f"trainer.deepspeed_config={file}", "trainer.offload=none"
    )
    assert named == ours
