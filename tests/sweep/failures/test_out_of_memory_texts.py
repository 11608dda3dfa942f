"""What torch's out-of-memory messages state, release by release, in one line; and whether others
were the reason.
"""

import pytest

from grposweep.launchers.gpu_memory import GpuMemory
from grposweep.sweep._neighbours import find_shortage, find_shortage_of_engine

NEW = "GPU 0 has a total capacity of 79.18 GiB of which 20.00 MiB is free."
TORCH = (
    "Of the allocated memory 1.50 GiB is allocated by PyTorch, and 204.80 MiB is reserved "
    "by PyTorch but unallocated."
)
ASKED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB"
OURS = {77, 78}


@pytest.mark.parametrize(
    ("text", "line", "needs"),
    [
        (
            f"{ASKED}. {NEW} Process 1218 has 24.00 GiB memory in use. Process 77 has 9.80 GiB "
            "memory in use. Including non-PyTorch memory, this process has 2.30 GiB memory in use. "
            f"9.90 GiB allowed; {TORCH}",
            "2.3 of its 9.9 GiB in use, 24 GiB held by process 1218, not ours",
            2.8,
        ),
        (
            f"{ASKED}. {NEW} Process 1218 has 24.00 GiB memory in use. Process 9 has 30.00 GiB "
            "memory in use. Including "
            f"non-PyTorch memory, this process has 25.10 GiB memory in use. {TORCH}",
            "25.1 of the GPU's 79.2 GiB in use, 54 GiB held by processes 9, 1218, not ours",
            25.6,
        ),
        # only the sweep's own trials: as without neighbours
        (
            f"{ASKED}. {NEW} Process 77 has 39.00 GiB memory in use. Including non-PyTorch memory, "
            f"this process has 40.10 GiB memory in use. {TORCH}",
            "40.1 of the GPU's 79.2 GiB in use, 0.5 GiB more asked for",
            None,
        ),
        # more than its share: at fault
        (
            f"{ASKED}. {NEW} Process 1218 has 24.00 GiB memory in use. Including non-PyTorch "
            "memory, this process has 10.30 GiB memory in use. 9.90 GiB allowed; Of the allocated "
            "memory 9.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but "
            "unallocated.",
            "10.3 of its 9.9 GiB in use, 0.5 GiB more asked for, 24 GiB held by process 1218, "
            "not ours",
            None,
        ),
        # torch 2.1 in a container, whose ids of processes are not the system's
        (
            f"{ASKED}. GPU 0 has a total capacty of 79.18 GiB of which 20.00 MiB is free. Process "
            f"4021 has 40.00 GiB memory in use. Process 4022 has 39.16 GiB memory in use. {TORCH}",
            "2.3 of the GPU's 79.2 GiB in use, at least 76.9 GiB held by processes that cannot "
            "be listed here, not ours",
            2.8,
        ),
        # the same with a share: the other trials may hold theirs, and a context each
        (
            f"{ASKED}. {NEW} 9.90 GiB allowed; {TORCH}",
            "2.3 of its 9.9 GiB in use, at least 3.38 GiB held by processes that cannot be "
            "listed here, not ours",
            2.8,
        ),
        # alone on its GPU, in a container
        (
            f"{ASKED}. {NEW} Process 4022 has 79.16 GiB memory in use. Of the allocated memory "
            "70.00 GiB is allocated by PyTorch, with 36.00 MiB allocated in private pools (e.g., "
            "CUDA Graphs), and 8.00 GiB is reserved by PyTorch but unallocated.",
            "78.6 of the GPU's 79.2 GiB in use, 0.5 GiB more asked for",
            None,
        ),
        # before torch 2.1
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 384.00 MiB (GPU 0; 14.76 GiB "
            "total capacity; 5.04 GiB already allocated; 259.75 MiB free; 5.10 GiB reserved in "
            "total by PyTorch) If reserved memory is >> allocated memory",
            "5.7 of the GPU's 14.8 GiB in use, at least 8.81 GiB held by processes that cannot "
            "be listed here, not ours",
            6.075,
        ),
        (f"{ASKED}: nothing else", "0.5 GiB more asked for", None),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 64.00 GiB.",
            "64 GiB more asked for",
            None,
        ),
    ],
    ids=[
        "share",
        "two",
        "ours",
        "its fault",
        "container",
        "share in a container",
        "alone",
        "torch 1",
        "short",
        "hip",
    ],
)
def test_a_message_becomes_one_line_with_what_it_states(
    text: str, line: str, needs: float | None
) -> None:
    """What it does not state is left out. ``needs`` is a number only if others held the memory."""
    found = find_shortage(["a line", f"[rank0]: {text}"], tuple, OURS.__contains__)
    assert found is not None
    assert found.text == f"out of GPU memory: {line}"
    assert found.needs_gib == (None if needs is None else pytest.approx(needs))


def test_a_message_without_sizes_is_judged_by_the_gpu_as_it_is_now() -> None:
    """As on a GPU that is full at the start: the trial needs more than is free. Without others
    nothing is known.
    """
    full = GpuMemory(80, 79, {1218: 72, 77: 7})
    error = ["RuntimeError: CUDA error: out of memory"]
    found = find_shortage(error, lambda: [GpuMemory(80, 1, {}), full], OURS.__contains__)
    assert found is not None
    assert found.text == "out of GPU memory: 72 GiB held by process 1218, not ours"
    assert found.needs_gib == pytest.approx(1, abs=0.5)
    assert find_shortage(error, lambda: [GpuMemory(80, 7, {77: 7})], OURS.__contains__) is None


def test_without_a_list_of_processes_a_program_of_several_is_not_taken_for_others() -> None:
    """Its own may hold the rest of the GPU."""
    text = f"{ASKED}. {NEW} {TORCH}"
    found = find_shortage([text], tuple, OURS.__contains__, is_alone=False)
    assert found is not None
    assert found.needs_gib is None


def test_vllm_that_does_not_start_because_of_others_is_short_of_memory() -> None:
    """Without others its setting is a mistake, and so is any other text of a configuration."""
    text = (
        "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than "
        "desired GPU memory utilization (0.95, 45.01 GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes."
    )
    busy = GpuMemory(47.38, 16, {1218: 16})
    ours = GpuMemory(47.38, 16, {77: 16})
    found = find_shortage_of_engine([text], lambda: [busy], OURS.__contains__)
    assert found is not None
    assert found.text == "out of GPU memory: 16 GiB held by process 1218, not ours"
    assert found.needs_gib == 45.01
    assert find_shortage_of_engine([text], lambda: [ours], OURS.__contains__) is None
    assert (
        find_shortage_of_engine(["ValueError: another"], lambda: [busy], OURS.__contains__) is None
    )
