"""A rank that srun started finds its place in Slurm's variables, which torch does not read."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

FIRST_PORT, PORTS = 20_000, 10_000  # below what systems give to outgoing connections


def take_slurm_place(folder: Path) -> None:
    """Set what torch.distributed reads, write to logs/rank-N.log, and keep the warning signal until training hears it.

    Only where the job's script says so: an interactive Slurm shell has the same variables.
    """
    if os.environ.get("GRPOSWEEP_RANKS") != "slurm":
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # it would end a process that is still importing torch
    rank = int(os.environ["SLURM_PROCID"])
    os.environ.update(torch_place(os.environ))
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    attempt = int(os.environ["GRPOSWEEP_ATTEMPT"]) + restarts
    os.environ["GRPOSWEEP_ATTEMPT"] = str(attempt)
    log = os.open(folder / "logs" / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)


def torch_place(slurm: Mapping[str, str]) -> dict[str, str]:
    """torch.distributed's variables out of srun's; none for a single rank, which needs no company.

    The first rank runs where srun does, on the job's first node; MASTER_ADDR from the job's setup lines wins.
    """
    ranks = int(slurm["SLURM_STEP_NUM_TASKS"])
    if ranks == 1:
        return {}
    return {
        "RANK": slurm["SLURM_PROCID"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": slurm.get("MASTER_ADDR") or slurm["SLURM_LAUNCH_NODE_IPADDR"],
        "MASTER_PORT": slurm.get("MASTER_PORT") or str(FIRST_PORT + int(slurm["SLURM_JOB_ID"]) % PORTS),
    }
