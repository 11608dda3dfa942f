"""Find the newest complete checkpoint of a training, and move the others out of the way.

A checkpoint is written in several steps, and each rank writes files of its own. A process that dies
while it saves leaves an incomplete folder. Which files belong to a checkpoint depends on how the
ranks divide the training state. Sources: transformers 5.23 trainer.py (`_save_checkpoint`),
accelerate 1.15 utils/fsdp_utils.py, DeepSpeed 0.19 runtime/engine.py (`save_checkpoint`), torch
2.13 distributed/checkpoint/filesystem.py.
"""

import contextlib
import os
import pickletools
import shutil
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from pathlib import Path

from grporecipe.files import parse_json, read_bytes

# transformers' rotation counts, and deletes, all folders that match `checkpoint-*`.
BROKEN = "broken-"
NOTE = "broken.txt"
# all that a checkpoint of the fake trainer holds
FAKE = "fake.json"
# and the step: a model, no checkpoint that a training could resume from
BEST = "best-"


@dataclass(frozen=True)
class Checkpoint:
    """A `checkpoint-N` folder, N in optimizer steps."""

    path: Path
    step: int


class State(Enum):
    """Whether a resume can read a checkpoint."""

    COMPLETE = "complete"
    # a process died while it wrote it
    TORN = "torn"
    # of an unknown kind, or written by another number of ranks
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """The state of a checkpoint; ``why`` it is not complete."""

    state: State
    why: str = ""


def newest_checkpoint(folder: Path, ranks: int) -> Checkpoint | None:
    """Return the complete checkpoint with the highest step, or None to start from the beginning."""
    return next(reversed(complete_checkpoints(folder, ranks)), None)


def find_resume(folder: Path, ranks: int) -> tuple[int, str]:
    """Return the step that a resume starts from (0: the beginning), and why from no later one;
    empty if there is none.
    """
    newest = newest_checkpoint(folder, ranks)
    step = 0 if newest is None else newest.step
    later = [
        f"{each.path.name} cannot be read ({examine_checkpoint(each, ranks).why})"
        for each in _all(folder)
        if each.step > step
    ]
    return step, " and ".join(later)


def complete_checkpoints(folder: Path, ranks: int) -> list[Checkpoint]:
    """Return the complete checkpoints, by step."""
    every = sorted(_all(folder), key=lambda each: each.step)
    return [each for each in every if examine_checkpoint(each, ranks).state is State.COMPLETE]


def keep_copy(checkpoint: Path, folder: Path) -> Path:
    """Link a checkpoint's files into another folder, so that they stay when its own one is cleared.
    Return where they are.
    """
    kept = folder / checkpoint.name
    shutil.copytree(checkpoint, kept, copy_function=_link)
    return kept


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        # a file system without links
        shutil.copy2(source, target)


def put_back(folder: Path, output: Path) -> None:
    """Move what `keep_copy` kept back if the output folder has no checkpoint as new, and delete it
    otherwise.
    """
    for kept in _all(folder):
        if all(found.step < kept.step for found in _all(output)):
            output.mkdir(exist_ok=True)
            kept.path.rename(output / kept.path.name)
    shutil.rmtree(folder, ignore_errors=True)


def set_aside(folder: Path, ranks: int, is_ours: bool = True) -> None:
    """Rename checkpoints that cannot be resumed from, with a note that says why. Nothing is
    deleted.

    transformers' rotation would count them and delete a complete one instead. A checkpoint of
    unknown kind may be one that another program can resume from by itself: it is renamed only if
    the folder ``is_ours``.
    """
    for checkpoint in _all(folder):
        finding = examine_checkpoint(checkpoint, ranks)
        if finding.state is State.TORN or (is_ours and finding.state is State.UNKNOWN):
            _rename(checkpoint, finding.why)


def drop_checkpoints(folder: Path, ranks: int) -> None:
    """Delete the complete checkpoints of a finished training. Logged completions stay, and so does
    what is not complete.
    """
    set_aside(folder, ranks)
    for checkpoint in _all(folder):
        if not checkpoint.path.is_symlink():
            shutil.rmtree(checkpoint.path)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def best_model(folder: Path, step: int) -> Path:
    """Return where the model of the best evaluation is until the training ends
    (``search.at=best``).
    """
    return folder / f"{BEST}{step}"


def drop_best_models(folder: Path, keep: Collection[int | None]) -> None:
    """Delete the models of evaluations that are no longer the best."""
    kept = {best_model(folder, step) for step in keep if step is not None}
    for path in folder.glob(f"{BEST}*"):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def take_best_model(folder: Path, step: int | None, model: Path) -> None:
    """Move the best evaluation's model to its final place, and delete the others. Without a best
    step nothing is moved.
    """
    if step is not None and best_model(folder, step).is_dir():
        # of an attempt that died after this
        shutil.rmtree(model, ignore_errors=True)
        best_model(folder, step).rename(model)
    drop_best_models(folder, keep=())


def examine_checkpoint(checkpoint: Checkpoint, ranks: int) -> Finding:
    """Tell whether everything that a resume with this number of ranks reads is there, to its
    end.
    """
    path = checkpoint.path
    if (path / FAKE).is_file():
        return Finding(State.COMPLETE)
    kinds = [
        lacks for marks, lacks in KINDS.items() if any(chain.from_iterable(map(path.glob, marks)))
    ]
    if not kinds:
        return Finding(State.UNKNOWN, "it holds no optimizer state of a known kind")
    written = {file.name for file in path.glob("rng_state*.pth")}
    wanted = {"rng_state.pth"} if ranks == 1 else {f"rng_state_{rank}.pth" for rank in range(ranks)}
    if written - wanted:
        return Finding(
            State.UNKNOWN, f"it was written by {len(written)} rank(s), and this trial has {ranks}"
        )
    lacking = [*kinds[0](path, ranks), *_torn(path, *sorted(wanted))]
    if _step(path) != checkpoint.step:
        lacking.append("trainer_state.json")
    if lacking:
        return Finding(State.TORN, f"{', '.join(lacking)}: missing or cut off")
    return Finding(State.COMPLETE)


