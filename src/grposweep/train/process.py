"""A rank's process: its place among the ranks, and its watchdog.

The watchdog ends a rank that shows no sign of life for too long, with every thread's stack in its
log. The interpreter's faulthandler has a thread for this that does not need the interpreter's lock,
so a rank that hangs in a collective or in CUDA is ended too. A process that is stopped as a whole
cannot notice; its controller does.
"""

import faulthandler
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from grporecipe.registries import load_entry
from grposweep.process.variables import GPU_TRIALS, RANKS, RankPlace
from grposweep.schema import Experiment
from grposweep.schema.registries import LAUNCHERS
from grposweep.storage import paths

RESTARTS = "GRPOSWEEP_RESTARTS"
PORT = "GRPOSWEEP_PORT"
# by which other nodes reach this one
ADDRESS = "GRPOSWEEP_ADDRESS"
REACH_SECONDS = 45.0
# for a server that no job started; below what systems give to outgoing connections
WEIGHTS_PORT = 20_000


def take_rank_place(folder: Path) -> None:
    """Set what torch.distributed reads, write to logs/rank-N.log, and keep the warning signal until
    training hears it.

    Only if the job's script names a launcher in ``GRPOSWEEP_RANKS``: an interactive shell on a
    cluster has the same variables. Otherwise the launcher has set torch's own.
    """
    if RANKS not in os.environ:
        return
    # it would end a process that is still importing torch
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    scheduler = load_entry(LAUNCHERS[os.environ[RANKS]]).scheduler
    assert scheduler is not None, "a job's script names the launcher of its scheduler"
    place = scheduler.rank_place(os.environ)
    os.environ.update(torch_variables(place, os.environ))
    os.environ["GRPOSWEEP_ATTEMPT"] = str(int(os.environ["GRPOSWEEP_ATTEMPT"]) + place.restarts)
    os.environ[RESTARTS], os.environ[PORT] = str(place.restarts), str(place.port)
    if (server := urlsplit(os.environ.get("GRPOSWEEP_VLLM_SERVER", "")).hostname) and (
        own := address_towards(server)
    ):
        # vLLM guesses it by a route to the internet, which a node may not have
        os.environ.setdefault("VLLM_HOST_IP", own)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    log = os.open(folder / paths.LOGS / f"rank-{place.rank}.log", flags, 0o644)
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)


def torch_variables(place: RankPlace, environment: Mapping[str, str]) -> dict[str, str]:
    """Return torch.distributed's variables; none for a single rank, which needs no group.

    MASTER_ADDR and MASTER_PORT from the job's setup lines win.
    """
    if place.ranks == 1:
        return {}
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.ranks),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or place.address,
        "MASTER_PORT": environment.get("MASTER_PORT") or str(place.port),
    }


def address_towards(host: str) -> str | None:
    """Return this machine's address on its route to another one, or None without a route. Nothing
    is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def reach_first_rank(seconds: float = REACH_SECONDS) -> None:
    """Wait until this rank's machine reaches that of the first one, whose port may still be closed.

    Raises ConnectionError after ``seconds``. torch.distributed would wait half an hour and print
    nothing.
    """
    rank, address, port = (
        os.environ.get(name, "") for name in ("RANK", "MASTER_ADDR", "MASTER_PORT")
    )
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, int(port)), timeout=5.0).close()
        except ConnectionRefusedError:
            return
        except OSError as error:
            if time.monotonic() > until:
                raise ConnectionError(
                    f"rank {rank} cannot reach the first rank at {address}:{port} ({error}). Check "
                    "the network between the nodes, or on one machine its loopback interface."
                ) from error
            time.sleep(1.0)
        else:
            return


def restarts() -> int:
    """Return how often the launcher has restarted this rank's job."""
    return int(os.environ.get(RESTARTS) or 0)


def port_for_weights() -> int:
    """Return the port over which weights are sent to a vLLM server; it differs between the jobs of
    a node.
    """
    return int(os.environ[PORT]) + 2 if PORT in os.environ else WEIGHTS_PORT


def devices(experiment: Experiment) -> float:
    """Return how many devices this rank's attempt holds, by the launcher that started it; a part of
    one if it shares it.
    """
    kind = os.environ.get(RANKS)
    if kind:
        return float(load_entry(LAUNCHERS[kind]).describe(experiment.cluster).devices)
    return (experiment.cluster.processes + experiment.generation.vllm_gpus) / gpu_trials()


def has_gpu() -> bool:
    """Return whether the launcher or the scheduler has given this attempt GPUs."""
    return any(
        map(os.environ.get, ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"))
    )


def gpu_trials() -> int:
    """Return how many trials share this one's GPU."""
    return int(os.environ.get(GPU_TRIALS, 1))


# the descriptor: sys.stderr may be something else by now
STDERR = 2
# of the time allowed: calls within it after the last one are ignored, because each starts a new
# thread
SPARED = 0.05

# seconds of the monotonic clock; as the thread itself, one per process
_fed = -math.inf


def feed(minutes: float | None) -> None:
    """Restart this rank's watchdog: without another call within ``minutes`` (None: never) the rank
    ends with code 1.

    Every thread's stack is then in its log. It may end a twentieth of that time early.
    """
    global _fed
    if minutes is None or time.monotonic() - _fed < SPARED * minutes * 60:
        return
    # no thread can be started (`ulimit -u`): the controller watches the heartbeat as well
    with suppress(RuntimeError):
        faulthandler.dump_traceback_later(minutes * 60, exit=True, file=STDERR)
    _fed = time.monotonic()


def name_process(rank: int, pid: int) -> None:
    """Write to the log how to see where this rank's process is while it shows no sign of life."""
    host = socket.gethostname()
    print(
        f"rank {rank} on {host} is process {pid}. If it is silent: py-spy dump --pid {pid}",
        file=sys.stderr,
        flush=True,
    )


def release() -> None:
    """Stop the watchdog."""
    global _fed
    faulthandler.cancel_dump_traceback_later()
    _fed = -math.inf
