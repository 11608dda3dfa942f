"""The start of a continuation's trials: a checkpoint of another trial, and what that trial had
logged until then.

It is in the sweep folder of the continuation (``forked/``), so the parent may continue, delete its
checkpoints or be removed.
"""

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from grporecipe.errors import UserError
from grposweep.storage import paths
from grposweep.storage.checkpoints import Checkpoint, keep_copy
from grposweep.storage.records import Record

# bytes read at once
BLOCK = 1 << 20


@dataclass(frozen=True)
class ForkState(Record):
    """fork.json: the parent's sweep (a path), trial (a folder name) and seed, the optimizer step,
    and the checkpoint's hash.
    """

    FILE = f"{paths.FORK}/{paths.FORK_RECORD}"

    sweep: str
    trial: str
    step: int
    seed: int
    sha256: str

    def __str__(self) -> str:
        return f"{Path(self.sweep).name} trial {self.trial} at step {self.step}"

    @property
    def digest(self) -> str:
        """Return the value of ``trainer.fork``."""
        return self.sha256[:12]

    def is_of(self, sweep: Path, trial: str) -> bool:
        """Return whether the parent is this trial. A sweep's folder may have been moved, so its
        name counts.
        """
        return (Path(self.sweep).name, self.trial) == (sweep.name, trial)

    def checkpoint(self, sweep: Path) -> Checkpoint:
        """Return the copy of the checkpoint in a continuation's sweep folder."""
        return Checkpoint(sweep / paths.FORK / f"checkpoint-{self.step}", self.step)

    def keep(self, checkpoint: Path, logs: Path, sweep: Path) -> None:
        """Copy a checkpoint and the files in ``logs`` (metrics and completions) to a continuation's
        sweep, the record last.

        Files are hard links if the file system supports them, so a checkpoint takes its space once.
        """
        target = sweep / paths.FORK
        kept = ForkState.find(sweep)
        # the parent's folder may have been moved
        if kept is not None and replace(kept, sweep=self.sweep) == self:
            return
        shutil.rmtree(target, ignore_errors=True)
        # a running trial may delete its checkpoints; the hash reveals that
        with contextlib.suppress(OSError):
            keep_copy(checkpoint, target)
        if checkpoint_hash(self.checkpoint(sweep).path) != self.sha256:
            shutil.rmtree(target, ignore_errors=True)
            raise UserError(
                f"{checkpoint} could not be copied whole: its trial still runs and deleted it, "
                "or the disk is full. Wait until "
                "the trial has ended, or set --from to a step that it keeps."
            )
        _copy_logs(logs, target)
        self.write(sweep)


def checkpoint_hash(folder: Path) -> str:
    """Return a hash of the names and contents of all files of a checkpoint."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(os.fsencode(path.relative_to(folder)) + b"\0")
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()


def start_of_continuation(trial: Path, digest: str) -> Checkpoint:
    """Return the checkpoint that a continuation's trial starts from, and give the trial the logs
    until then.

    Raises UserError if the sweep of the trial has no such state.
    """
    sweep = trial.parent.parent
    state = ForkState.find(sweep)
    if state is None or state.digest != digest:
        raise UserError(
            f"trainer.fork={digest}: {sweep / paths.FORK} holds no such checkpoint, so this "
            "training has nothing to start from. "
            "Start it with 'grposweep continue', or set trainer.fork=null to train from the start."
        )
    _copy_logs(sweep / paths.FORK, trial)
    return state.checkpoint(sweep)


def _copy_logs(source: Path, target: Path) -> None:
    for name in (paths.METRICS, paths.COMPLETIONS, paths.PROMPT_REWARDS):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
