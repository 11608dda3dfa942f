"""What only a GPU can show of processes of others: CUDA's message, ids in nvidia-smi, and a sweep
that waits for them.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gpu.test_on_a_gpu import SHORT
from grposweep.launchers.gpu_memory import read_memory
from grposweep.sweep._neighbours import find_shortage
from support import Run, Start, environment, lines, read, trials, wait_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible to torch"),
]
# bytes: too few for a CUDA context
LEFT = 200 * 2**20
HOLD = """
import sys, torch
free, total = torch.cuda.mem_get_info()
size = free - int(sys.argv[2]) if sys.argv[1] == "all" else int(total * float(sys.argv[1]))
held = torch.empty(size, dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""
FAIL = """
import sys, torch
total = torch.cuda.mem_get_info()[1]
if len(sys.argv) > 2:
    torch.cuda.set_per_process_memory_fraction(float(sys.argv[2]))
try:
    torch.empty(int(total * float(sys.argv[1])), dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print(f"torch.OutOfMemoryError: {error}")
"""
Neighbour = Start


@pytest.fixture
def neighbour(monkeypatch: pytest.MonkeyPatch) -> Iterator[Neighbour]:
    """``neighbour(0.7)``: a process that holds so much of the first GPU until its input ends; the
    sweep is to use it anyway.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    started: list[subprocess.Popen[str]] = []

    def hold(share: float | str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", HOLD, str(share), str(LEFT)]
        process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()


def message(*arguments: float) -> str:
    """CUDA's message for a process that asks for a share of the GPU, of which it may have the
    second one.
    """
    command = [sys.executable, "-c", FAIL, *map(str, arguments)]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=True, timeout=300
    ).stdout


def test_the_message_of_cuda_says_who_holds_seventy_percent(neighbour: Neighbour) -> None:
    """Half of the GPU would be free without it: the process is not at fault. With more than its
    share it is.
    """
    other = neighbour(0.7)
    found = find_shortage([message(0.5)], tuple, lambda _pid: False)
    assert found is not None
    assert found.is_others
    assert f"process {other.pid}, not ours" in found.text or "cannot be listed here" in found.text
    own = find_shortage([message(0.5, 0.25)], tuple, lambda _pid: False)
    assert own is not None
    assert not own.is_others


def test_nvidia_smi_counts_what_the_neighbour_holds(neighbour: Neighbour) -> None:
    """By its id, or as used memory where processes cannot be listed."""
    other = neighbour(0.7)
    (memory,) = read_memory({"0"}).values()
    assert memory.used == pytest.approx(0.7 * memory.total, abs=2)
    assert memory.held.get(other.pid, 0.7 * memory.total) == pytest.approx(
        0.7 * memory.total, abs=2
    )


def test_a_trial_that_fits_next_to_a_neighbour_starts(neighbour: Neighbour, run: Run) -> None:
    """Nothing waits."""
    neighbour(0.7)
    ended = run(*SHORT, timeout=600)
    assert ended.code == 0, ended.out + ended.err
    assert "waits" not in (ended.sweep / "controller.log").read_text()


def test_a_sweep_waits_until_the_neighbour_has_left(
    neighbour: Neighbour, start: Start, here: Path
) -> None:
    """No attempt is spent, and no micro-batch is halved."""
    other = neighbour("all")
    sweep = start("-m", *SHORT, "lr=1e-4,1e-3")
    folder = here / "outputs" / "gpu"
    log = folder / "controller.log"

    def is_waiting() -> bool:
        assert sweep.poll() is None, sweep.communicate()
        return log.exists() and " waits. " in log.read_text()

    wait_for(is_waiting, 600)
    other.kill()
    said, _ = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, said
    assert "not ours; it needs" in " ".join(said.split())
    for trial in trials(folder):
        ends = [line for line in lines(trial / "attempts.jsonl") if line["event"] == "ended"]
        assert [line.get("again") for line in ends[:-1]] == [True] * (len(ends) - 1)
        assert read(trial / "result.json")["status"] == "finished"
    assert not list(folder.glob("trials/*/healed.json"))
