"""Sweeps beside other processes on a GPU. A folder stands for the GPU: nvidia-smi and the fake trainer read and write it."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grposweep.report.status import status_json
from grposweep.report.view import read_sweep
from in_process import Sweep, sweeps_in
from support import lines, read, trials, wait_for

FAKE = (
    "trainer=fake",
    "name=s",
    "tracker=none",
    "schedule.max_steps=6",
    "batch=small",
    "schedule.budget_completions=null",
)
NVIDIA_SMI = """#!{python}
import os, pathlib, sys
gpu = pathlib.Path({gpu!r})
held = {{path.name: float(path.read_text()) for path in gpu.glob("[0-9]*") if os.path.exists("/proc/" + path.name)}}
total = float((gpu / "total").read_text())
for pid, gib in held.items() if "compute-apps" in sys.argv[1] else ():
    print(f"GPU-a, {{pid}}, {{gib * 1024:.0f}}")
values = {{"index": "0", "uuid": "GPU-a", "name": "H100", "mig.mode.current": "Disabled"}}
values |= {{"memory.used": f"{{sum(held.values()) * 1024:.0f}}", "memory.total": f"{{total * 1024:.0f}}"}}
if "query-gpu" in sys.argv[1]:
    print(", ".join(values[name] for name in sys.argv[1].split("=")[1].split(",")))
"""


class Gpu:
    """A GPU of 80 GiB, and a neighbour that holds some of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.neighbour = folder, subprocess.Popen(["sleep", "600"])
        folder.mkdir()
        (folder / "total").write_text("80")

    def take(self, gib: float) -> None:
        """The neighbour holds this much."""
        (self.folder / str(self.neighbour.pid)).write_text(str(gib))

    def leave(self) -> None:
        """The neighbour ends."""
        self.neighbour.kill()
        self.neighbour.wait()

    def words(self, gib: float) -> tuple[str, ...]:
        """A sweep whose trials need so much of it."""
        return (*FAKE, f"trainer.fake.gpu={self.folder}", f"trainer.fake.memory_gib={gib}")


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """The only GPU of this machine, as nvidia-smi and CUDA_VISIBLE_DEVICES name it."""
    found, tools = Gpu(tmp_path / "gpu"), tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI.format(python=sys.executable, gpu=str(found.folder)))
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    yield found
    found.leave()


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """Run a sweep here."""
    return sweeps_in(tmp_path, monkeypatch)


def log_of(here: Path) -> str:
    """The sweep's controller.log so far."""
    path = here / "outputs" / "s" / "controller.log"
    return path.read_text() if path.exists() else ""


def when(condition: Callable[[], bool], act: Callable[[], object]) -> threading.Thread:
    """Act in another thread once a condition holds."""
    thread = threading.Thread(target=lambda: (wait_for(condition, 60), act()))
    thread.start()
    return thread


def test_a_sweep_waits_for_a_neighbour_and_loses_nothing(
    gpu: Gpu, sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trial fails, waits and continues: no attempt is spent, no micro-batch is halved, one line says who holds how much."""
    gpu.take(56)
    seen = {}

    def leave() -> None:
        seen.update(status_json(read_sweep(tmp_path / "outputs" / "s"))["under_way"][0])
        gpu.leave()

    thread = when(lambda: "waits. " in log_of(tmp_path), leave)
    folder = sweep(*gpu.words(30), "lr=1e-4,2e-4,3e-4")
    thread.join()
    said, pid = capsys.readouterr().out, gpu.neighbour.pid
    print(said, log_of(tmp_path))
    held = f"56 GiB held by process {pid}, not ours"
    assert (
        f"trial 0: out of GPU memory: 15 of the GPU's 80 GiB in use, {held}; it continues from its last checkpoint"
        in said
    )
    assert said.count(f"trial 0 waits. GPU 0: {held}; it needs 30 GiB, 24 are free") == 1
    assert held in seen["waits"]
    ends = [[e for e in lines(t / "attempts.jsonl") if e["event"] == "ended"] for t in trials(folder)]
    assert [[e.get("again") for e in each] for each in ends] == [[True, None], [None], [None]]
    assert [read(t / "result.json")["status"] for t in trials(folder)] == ["finished"] * 3
    assert not list(folder.glob("trials/*/healed.json"))
