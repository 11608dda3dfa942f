"""Choose how many trials share a GPU, and advise NVIDIA's Multi-Process Service for them."""

import os
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rich.console import Console

from grporecipe.errors import UserError
from grporecipe.memory.estimate import GIB, estimate
from grposweep.config.to_setting import read_gpu
from grposweep.schema import AUTO, Cluster, Experiment
from grposweep.sweep.validate import ValidatedSpace

# valid points whose memory is estimated
ESTIMATED_POINTS = 100


def advise_mps(cluster: Cluster) -> str:
    """Return advice to start NVIDIA's Multi-Process Service for trials that share a GPU; empty if
    it runs or is not installed.

    Without it processes take turns on the GPU. Eight trials of 135 million weights on an H100 took
    1.52 seconds a step without it, 0.89 with it (benchmarks/gpu/RESULTS.md).
    """
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if (
        cluster.trials_per_gpu == 1
        or (pipe / "control").exists()
        or shutil.which("nvidia-cuda-mps-control") is None
    ):
        return ""
    return (
        f"cluster.trials_per_gpu={cluster.trials_per_gpu}: the trials take turns on a GPU, because "
        "NVIDIA's MPS does not run. Start it with nvidia-cuda-mps-control -d, and eight small "
        "trials take 0.6 of the time (H100)."
    )


def share_gpus(validated: ValidatedSpace, console: Console) -> Experiment:
    """Return the sweep's base experiment with a number of trials per GPU instead of ``auto``; the
    number is printed.

    As many trials as fit with the upper end of the largest estimate, and not more than this machine
    has CPU cores. Raises UserError if the memory of the GPU or of the trials is not known.
    """
    base = validated.base
    if base.cluster.trials_per_gpu != AUTO:
        return base
    limit = read_gpu(base.cluster)
    if limit is None:
        raise UserError(
            "cluster.trials_per_gpu=auto: the GPU's memory is not known. Set cluster.gpu=A100 or "
            "the like, cluster.gpu_memory_gib=80, or a number of trials."
        )
    points = islice(validated.validity.valid_points(), ESTIMATED_POINTS)
    estimates = [estimate(validated.validator.validate(point).setting) for point in points]
    needs = [memory.high / GIB for memory in estimates if memory is not None]
    if not needs:
        raise UserError(
            "cluster.trials_per_gpu=auto: the model's shape is not known, so its memory cannot be "
            "estimated. Set model.shape, or a number of trials."
        )
    share = max(min(int(limit / max(needs)), os.cpu_count() or 1), 1)
    console.print(
        f"cluster.trials_per_gpu=auto: {share}; the largest trial needs up to {max(needs):.1f} "
        f"of {limit:g} GiB"
    )
    return replace(base, cluster=replace(base.cluster, trials_per_gpu=share))
