"""A checkpoint that was being written when its attempt was killed must not be resumed from, and
none is lost.
"""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from grposweep.storage.checkpoints import NOTE, drop_checkpoints, newest_checkpoint, set_aside

# for a number of ranks: files of torch.save, other files
Layout = Callable[[int], tuple[list[str], list[str]]]


def plain(ranks: int) -> tuple[list[str], list[str]]:
    """A single rank, or DDP."""
    return ["optimizer.pt", "scheduler.pt"], ["model.safetensors"]


def zero(ranks: int) -> tuple[list[str], list[str]]:
    """DeepSpeed's ZeRO-1 and ZeRO-2."""
    optimizer = [
        f"global_step5/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(ranks)
    ]
    return ["scheduler.pt", "global_step5/mp_rank_00_model_states.pt", *optimizer], [
        "latest",
        "model.safetensors",
    ]


def zero3(ranks: int) -> tuple[list[str], list[str]]:
    """DeepSpeed's ZeRO-3 in bfloat16, which has a prefix for the optimizer's files."""
    ranks_of = range(ranks)
    optimizer = [
        f"global_step5/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in ranks_of
    ]
    model = [f"global_step5/zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in ranks_of]
    return ["scheduler.pt", *optimizer, *model], ["latest", "model.safetensors"]


def fsdp(ranks: int) -> tuple[list[str], list[str]]:
    """FSDP, its state gathered."""
    return ["scheduler.pt", "optimizer.bin", "pytorch_model_fsdp.bin"], ["model.safetensors"]


def fsdp_sharded(ranks: int) -> tuple[list[str], list[str]]:
    """FSDP, each rank's own state; no safetensors."""
    parts = ("optimizer_0", "pytorch_model_fsdp_0")
    shards = [f"{part}/__{rank}_0.distcp" for part in parts for rank in range(ranks)]
    return ["scheduler.pt"], [*shards, *(f"{part}/.metadata" for part in parts)]


LAYOUTS: list[Layout] = [plain, zero, zero3, fsdp, fsdp_sharded]
# The weights of a sharded training are in its own files; model.safetensors is there for users of
# the model.
NOT_READ = {(layout, "model.safetensors") for layout in (zero, zero3, fsdp)}


def files_of(layout: Layout, ranks: int) -> list[str]:
    """Every file that a resume with this layout reads."""
    saved, others = layout(ranks)
    states = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    found = [*saved, *others, *states, "trainer_state.json"]
    return [name for name in found if (layout, name) not in NOT_READ]


def write_checkpoint(
    folder: Path, step: int, ranks: int = 1, layout: Layout = plain, adapter: bool = False
) -> Path:
    """A checkpoint with the files that transformers writes, and nothing in them."""
    path = folder / f"checkpoint-{step}"
    saved, others = layout(ranks)
    states = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    for name in (*saved, *states):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path / name, "w") as file:
            file.writestr("data", "x" * 100)
    for name in others:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"weights")
        if name.endswith(".metadata"):
            shards = {
                f"tensor{rank}": {"relative_path": f"__{rank}_0.distcp"} for rank in range(ranks)
            }
            (path / name).write_bytes(pickle.dumps({"storage_data": shards}))
        if name == "latest":
            (path / name).write_text("global_step5")
        if name == "model.safetensors" and adapter:
            (path / name).rename(path / "adapter_model.safetensors")
            (path / "adapter_config.json").write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def names(folder: Path) -> set[str]:
    """What the folder holds."""
    return {path.name for path in folder.iterdir()}


def test_the_newest_whole_checkpoint_is_taken_by_number(tmp_path: Path) -> None:
    """By number, not by name: 10 comes after 9. The first attempt of a trial has none."""
    assert newest_checkpoint(tmp_path / "checkpoints", ranks=1) is None
    for step in (5, 10, 9):
        write_checkpoint(tmp_path, step)
    found = newest_checkpoint(tmp_path, ranks=1)
    assert found is not None
    assert found.step == 10


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "LoRA"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_kind_of_whole_checkpoint_is_taken_and_stays(
    tmp_path: Path, layout: Layout, ranks: int, adapter: bool
) -> None:
    """With every way of sharding the training state."""
    write_checkpoint(tmp_path, 5, ranks, layout, adapter)
    set_aside(tmp_path, ranks)
    found = newest_checkpoint(tmp_path, ranks)
    assert found is not None
    assert found.step == 5
    assert names(tmp_path) == {"checkpoint-5"}


CASES = [(layout, name) for layout in LAYOUTS for name in files_of(layout, 2)]
# DeepSpeed may schedule the learning rate by itself, and torch.distributed.checkpoint's shards are
# not zip files.
OPTIONAL = {("zero", "scheduler.pt"), ("zero3", "scheduler.pt")}


