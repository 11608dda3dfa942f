"""Read what CUDA's out-of-memory message states, and decide whether processes of others were the
reason.

Texts of torch, c10/cuda/CUDACachingAllocator.cpp: releases before 2.1 in brackets, later ones in
sentences, which name processes if NVML lists them. Ids are not valid in a container of its own
process ids; then torch does not find itself in the list.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grporecipe.memory.estimate import CONTEXT, GIB
from grposweep.launchers.gpu_memory import (
    BUSY_MIB,
    BUSY_SHARE,
    MIB_OF_GIB,
    SMALL_SHARE,
    GpuMemory,
    describe_holders,
)
from grposweep.storage.results import Failure

_SIZE = r"([\d.]+ (?:bytes|[KMGT]iB))"
_UNITS = {"bytes": 1 / GIB, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2.0**10}
_ASKED = rf"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate {_SIZE}"
_STATED = {
    "total": (rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity"),
    "free": (rf"of which {_SIZE} is free", rf"{_SIZE} free"),
    "own": (rf"this process has {_SIZE} memory in use",),
    "allowed": (rf"{_SIZE} allowed; ",),
    "reserved": (rf"{_SIZE} (?:reserved|cached)(?: in total by PyTorch)?\)",),
    "allocated": (rf"Of the allocated memory {_SIZE} is allocated by PyTorch",),
    "unallocated": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
}
# of a worker of vLLM at its start
_ENGINE = (
    r"Free memory on device .* on startup is less than desired GPU memory utilization "
    r"\([\d.]+, ([\d.]+) GiB\)"
)
_PROCESS = rf"Process (\d+) has {_SIZE} memory in use"


@dataclass(frozen=True)
class OutOfMemory:
    """What a message states, in GiB; None: it does not.

    ``own``: of the process that failed. ``allowed``: its share of the GPU. ``reserved``: by its
    torch. ``held``: by other
    processes, this sweep's included.
    """

    asked: float | None = None
    total: float | None = None
    free: float | None = None
    own: float | None = None
    allowed: float | None = None
    reserved: float | None = None
    held: Mapping[int, float] = field(default_factory=dict)

    @property
    def used(self) -> float | None:
        """Return the GiB that the process held."""
        if self.own is not None or self.reserved is None:
            return self.own
        return self.reserved + CONTEXT / GIB

    @property
    def needs(self) -> float | None:
        """Return the GiB that it held and asked for."""
        return None if self.used is None or self.asked is None else self.used + self.asked


@dataclass(frozen=True)
class Held:
    """GPU memory that processes of others held, in GiB; no ``processes``: they cannot be named, and
    it is a lower bound.
    """

    gib: float = 0.0
    processes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Shortage:
    """Why an attempt ran out of GPU memory, in one line, and the GiB that it needs if others held
    them.
    """

    text: str
    needs_gib: float | None = None

    @property
    def is_others(self) -> bool:
        """Whether processes of others held the memory."""
        return self.needs_gib is not None


# the memory of an attempt's GPUs, after its end
Read = Callable[[], Sequence[GpuMemory]]
# whether a process is this sweep's
Owns = Callable[[int], bool]


def find_shortage(
    texts: Iterable[str], read_now: Read, owns: Owns, is_alone: bool = True
) -> Shortage | None:
    """Return why an attempt ran out of GPU memory; None if neither a text nor its GPUs say.

    ``read_now`` is called if no text states sizes, as when a CUDA library or a start on a full GPU
    fails. ``is_alone``: an attempt has one process on a GPU.
    """
    oom = read_out_of_memory(texts)
    if oom is None:
        return _judge_now(read_now, owns)
    others = find_others(oom, owns) if is_alone or oom.own is not None else Held()
    needs = oom.needs if was_crowded_out(oom, others) else None
    return Shortage(describe(oom, others), needs)


def find_shortage_of_engine(texts: Iterable[str], read_now: Read, owns: Owns) -> Shortage | None:
    """Return why vLLM did not start for lack of memory, if others hold it; None for any other text,
    and if they do not.
    """
    for text in texts:
        if stated := re.search(_ENGINE, text):
            return _judge_now(read_now, owns, float(stated[1]))
    return None


def _judge_now(read_now: Read, owns: Owns, needs: float | None = None) -> Shortage | None:
    """Judge by the GPUs as they are now; None if others hold little. Without a known need it is
    more than what is free now.
    """
    margin = BUSY_MIB / MIB_OF_GIB
    full = [
        OutOfMemory(needs or now.free + margin, now.total, now.free, 0.0, held=now.held)
        for now in read_now()
    ]
    memory = max(full, key=lambda one: find_others(one, owns).gib, default=None)
    if memory is None or not was_crowded_out(memory, others := find_others(memory, owns)):
        return None
    return Shortage(describe(memory, others), memory.needs)


def read_out_of_memory(texts: Iterable[str]) -> OutOfMemory | None:
    """Return what the first message in these texts states; None if there is none."""
    for text in texts:
        if asked := re.search(_ASKED, text):
            return _parse(text[asked.start() :], _gib(asked[1]))
    return None


def _parse(text: str, asked: float) -> OutOfMemory:
    stated = {}
    for name, patterns in _STATED.items():
        for pattern in patterns:
            if name not in stated and (match := re.search(pattern, text)):
                stated[name] = _gib(match[1])
    allocated = stated.pop("allocated", None)
    unallocated = stated.pop("unallocated", None)
    if allocated is not None and unallocated is not None:
        stated["reserved"] = allocated + unallocated
    held = {int(pid): _gib(size) for pid, size in re.findall(_PROCESS, text)}
    return OutOfMemory(asked=asked, held=held, **stated)


def _gib(size: str) -> float:
    number, unit = size.split()
    return float(number) * _UNITS[unit]


def find_others(oom: OutOfMemory, owns: Owns) -> Held:
    """Return what processes of others held for certain."""
    if oom.own is not None:
        others = {pid: gib for pid, gib in oom.held.items() if not owns(pid)}
        return Held(sum(others.values()), tuple(sorted(others)))
    if oom.total is None or oom.free is None or oom.used is None:
        return Held()
    if oom.allowed is None:
        gib = oom.total - oom.free - oom.used
        least = BUSY_SHARE * oom.total
    else:
        # the sweep's other trials on this GPU hold their shares at most, and a context each
        others_at_most = (oom.total - oom.allowed) + (
            round(oom.total / oom.allowed) - 1
        ) * CONTEXT / GIB
        gib = oom.total - oom.free - oom.used - others_at_most
        least = 0.0
    return Held(gib) if gib > least else Held()


def was_crowded_out(oom: OutOfMemory, others: Held) -> bool:
    """Return whether the process would have got what it asked for if others had held nothing."""
    least = BUSY_MIB / MIB_OF_GIB
    if others.processes:
        least = max(least, SMALL_SHARE * (oom.total or 0.0))
    if others.gib <= least or oom.asked is None or oom.free is None:
        return False
    mine = oom.reserved if oom.reserved is not None else oom.own
    is_within = oom.allowed is None or (mine is not None and mine + oom.asked <= oom.allowed)
    return is_within and oom.asked <= oom.free + others.gib


def describe(oom: OutOfMemory, others: Held) -> str:
    """Return one line; what the message does not state is left out."""
    parts = []
    if oom.used and (limit := oom.allowed or oom.total) is not None:
        whose = "its" if oom.allowed else "the GPU's"
        parts.append(f"{oom.used:.3g} of {whose} {limit:.3g} GiB in use")
    if oom.asked is not None and not was_crowded_out(oom, others):
        parts.append(f"{oom.asked:.3g} GiB more asked for")
    if others.gib * MIB_OF_GIB > BUSY_MIB:
        at_least = "" if others.processes else "at least "
        parts.append(f"{at_least}{describe_holders(others.gib, others.processes)}")
    return ": ".join(filter(None, (Failure.GPU_MEMORY.label, ", ".join(parts))))
