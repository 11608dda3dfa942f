"""The GPUs of this machine: which ones a sweep may use, and which of them a trial gets."""

import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from grposweep.errors import UserError
from grposweep.schema import AUTO

VISIBLE = "CUDA_VISIBLE_DEVICES"
BUSY_MIB = 300  # of one process; torch's CUDA context takes more, a desktop program's less
BUSY_SHARE = 0.2  # of a GPU's memory; less may be a display's. In a container the processes of others cannot be listed
TIMEOUT_SECONDS = 60.0  # without its persistence daemon a driver takes seconds to load


def visible_gpus(setting: int | str) -> list[str]:
    """Return the GPUs that a sweep may use: those in CUDA_VISIBLE_DEVICES, otherwise those of nvidia-smi that are free.

    Their names are positions on the PCI bus, which need `gpu_order`: vLLM (0.31) reads no UUIDs in CUDA_VISIBLE_DEVICES.
    GPUs on which other processes hold memory are left out, which is printed. Raises UserError if ``setting``
    (``cluster.gpus``) asks for more GPUs than that, or if this machine's GPUs cannot be listed.
    """
    if setting == 0:
        return []
    visible = os.environ.get(VISIBLE)
    found = _free_gpus(setting) if visible is None else [name.strip() for name in visible.split(",")]
    found = [name for name in found if name not in ("", "-1")]
    if setting == AUTO:
        return found
    if int(setting) > len(found):
        which = "free" if visible is None else "visible"
        raise UserError(
            f"cluster.gpus={setting}: only {len(found)} are {which}. Set cluster.gpus={len(found)} or auto."
        )
    return found[: int(setting)]


def gpu_order() -> dict[str, str]:
    """Return the variable by which CUDA counts GPUs as `visible_gpus` does; empty if the user has named them."""
    return {} if VISIBLE in os.environ else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # CUDA's default: fastest first


def choose_gpus(free: Sequence[int], count: int) -> list[int]:
    """Return which free GPUs a trial gets: as close together as can be, and from a multiple of ``count`` on.

    GPUs that are neighbours share NVLink pairs, PCIe switches and NUMA nodes.
    """
    places = sorted(free)
    groups = [places[start : start + count] for start in range(len(places) - count + 1)]
    return min(groups, key=lambda group: (group[-1] - group[0], group[0] % count, group[0]))


def _free_gpus(setting: int | str) -> list[str]:
    """Return the GPUs that nvidia-smi lists and no other process uses; empty without nvidia-smi.

    Raises UserError if nvidia-smi fails and the user has asked for GPUs. With ``auto`` the failure is printed.
    """
    if shutil.which("nvidia-smi") is None:
        _refuse_amd(setting)
        return []
    gpus, failure = _query("gpu=index,uuid,memory.used,memory.total")
    if failure:
        _report_failure(setting, failure)
        return []
    processes, ours, own = defaultdict(list), Counter[str](), _own_processes()
    for uuid, pid, used in _query("compute-apps=gpu_uuid,pid,used_memory")[0]:
        if pid in own:
            ours[uuid] += _mib(used)
        elif _mib(used) > BUSY_MIB:
            processes[uuid].append(pid)
    busy = {
        index: f"process {', '.join(processes[uuid])}" if uuid in processes else f"{used} of {total} MiB are used"
        for index, uuid, used, total in gpus
        if uuid in processes or _mib(used) - ours[uuid] > BUSY_SHARE * _mib(total) > 0
    }
    free = [index for index, *_ in gpus if index not in busy]
    if not busy:
        return free
    shown = "; ".join(f"GPU {index}: {why}" for index, why in busy.items())
    if not free:
        raise UserError(
            f"cluster.gpus={setting}: other processes hold memory on all of this machine's GPUs ({shown}). Wait for them, "
            f"set {VISIBLE}={','.join(busy)} to share these GPUs, or cluster.gpus=0 to train on the CPU."
        )
    print(
        f"cluster.gpus: left out, because other processes hold memory there: {shown}. Set {VISIBLE} to use them.",
        file=sys.stderr,
    )
    return free


NO_DEVICES = "No devices were found"  # nvidia-smi's words where the driver works; it fails all the same


def _report_failure(setting: int | str, failure: str) -> None:
    """Raise UserError if GPUs were asked for; print a line if they are optional."""
    text = f"cluster.gpus={setting}: nvidia-smi fails ({failure}), so this machine's GPUs cannot be listed"
    if setting != AUTO:
        raise UserError(f"{text}. Repair the driver, set {VISIBLE} to the GPUs to use, or cluster.gpus=0.")
    print(f"{text}. Trials run on the CPU. Repair the driver, or set {VISIBLE} to the GPUs to use.", file=sys.stderr)


def _query(what: str) -> tuple[list[list[str]], str]:
    """Return the rows of an nvidia-smi query, and why it failed; empty if it did not."""
    command = ["nvidia-smi", f"--query-{what}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], getattr(error, "strerror", None) or f"no answer in {TIMEOUT_SECONDS:g} s"
    if done.returncode:
        said = f"{done.stdout} {done.stderr}"
        return [], "" if NO_DEVICES in said else " ".join(said.split())[:200] or f"exit code {done.returncode}"
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == what.count(",") + 1], ""


def _mib(text: str) -> int:
    """Return an amount of memory as nvidia-smi prints it; 0 if the driver does not say."""
    return int(text) if text.isdigit() else 0


def _own_processes() -> set[str]:
    """Return the ids of this process and of those that it was started by."""
    found, pid = {str(os.getpid())}, os.getppid()
    while pid > 1:
        found.add(str(pid))
        try:
            status = (Path("/proc") / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])  # the name in brackets may hold anything
    return found


def _refuse_amd(setting: int | str) -> None:
    """Raise UserError if this machine has AMD's tools: its GPUs would stay idle."""
    tool = next(filter(shutil.which, ("amd-smi", "rocm-smi")), None)
    if tool is not None:
        raise UserError(
            f"cluster.gpus={setting}: this machine has {tool}, and only NVIDIA's GPUs are found without help. Set "
            f"{VISIBLE}=0,1,... to the GPUs to use (ROCm reads it as well), or cluster.gpus=0 to train on the CPU."
        )
