"""An interrupted sharded training equals an uninterrupted one bit for bit: real DeepSpeed and FSDP
on two CPU ranks.
"""

import hashlib
from pathlib import Path

import pytest

from grporecipe.errors import ExitCode
from train.conftest import MakeTrial, control, metrics_of, result_of

from .conftest import Ranks, log_of, wrapped

pytestmark = pytest.mark.gpu_stack

TWO = ("cluster.processes=2", "batch.per_device_train_batch_size=4")
ADAPTERS = (
    "model.lora.r=16",
    "model.lora.r=4",
    "model.lora.alpha=8",
    "model.lora.target_modules=[all-linear]",
)
# trainer.sharding, FSDP's kind of state, the type of the wrapped model, the file that proves the
# kind of checkpoint
KINDS = {
    "zero1": ("zero1", "", "DeepSpeedEngine", "latest"),
    "zero2": ("zero2", "", "DeepSpeedEngine", "latest"),
    "zero3": (
        "zero3",
        "",
        "DeepSpeedEngine",
        "global_step2/zero_pp_rank_1_mp_rank_00_model_states.pt",
    ),
    "fsdp": ("fsdp", "", "FSDP", "optimizer.bin"),
    "fsdp_sharded": ("fsdp", "SHARDED_STATE_DICT", "FSDP", "optimizer_0/.metadata"),
}


def digests(folder: Path) -> dict[str, str]:
    """What is in the files of a folder's trained weights, by their names."""
    found = sorted([*folder.rglob("*.safetensors"), *folder.rglob("*.distcp")])
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


def weights(folder: Path) -> dict[str, str]:
    """Those of what a finished trial keeps; there are some."""
    result = result_of(folder)
    found = digests(folder / (result["model"] or result["checkpoint"]))
    assert found
    return found


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "LoRA"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_training_equals_an_uninterrupted_one(
    make_trial: MakeTrial, ranks: Ranks, kind: str, adapter: bool
) -> None:
    """Metrics of every step and the final weights; the model was really sharded, and the checkpoint
    was really used.

    torch may read weights only, of all files that it is asked to read.
    """
    sharding, state, type_name, file = KINDS[kind]
    # FSDP writes no safetensors with a sharded state, so there is no model to keep: its checkpoint
    # is.
    keep = "last" if state else "best"
    overrides = (
        *TWO,
        *(ADAPTERS if adapter else ()),
        f"trainer.sharding={sharding}",
        f"trainer.keep={keep}",
    )
    environment = {"GPU_STACK_STATE": state}
    stopped = make_trial(*overrides)
    straight = make_trial(*overrides, name="0001-b")
    control(stopped, "pause", until_step=2)
    assert ranks.train(stopped, **environment) == ExitCode.STOPPED, log_of(stopped)
    assert (stopped / result_of(stopped)["checkpoint"] / file).is_file()
    (stopped / "control.json").unlink()
    safe = {**environment, "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}
    assert ranks.train_again(stopped, **safe) == ExitCode.FINISHED, log_of(stopped)
    assert ranks.train(straight, **environment) == ExitCode.FINISHED, log_of(straight)
    assert {name.startswith(type_name) for name in wrapped(stopped) | wrapped(straight)} == {True}
    steps = [
        (line["attempt"], line["step"]) for line in metrics_of(stopped) if line["kind"] == "train"
    ]
    assert steps == [(0, 1), (0, 2), (1, 3), (1, 4)]
    assert metrics_of(stopped, timeless=True) == metrics_of(straight, timeless=True)
    assert all(line["update_size"] > 0 for line in metrics_of(straight) if line["kind"] == "train")
    assert weights(stopped) == weights(straight)


@pytest.mark.parametrize("kind", ["zero2", "zero3", "fsdp", "fsdp_sharded"])
def test_a_torn_checkpoint_is_renamed_and_the_older_one_is_used(
    make_trial: MakeTrial, ranks: Ranks, kind: str
) -> None:
    """Rank 1 died while it saved step 3: the trial continues from step 2, and what it had of step 3
    is kept.
    """
    sharding, state, _, _ = KINDS[kind]
    folder = make_trial(
        *TWO, f"trainer.sharding={sharding}", "trainer.keep=all", "schedule.checkpoints=4"
    )
    environment = {"GPU_STACK_STATE": state}
    control(folder, "pause", until_step=3)
    assert ranks.train(folder, **environment) == ExitCode.STOPPED, log_of(folder)
    (folder / "checkpoints" / "checkpoint-3" / "rng_state_1.pth").unlink()
    (folder / "control.json").unlink()
    assert ranks.train_again(folder, **environment) == ExitCode.FINISHED, log_of(folder)
    steps = [
        (line["attempt"], line["step"]) for line in metrics_of(folder) if line["kind"] == "train"
    ]
    assert steps == [(0, 1), (0, 2), (1, 3), (1, 4)]
    found = {path.name for path in (folder / "checkpoints").iterdir()}
    assert found == {"broken-checkpoint-3", *(f"checkpoint-{step}" for step in (1, 2, 3, 4))}
    assert "renamed to broken-checkpoint-3" in log_of(folder)


def test_fsdp_that_accelerate_drops_is_refused_and_not_trained_as_ddp(
    make_trial: MakeTrial, ranks: Ranks
) -> None:
    """What accelerate 1.15 does on CPU ranks without our patch: it says nothing, and every rank
    holds everything.
    """
    folder = make_trial(*TWO, "trainer.sharding=fsdp")
    assert ranks.train(folder, GPU_STACK_STOCK_ACCELERATE="1") == ExitCode.BAD_INPUT
    assert "accelerate does not apply it here (its type of training is MULTI_CPU)" in log_of(folder)
    assert not wrapped(folder)
