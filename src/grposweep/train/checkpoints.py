"""Which checkpoint to go on from: the newest that is whole.

transformers writes the weights first and trainer_state.json last, but neither atomically nor in step with the other
ranks' random states: an attempt killed while saving leaves a folder that looks like a checkpoint and is none.
"""

import json
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint-N folder, N in optimizer steps."""

    path: Path
    step: int


def newest_checkpoint(folder: Path, ranks: int) -> Checkpoint | None:
    """The whole checkpoint with the highest step; None to start from the beginning."""
    whole = [checkpoint for checkpoint in _all(folder) if is_whole(checkpoint, ranks)]
    return max(whole, key=lambda checkpoint: checkpoint.step, default=None)


def drop_broken(folder: Path, ranks: int) -> None:
    """Delete half-written checkpoints: transformers' rotation would count them and delete a whole one instead."""
    for checkpoint in _all(folder):
        if not is_whole(checkpoint, ranks):
            shutil.rmtree(checkpoint.path)


def drop_checkpoints(folder: Path) -> None:
    """Delete all checkpoints; logged completions beside them stay."""
    for checkpoint in _all(folder):
        shutil.rmtree(checkpoint.path)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def is_whole(checkpoint: Checkpoint, ranks: int) -> bool:
    """Whether everything that a resume reads is there, to its end."""
    path = checkpoint.path
    states = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
    try:
        state = json.loads((path / "trainer_state.json").read_text())
    except (OSError, json.JSONDecodeError):
        return False
    # torch.save writes zip files, whose directory is their end: a torn one has none.
    torn = [name for name in (*states, "optimizer.pt", "scheduler.pt") if not zipfile.is_zipfile(path / name)]
    return state.get("global_step") == checkpoint.step and not torn and any(path.glob("*.safetensors"))


def _all(folder: Path) -> Iterator[Checkpoint]:
    for path in list(folder.glob("checkpoint-*")):
        number = path.name.removeprefix("checkpoint-")
        if path.is_dir() and number.isdigit():
            yield Checkpoint(path, int(number))
