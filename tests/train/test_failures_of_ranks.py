"""Real ranks that fail in real ways: what torch and gloo say of it, and the class that comes of
it.
"""

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from grposweep.launchers.base import End
from grposweep.storage.results import Failure
from grposweep.sweep._failures import classify_failure, read_evidence
from support import environment

# torch
pytestmark = pytest.mark.slow

RANK = """
import atexit, datetime, json, os, sys, time
import torch, torch.distributed as dist
# once for all forks
from transformers import AutoModel
from trl import GRPOConfig

def start():
    for number, (folder, port, fault) in enumerate(json.load(sys.stdin)):
        for rank in (0, 1):
            if not (pid := os.fork()):
                os.chdir(folder)
                log = os.open(f"logs/rank-{rank}.log", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1), os.dup2(log, 2)
                # after the traceback, as a rank of ours: without taking torch down
                atexit.register(os._exit, 1)
                return rank, port, fault
            started.append((number, rank, pid))

started = []
rank = start()
if rank is None:
    ended = [(number, rank, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) for number, rank, pid in started]
    print(json.dumps({number: code for number, rank, code in ended if rank == 0}))
    sys.exit()
rank, port, fault = rank
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=datetime.timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=15))
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
    # it prints nothing, so only its neighbour's message is there
    "os._exit(1)": Failure.COMMUNICATION,
    # the neighbour's time-out
    "time.sleep(8); os._exit(1)": Failure.COMMUNICATION,
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int]]:
    """Each fault's folder and the exit code of rank 0: all ranks are forks of one process that has
    imported torch.
    """
    here = tmp_path_factory.mktemp("ranks")
    (here / "rank.py").write_text(RANK)
    asked = []
    with ExitStack() as probes:
        for number, fault in enumerate(FAULTS):
            (here / str(number) / "logs").mkdir(parents=True)
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            asked.append((str(here / str(number)), probe.getsockname()[1], fault))
    command = [sys.executable, str(here / "rank.py")]
    done = subprocess.run(
        command,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
        timeout=300,
    )
    codes = json.loads(done.stdout)
    return {fault: (here / str(number), codes[str(number)]) for number, fault in enumerate(FAULTS)}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_root_cause_is_found_in_what_two_ranks_say(
    fault: str, ended: dict[str, tuple[Path, int]]
) -> None:
    """Rank 0 always complains about rank 1, which is never the cause."""
    folder, code = ended[fault]
    evidence = read_evidence(folder, End(code))
    assert classify_failure(evidence) is FAULTS[fault], evidence.logs