def _replicated(path: Path, ranks: int) -> Iterator[str]:  # noqa: ARG001 - every kind takes the number of ranks
    """Plain training and DDP: rank 0 writes the whole state."""
    yield from _torn(path, "optimizer.pt", "scheduler.pt")
    if not any(path.glob("*.safetensors")):
        yield "*.safetensors"


def _deepspeed(path: Path, ranks: int) -> Iterator[str]:
    """ZeRO: a folder that `latest` names once all is written. Each rank writes its optimizer state,
    under ZeRO-3 its weights too.

    scheduler.pt is missing if DeepSpeed schedules the learning rate.
    """
    if (path / "scheduler.pt").exists():
        yield from _torn(path, "scheduler.pt")
    try:
        tag = (path / "latest").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        tag = ""
    if not tag:
        yield "latest"
        return
    yield from _of_each_rank(path, f"{tag}/*_optim_states.pt", ranks)
    own = f"{tag}/zero_pp_rank_*_model_states.pt"
    if any(path.glob(own)):
        yield from _of_each_rank(path, own, ranks)
    else:
        yield from _torn(path, f"{tag}/mp_rank_00_model_states.pt")


def _fsdp_sharded(path: Path, ranks: int) -> Iterator[str]:  # noqa: ARG001 - every kind takes the number of ranks
    """FSDP with a sharded state: torch's distributed checkpoints, whose `.metadata` is written last
    and names the rest.
    """
    yield from _torn(path, "scheduler.pt")
    for part in ("optimizer_0", "pytorch_model_fsdp_0"):
        shards = _shards(path / part / ".metadata")
        if not shards:
            yield f"{part}/.metadata"
        for name in shards:
            if not (path / part / name).is_file():
                yield f"{part}/{name}"


# Layouts of the training state: patterns of which one marks a folder, and what names its files that
# are missing or cut off, for a number of ranks. The first that matches: DeepSpeed's and FSDP's
# folders hold none of the others' files.
KINDS: dict[tuple[str, ...], Callable[[Path, int], Iterator[str]]] = {
    ("*/*_optim_states.pt",): _deepspeed,
    ("optimizer_0", "pytorch_model_fsdp_0"): _fsdp_sharded,
    # FSDP with a full state: rank 0 gathers and writes it
    ("optimizer.bin", "pytorch_model_fsdp.bin"): lambda path, _: _torn(
        path, "optimizer.bin", "pytorch_model_fsdp.bin", "scheduler.pt"
    ),
    ("optimizer.pt",): _replicated,
}


def _step(path: Path) -> int | None:
    """Return the optimizer step in trainer_state.json, or None if it cannot be read."""
    try:
        state = parse_json(read_bytes(path / "trainer_state.json"))
    except (OSError, ValueError):
        return None
    return state.get("global_step") if isinstance(state, dict) else None


def _torn(path: Path, *names: str) -> Iterator[str]:
    """Name the files that torch.save did not finish: it writes zip files, whose directory is their
    end.
    """
    for name in names:
        if not zipfile.is_zipfile(path / name):
            yield name


def _of_each_rank(path: Path, pattern: str, ranks: int) -> Iterator[str]:
    """Name what is torn among the files of all ranks, or the pattern if there are fewer files than
    ranks.
    """
    files = sorted(str(file.relative_to(path)) for file in path.glob(pattern))
    yield from _torn(path, *files)
    if len(files) < ranks:
        yield f"{pattern} ({len(files)} of {ranks})"


def _shards(metadata: Path) -> list[str]:
    """Return the names of the shards in a `.metadata` file, which is a pickle: read without running
    it. Empty if it is torn.
    """
    try:
        arguments = {str(word) for _, word, _ in pickletools.genops(metadata.read_bytes())}
    except (OSError, ValueError):
        # pickletools raises ValueError for a pickle without its end
        return []
    return sorted(name for name in arguments if name.endswith(".distcp"))


def _rename(checkpoint: Checkpoint, reason: str) -> None:
    """Rename a checkpoint so that no program takes it for `checkpoint-N`. Report it in the log and
    in a file next to it.
    """
    name = f"{BROKEN}{checkpoint.path.name}"
    target = checkpoint.path.with_name(name)
    number = 1
    while target.exists():
        number += 1
        target = checkpoint.path.with_name(f"{name}-{number}")
    checkpoint.path.rename(target)
    text = (
        f"{checkpoint.path.name} cannot be resumed from and was renamed to {target.name}: {reason}."
    )
    print(text, file=sys.stderr, flush=True)
    # a full disk may be the reason for the torn checkpoint
    with contextlib.suppress(OSError):
        (target / NOTE).write_text(
            f"{text}\nDelete the folder if you do not need it.\n", encoding="utf-8"
        )


def _all(folder: Path) -> Iterator[Checkpoint]:
    for path in list(folder.glob("checkpoint-*")):
        number = path.name.removeprefix("checkpoint-")
        if path.is_dir() and number.isdigit():
            yield Checkpoint(path, int(number))