def id_of(case: object) -> str:
    """What a test of one file is called."""
    return getattr(case, "__name__", str(case))


@pytest.mark.parametrize(
    ("layout", "name", "is_torn"),
    [(*case, False) for case in CASES if (case[0].__name__, case[1]) not in OPTIONAL]
    + [
        (*case, True)
        for case in CASES
        if case[1].endswith((".pt", ".pth", ".bin", ".json", ".metadata"))
    ],
    ids=id_of,
)
def test_a_checkpoint_without_one_of_its_files_or_its_end_is_passed_over_and_renamed(
    tmp_path: Path, layout: Layout, name: str, is_torn: bool
) -> None:
    """Whichever file the kill hit, the older checkpoint is taken, rotation never sees the torn one,
    and it says why.
    """
    write_checkpoint(tmp_path, 5, 2, layout)
    hit = write_checkpoint(tmp_path, 10, 2, layout) / name
    content = hit.read_bytes()[:-10]
    hit.unlink()
    if is_torn:
        hit.write_bytes(content)
    found = newest_checkpoint(tmp_path, ranks=2)
    assert found is not None
    assert found.step == 5
    set_aside(tmp_path, ranks=2)
    assert names(tmp_path) == {"checkpoint-5", "broken-checkpoint-10"}
    said = (tmp_path / "broken-checkpoint-10" / NOTE).read_text()
    assert "checkpoint-10 cannot be resumed from" in said
    assert name in said or not is_torn


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_torn_checkpoint_of_another_program_is_renamed_and_one_of_unknown_kind_is_left_to_it(
    tmp_path: Path, is_ours: bool
) -> None:
    """A program may know how to continue from its own files; our trainer's rotation would count
    them.
    """
    (write_checkpoint(tmp_path, 5) / "scheduler.pt").unlink()
    write_checkpoint(tmp_path, 10)
    (tmp_path / "checkpoint-10" / "optimizer.pt").rename(
        tmp_path / "checkpoint-10" / "own_optimizer"
    )
    set_aside(tmp_path, ranks=1, is_ours=is_ours)
    assert names(tmp_path) == {
        "broken-checkpoint-5",
        "broken-checkpoint-10" if is_ours else "checkpoint-10",
    }
    assert newest_checkpoint(tmp_path, ranks=1) is None


def test_a_checkpoint_of_another_number_of_ranks_is_no_torn_one(tmp_path: Path) -> None:
    """It is whole for those ranks; here it is renamed as what is not understood."""
    write_checkpoint(tmp_path, 5, ranks=4, layout=zero)
    assert newest_checkpoint(tmp_path, ranks=2) is None
    set_aside(tmp_path, ranks=2, is_ours=False)
    assert names(tmp_path) == {"checkpoint-5"}
    set_aside(tmp_path, ranks=2)
    assert (
        "written by 4 rank(s), and this trial has 2"
        in (tmp_path / "broken-checkpoint-5" / NOTE).read_text()
    )


def test_the_second_torn_checkpoint_of_a_step_replaces_none(tmp_path: Path) -> None:
    """A trial may die at the same step twice."""
    for _ in range(3):
        (write_checkpoint(tmp_path, 5) / "scheduler.pt").unlink()
        set_aside(tmp_path, ranks=1)
    assert names(tmp_path) == {
        "broken-checkpoint-5",
        "broken-checkpoint-5-2",
        "broken-checkpoint-5-3",
    }


def test_only_whole_checkpoints_are_deleted_at_the_end(tmp_path: Path) -> None:
    """Logged completions stay as well."""
    write_checkpoint(tmp_path, 5, 2, zero)
    (write_checkpoint(tmp_path, 10, 2, zero) / "latest").unlink()
    (tmp_path / "completions").mkdir()
    drop_checkpoints(tmp_path, ranks=2)
    assert names(tmp_path) == {"completions", "broken-checkpoint-10"}


def test_nothing_is_left_of_a_folder_with_whole_checkpoints_only(tmp_path: Path) -> None:
    """As if there had been none."""
    write_checkpoint(tmp_path / "checkpoints", 5)
    drop_checkpoints(tmp_path / "checkpoints", ranks=1)
    assert names(tmp_path) == set()


@pytest.mark.slow
def test_transformers_rotation_neither_counts_nor_deletes_what_was_renamed(tmp_path: Path) -> None:
    """It looks for `checkpoint-*`, so a suffix would not do."""
    from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints

    for step in (5, 10):
        write_checkpoint(tmp_path, step)
    (write_checkpoint(tmp_path, 15) / "scheduler.pt").unlink()
    set_aside(tmp_path, ranks=1)
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-10")
    rotate_checkpoints(str(tmp_path), save_total_limit=1)
    assert names(tmp_path) == {"checkpoint-10", "broken-checkpoint-15"}
