"""A rank that srun started finds its place in Slurm's variables, which torch does not read.

Every rank's own watchdog: one that shows no sign of life for too long says where it stands, and ends.

The interpreter's faulthandler has a thread for this that needs no lock of the interpreter's, so a rank that hangs in a
collective or in CUDA is ended too. A process that is stopped as a whole cannot notice; its controller does.
"""

import faulthandler
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from grposweep.storage import paths

FIRST_PORT, PORTS = 20_000, 10_000  # below what systems give to outgoing connections


def export_slurm_ranks(folder: Path) -> None:
    """Set what torch.distributed reads, write to logs/rank-N.log, and keep the warning signal until training hears it.

    Only where the job's script says so: an interactive Slurm shell has the same variables.
    """
    if os.environ.get("GRPOSWEEP_RANKS") != "slurm":
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})  # it would end a process that is still importing torch
    rank = int(os.environ["SLURM_PROCID"])
    os.environ.update(torchrun_ranks(os.environ))
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    attempt = int(os.environ["GRPOSWEEP_ATTEMPT"]) + restarts
    os.environ["GRPOSWEEP_ATTEMPT"] = str(attempt)
    log = os.open(folder / paths.LOGS / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)


def torchrun_ranks(slurm: Mapping[str, str]) -> dict[str, str]:
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


STDERR = 2  # the descriptor: sys.stderr may be something else by now
SPARED = 0.05  # of the time allowed: as long after one feeding the next are not passed on, each of which starts a thread anew

_fed = -math.inf  # seconds of the monotonic clock; as the thread itself, one a process


def feed(minutes: float | None) -> None:
    """This rank lives; it ends with code 1, and every thread's stack in its log, unless fed again in time.

    It may end a twentieth of that time early.
    """
    global _fed
    if minutes is None or time.monotonic() - _fed < SPARED * minutes * 60:
        return
    faulthandler.dump_traceback_later(minutes * 60, exit=True, file=STDERR)
    _fed = time.monotonic()


def release() -> None:
    """Nothing is watched any more."""
    global _fed
    faulthandler.cancel_dump_traceback_later()
    _fed = -math.inf
