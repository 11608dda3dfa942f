"""``cluster.trials_per_gpu=auto``: how many trials of a sweep fit a GPU at once, by the memory estimate."""

import os
from dataclasses import replace
from itertools import islice

from rich.console import Console

from grporecipe.errors import UserError
from grporecipe.memory.estimate import GIB, estimate
from grposweep.config.to_setting import read_gpu
from grposweep.schema import AUTO, Experiment
from grposweep.sweep.start import ValidatedSpace

ESTIMATED = 100  # valid points whose memory is estimated


def share_gpus(judged: ValidatedSpace, console: Console) -> Experiment:
    """Return the sweep's base experiment with a number of trials per GPU instead of ``auto``; the number is printed.

    As many trials as fit with the upper end of the largest estimate, and not more than this machine has CPU cores.
    Raises UserError if the memory of the GPU or of the trials is not known.
    """
    base = judged.base
    if base.cluster.trials_per_gpu != AUTO:
        return base
    limit = read_gpu(base.cluster)
    if limit is None:
        raise UserError(
            "cluster.trials_per_gpu=auto: the GPU's memory is not known. Set cluster.gpu=A100 or the like, "
            "cluster.gpu_memory_gib=80, or a number of trials."
        )
    settings = (judged.validator.validate(point).setting for point in islice(judged.validity.valid_points(), ESTIMATED))
    needs = [memory.high / GIB for setting in settings if (memory := estimate(setting)) is not None]
    if not needs:
        raise UserError(
            "cluster.trials_per_gpu=auto: the model's shape is not known, so its memory cannot be estimated. Set "
            "model.shape, or a number of trials."
        )
    share = max(min(int(limit / max(needs)), os.cpu_count() or 1), 1)
    console.print(
        f"cluster.trials_per_gpu=auto: {share}; the largest trial needs up to {max(needs):.1f} of {limit:g} GiB",
        highlight=False,
    )
    return replace(base, cluster=replace(base.cluster, trials_per_gpu=share))
