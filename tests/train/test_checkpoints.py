"""A checkpoint that was being written when its attempt was killed must not be resumed from."""

import json
import zipfile
from pathlib import Path

import pytest

from grposweep.train.checkpoints import drop_broken, newest_checkpoint


def write_checkpoint(folder: Path, step: int, ranks: int = 1) -> Path:
    """A checkpoint with the files that a resume reads, and nothing in them."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (path / "model.safetensors").write_bytes(b"weights")
    states = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    for name in ("optimizer.pt", "scheduler.pt", *states):
        with zipfile.ZipFile(path / name, "w") as file:
            file.writestr("data", "x" * 100)
    return path


def test_the_newest_whole_checkpoint_is_taken_by_number(tmp_path: Path) -> None:
    """By number, not by name: 10 comes after 9."""
    for step in (5, 10, 9):
        write_checkpoint(tmp_path, step)
    found = newest_checkpoint(tmp_path, ranks=1)
    assert found is not None
    assert found.step == 10


def test_no_folder_is_no_checkpoint(tmp_path: Path) -> None:
    """The first attempt of a trial starts at the beginning."""
    assert newest_checkpoint(tmp_path / "checkpoints", ranks=1) is None


@pytest.mark.parametrize("name", ["trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_a_half_written_checkpoint_is_passed_over_and_dropped(tmp_path: Path, name: str, damage: str) -> None:
    """Whichever file the kill hit, the older checkpoint is taken and rotation never sees the broken one."""
    write_checkpoint(tmp_path, 5)
    broken = write_checkpoint(tmp_path, 10) / name
    broken.write_bytes(broken.read_bytes()[:-10]) if damage == "torn" else broken.unlink()
    found = newest_checkpoint(tmp_path, ranks=1)
    assert found is not None
    assert found.step == 5
    drop_broken(tmp_path, ranks=1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_every_ranks_random_state_must_be_there(tmp_path: Path) -> None:
    """Rank 0 may finish saving while rank 1 is still at it."""
    path = write_checkpoint(tmp_path, 5, ranks=2)
    assert newest_checkpoint(tmp_path, ranks=2) is not None
    (path / "rng_state_1.pth").unlink()
    assert newest_checkpoint(tmp_path, ranks=2) is None
