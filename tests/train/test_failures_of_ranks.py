"""Real ranks that fail in real ways: what torch and gloo say of it, and the class that comes of it."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from grposweep.launchers.base import End
from grposweep.storage.results import Failure
from grposweep.sweep.failures import classify, read_evidence
from support import environment

pytestmark = pytest.mark.slow  # torch, twice

RANK = """
import datetime, os, sys, time
import torch, torch.distributed as dist
rank, port, fault = int(sys.argv[1]), sys.argv[2], sys.argv[3]
store = dist.TCPStore("127.0.0.1", int(port), 2, rank == 0, timeout=datetime.timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=4))
dist.all_reduce(torch.ones(1))
if rank == 1:
    exec(fault)
dist.all_reduce(torch.ones(1))
"""
FAULTS = {
    "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')": Failure.GPU_MEMORY,
    "torch.empty(2**60)": Failure.HOST_MEMORY,
    "open('/dev/full', 'w', buffering=1).write('x' * 100 + chr(10))": Failure.DISK_FULL,
    "torch.multinomial(torch.tensor([float('nan'), 1.0]), 1)": Failure.NON_FINITE,
    "from trl import GRPOConfig; GRPOConfig(num_generations=1, use_cpu=True, output_dir='x')": Failure.BAD_CONFIGURATION,
    "from transformers import AutoModel; AutoModel.from_pretrained('/no/such/model')": Failure.BAD_CONFIGURATION,
    "import no_such_module": Failure.BAD_CONFIGURATION,
    "torch.ones(3) @ torch.ones(4)": Failure.CRASH,
    "raise KeyboardInterrupt": Failure.KILLED,
    "os._exit(1)": Failure.COMMUNICATION,  # without a word: its neighbour's is all there is
    "time.sleep(8); os._exit(1)": Failure.COMMUNICATION,  # the neighbour's time-out
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_root_cause_is_found_in_what_two_ranks_say(fault: str, tmp_path: Path) -> None:
    """Rank 0 always complains about rank 1, which is never the cause."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "rank.py").write_text(RANK)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank in "01":
        with (tmp_path / "logs" / f"rank-{rank}.log").open("w") as log:
            command = [sys.executable, str(tmp_path / "rank.py"), rank, port, fault]
            ranks.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env=environment()))
    codes = [process.wait(timeout=120) for process in ranks]
    evidence = read_evidence(tmp_path, End(codes[0]))
    assert classify(evidence) is FAULTS[fault], evidence.logs
