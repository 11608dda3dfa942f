"""How much disk a sweep will need, before it starts."""

import shutil
from pathlib import Path

from grposweep.schema import Experiment

BYTES_TRAINED = 12  # a checkpointed parameter: float32 weight and AdamW's two moments
LOG_BYTES = 2_000_000  # metrics, logs and tracker files of a trial, generously


def estimate_bytes(experiment: Experiment, parameters: int, trials: int, slots: int) -> int:
    """Peak bytes under the sweep folder: checkpoints of what runs at once, what ``trainer.keep`` leaves, and logs."""
    trained = parameters // 100 if experiment.model.lora.enabled else parameters
    weight_bytes = 2 if experiment.model.dtype == "bfloat16" else 4
    checkpoint = trained * BYTES_TRAINED
    running = 2 * checkpoint * slots  # the next one is written before the last is deleted
    kept = {
        "none": 0,
        "best": 2 * parameters * weight_bytes,  # a new winner is saved before the old one goes
        "last": checkpoint * trials,
        "all": checkpoint * trials * max(experiment.schedule.checkpoints, 1),
    }[experiment.trainer.keep]
    return running + kept + LOG_BYTES * trials


def disk_report(needed: int, folder: Path) -> str:
    """One line: what will be needed and what is free; a warning where it will not do."""
    free = shutil.disk_usage(folder).free
    line = f"disk: about {_gib(needed)} needed, {_gib(free)} free"
    if needed > free:
        line += " - not enough: set trainer.keep=none, fewer schedule.checkpoints, or another outputs=... folder"
    return line


def _gib(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
