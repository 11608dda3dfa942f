"""The memory of this machine's GPUs and the processes that hold it, as nvidia-smi lists them."""

import os
import re
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grposweep.process import exists

VISIBLE = "CUDA_VISIBLE_DEVICES"
# of one process; torch's CUDA context takes more, a desktop program's less
BUSY_MIB = 300
# of a GPU's memory; less may be a display's. In a container the processes of others cannot be
# listed
BUSY_SHARE = 0.2
# of a GPU's memory, as desktop programs hold; a trial that lacks so little is too large itself
SMALL_SHARE = 0.05
MIB_OF_GIB = 1024
# without its persistence daemon a driver takes seconds to load
TIMEOUT_SECONDS = 60.0
# nvidia-smi's message if the driver works but there is no GPU; it still fails
NO_DEVICES = "No devices were found"


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU in GiB. ``held`` is by process id, and empty if nvidia-smi lists no
    processes.
    """

    total: float
    used: float
    held: Mapping[int, float]

    @property
    def free(self) -> float:
        """Return the free memory in GiB."""
        return self.total - self.used


def read_memory(gpus: Collection[str]) -> dict[str, GpuMemory]:
    """Return the memory of each GPU, by its name in CUDA_VISIBLE_DEVICES. A GPU that cannot be
    identified is left out.

    A number is a position in CUDA's order, which is that of the PCI bus if all GPUs are of one
    model, or if it is set so. Parts of a GPU (MIG) are left out.
    """
    rows = query("gpu=index,uuid,name,mig.mode.current,memory.used,memory.total")[0] if gpus else []
    is_bus_order = VISIBLE not in os.environ or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    has_order = is_bus_order or len({name for _, _, name, *_ in rows}) == 1
    apps = query("compute-apps=gpu_uuid,pid,used_memory")[0] if rows else []
    memory: dict[str, GpuMemory] = {}
    for index, uuid, _, mig, used, total in rows:
        own = {
            gpu
            for gpu in gpus
            if (gpu == index and has_order) or (gpu.startswith("GPU-") and uuid.startswith(gpu))
        }
        if mig == "Enabled" or not (used.isdigit() and total.isdigit()):
            continue
        listed = [(pid, size) for gpu, pid, size in apps if gpu == uuid and pid.isdigit()]
        # it is not on some systems
        is_known = all(size.isdigit() for _, size in listed)
        held = {int(pid): mib(size) / MIB_OF_GIB for pid, size in listed} if is_known else {}
        memory |= dict.fromkeys(
            own, GpuMemory(mib(total) / MIB_OF_GIB, mib(used) / MIB_OF_GIB, held)
        )
    return memory


@dataclass(frozen=True)
class Holders:
    """The processes of others that leave an attempt too little memory, in one line, and their ids
    as far as they are listed.
    """

    text: str
    processes: tuple[int, ...] = ()


def find_holders(
    memory: GpuMemory,
    owns: Callable[[int], bool],
    running: Sequence[float],
    needed: float,
    was_crowded_out: bool,
) -> Holders | None:
    """Return who holds the memory that an attempt needs on a GPU; None if it fits, or if others are
    not the reason.

    ``needed``, and ``running`` of the sweep's attempts there, are GiB, 0 if not known; running
    attempts may still grow to it. If they alone take too much, others are not the reason, unless
    others have crowded an attempt of the trial out before. Until then only an estimate says that it
    does not fit, and others must hold much.
    """
    others = {pid: gib for pid, gib in memory.held.items() if not owns(pid)}
    ours = sum(memory.held.values()) - sum(others.values())
    # In a container nvidia-smi may list no processes, or by ids that are not valid here.
    is_listed = not running or ours > 0 or any(map(exists, memory.held))
    free = memory.free
    if is_listed:
        free -= max(sum(running) - ours, 0.0)
    tail = f"; it needs {needed:.3g} GiB, {max(free, 0.0):.3g} are free"
    if needed <= free:
        return None
    if not is_listed:
        text = (
            f"{memory.used:.3g} GiB in use by this sweep's trials and by processes that "
            "cannot be listed here"
        )
        return Holders(text + tail) if was_crowded_out else None
    listed = {pid: gib for pid, gib in others.items() if gib * MIB_OF_GIB > BUSY_MIB}
    unlisted = memory.used - ours - sum(others.values())
    foreign = sum(listed.values())
    if unlisted > BUSY_SHARE * memory.total:
        foreign += unlisted
    least = SMALL_SHARE if was_crowded_out else BUSY_SHARE
    if foreign <= memory.total * least or not (was_crowded_out or needed <= free + foreign):
        return None
    return Holders(describe_holders(foreign, sorted(listed)) + tail, tuple(sorted(listed)))


def describe_holders(gib: float, processes: Sequence[int]) -> str:
    """Return who holds this much memory of a GPU, which are not processes of this sweep."""
    amount = f"{gib:.3g} GiB"
    if not processes:
        return f"{amount} held by processes that cannot be listed here, not ours"
    return (
        f"{amount} held by process{'es' * (len(processes) > 1)} "
        f"{', '.join(map(str, processes))}, not ours"
    )


def query(what: str) -> tuple[list[list[str]], str]:
    """Return the rows of an nvidia-smi query, and why it failed; empty if it did not."""
    command = ["nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], getattr(error, "strerror", None) or f"no answer in {TIMEOUT_SECONDS:g} s"
    if done.returncode:
        output = f"{done.stdout} {done.stderr}"
        if NO_DEVICES in output:
            return [], ""
        return [], " ".join(output.split())[:200] or f"exit code {done.returncode}"
    rows = [re.split(r"\s*,\s*", line.strip()) for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == what.count(",") + 1], ""


def mib(text: str) -> int:
    """Parse an amount of memory of nvidia-smi; 0 if the driver does not report it."""
    return int(text) if text.isdigit() else 0


def ancestors(pid: int) -> set[int]:
    """Return the ids of a process and of its ancestors."""
    pids: set[int] = set()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        try:
            status = (Path("/proc") / str(pid) / "stat").read_text(
                encoding="utf-8", errors="replace"
            )
        except OSError:
            break
        # the name in brackets may hold anything
        pid = int(status.rpartition(")")[2].split()[1])
    return pids
