"""The memory of this machine's GPUs and the processes that hold it, as nvidia-smi lists them."""

import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
BUSY_MIB = 300  # of one process; torch's CUDA context takes more, a desktop program's less
BUSY_SHARE = 0.2  # of a GPU's memory; less may be a display's. In a container the processes of others cannot be listed
MIB_OF_GIB = 1024
TIMEOUT_SECONDS = 60.0  # without its persistence daemon a driver takes seconds to load
NO_DEVICES = "No devices were found"  # nvidia-smi's message if the driver works but there is no GPU; it still fails


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU in GiB. ``held`` is by process id, and empty if nvidia-smi lists no processes."""

    total: float
    used: float
    held: Mapping[int, float]

    @property
    def free(self) -> float:
        """Return the free memory in GiB."""
        return self.total - self.used


def read_memory(gpus: Collection[str]) -> dict[str, GpuMemory]:
    """Return the memory of each GPU, by its name in CUDA_VISIBLE_DEVICES. A GPU that cannot be identified is left out.

    A number is a position in CUDA's order, which is that of the PCI bus if all GPUs are of one model, or if it is set so. Parts
    of a GPU (MIG) are left out.
    """
    rows = query("gpu=index,uuid,name,mig.mode.current,memory.used,memory.total")[0] if gpus else []
    is_bus_order = VISIBLE not in os.environ or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    has_order = is_bus_order or len({name for _, _, name, *_ in rows}) == 1
    apps = query("compute-apps=gpu_uuid,pid,used_memory")[0] if rows else []
    found: dict[str, GpuMemory] = {}
    for index, uuid, _, mig, used, total in rows:
        own = {gpu for gpu in gpus if (gpu == index and has_order) or (gpu.startswith("GPU-") and uuid.startswith(gpu))}
        if mig == "Enabled" or not (used.isdigit() and total.isdigit()):
            continue
        listed = [(pid, size) for gpu, pid, size in apps if gpu == uuid and pid.isdigit()]
        is_known = all(size.isdigit() for _, size in listed)  # it is not on some systems
        held = {int(pid): mib(size) / MIB_OF_GIB for pid, size in listed} if is_known else {}
        found |= dict.fromkeys(own, GpuMemory(mib(total) / MIB_OF_GIB, mib(used) / MIB_OF_GIB, held))
    return found


def describe_holders(gib: float, processes: Sequence[int]) -> str:
    """Return who holds this much memory of a GPU, which are not processes of this sweep."""
    amount = f"{gib:.3g} GiB"
    if not processes:
        return f"{amount} held by processes that cannot be listed here, not ours"
    return f"{amount} held by process{'es' * (len(processes) > 1)} {', '.join(map(str, processes))}, not ours"


def query(what: str) -> tuple[list[list[str]], str]:
    """Return the rows of an nvidia-smi query, and why it failed; empty if it did not."""
    command = ["nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], getattr(error, "strerror", None) or f"no answer in {TIMEOUT_SECONDS:g} s"
    if done.returncode:
        output = f"{done.stdout} {done.stderr}"
        return [], "" if NO_DEVICES in output else " ".join(output.split())[:200] or f"exit code {done.returncode}"
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == what.count(",") + 1], ""


def mib(text: str) -> int:
    """Parse an amount of memory of nvidia-smi; 0 if the driver does not report it."""
    return int(text) if text.isdigit() else 0


def ancestors(pid: int) -> set[int]:
    """Return the ids of a process and of its ancestors."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            status = (Path("/proc") / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])  # the name in brackets may hold anything
    return found
