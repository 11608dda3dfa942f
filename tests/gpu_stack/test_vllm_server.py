"""A real vLLM server (its CPU build) that grposweep starts, and trainers of all kinds that send it
their weights.
"""

import pytest

from grporecipe.errors import ExitCode
from grposweep.launchers.local import Local
from train.conftest import MakeTrial, metrics_of, result_of

from .conftest import (
    ROUNDING,
    SERVED,
    SERVER_SECONDS,
    STEPS,
    Ranks,
    differences,
    left_after,
    log_of,
    wrapped,
)
from .test_sharded_training import ADAPTERS

pytestmark = pytest.mark.gpu_stack

TWO = ("cluster.processes=2", "batch.per_device_train_batch_size=4")
# The overrides, and the type of the wrapped model
KINDS = {
    "one rank": ((), ""),
    "ZeRO-2": ((*TWO, "trainer.sharding=zero2"), "DeepSpeedEngine"),
    "ZeRO-3": ((*TWO, "trainer.sharding=zero3"), "DeepSpeedEngine"),
    "FSDP 2": ((*TWO, "trainer.sharding=fsdp"), "FSDP"),
    "LoRA": (ADAPTERS, ""),
    "ZeRO-3 and LoRA": ((*TWO, "trainer.sharding=zero3", *ADAPTERS), "DeepSpeedEngine"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_samples_from_the_weights_that_are_trained(
    make_trial: MakeTrial, ranks: Ranks, server: str, kind: str
) -> None:
    """In all twelve steps, while the weights change."""
    overrides, type_name = KINDS[kind]
    folder = make_trial(*SERVED, f"generation.vllm_server_base_url={server}", *overrides)
    assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    found = differences(folder)
    # pytest shows it with -rP, or where the test fails
    print(kind, found)
    assert len(found) == STEPS
    assert max(found) < ROUNDING
    assert all(line["update_size"] > 0 for line in metrics_of(folder) if line["kind"] == "train")
    assert all(name.startswith(type_name) for name in wrapped(folder))


def test_trl_alone_sends_a_server_the_weights_of_the_base_model(
    make_trial: MakeTrial, ranks: Ranks, server: str
) -> None:
    """The negative control of LoRA: without our copies TRL unmerges the adapter before its weights
    are sent.
    """
    learns_quickly = ("lr=1e-2", "schedule.max_steps=40")
    folder = make_trial(
        *SERVED, f"generation.vllm_server_base_url={server}", *ADAPTERS, *learns_quickly
    )
    assert ranks.train(folder, GPU_STACK_STOCK_LORA="1") == ExitCode.BAD_INPUT, log_of(folder)
    found = differences(folder)
    print(found)
    assert found[0] < ROUNDING
    assert len(found) < 40
    assert "the engine's weights are stale" in result_of(folder)["failure"]["message"]


def test_a_trial_starts_its_own_server_and_takes_it_down(
    make_trial: MakeTrial, ranks: Ranks
) -> None:
    """On this machine, on one of two GPUs; these are names, and both train and sample on the
    CPU.
    """
    own = Ranks(Local(ranks.launcher.processes, ["0", "1"], slots=1))
    folder = make_trial(
        *SERVED, "generation.vllm_gpus=1", f"generation.vllm_server_timeout={SERVER_SECONDS}"
    )
    marked = {"GPU_STACK_MARK": str(folder), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    assert own.train(folder, **marked) == ExitCode.FINISHED, log_of(folder)
    found = differences(folder)
    print(found)
    assert len(found) == STEPS
    assert max(found) < ROUNDING
    assert "Application startup complete" in (folder / "logs" / "vllm.log").read_text()
    assert not left_after(30, str(folder))
