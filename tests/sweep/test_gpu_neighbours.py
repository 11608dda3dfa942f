"""Sweeps on a GPU that others use as well. A folder stands for the GPU: nvidia-smi and the fake
trainer read it.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grposweep.launchers.base import GpuBusy, Job
from grposweep.launchers.local import Local
from grposweep.report.status import status_json
from grposweep.report.view import read_sweep
from grposweep.schema import Cluster
from in_process import Sweep
from support import Printed, lines, read, trials, unwrap, wait_for

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
held = {{path.name: float(path.read_text()) for path in gpu.iterdir() if os.path.exists("/proc/" + path.name)}}
hidden = float((gpu / "hidden").read_text()) if (gpu / "hidden").exists() else 0
total = float((gpu / "total").read_text())
for pid, gib in held.items() if "compute-apps" in sys.argv[1] else ():
    print(f"GPU-a, {{pid}}, {{gib * 1024:.0f}}")
values = {{"index": "0", "uuid": "GPU-a", "name": "H100", "mig.mode.current": "Disabled"}}
values |= {{"memory.used": f"{{(sum(held.values()) + hidden) * 1024:.0f}}", "memory.total": f"{{total * 1024:.0f}}"}}
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
        (self.folder / "needs").write_text(str(gib))
        return (*FAKE, f"+cluster.environment.FAKE_GPU={self.folder}")


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """The only GPU of this machine, as nvidia-smi and CUDA_VISIBLE_DEVICES name it."""
    found = Gpu(tmp_path / "gpu")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(
        NVIDIA_SMI.format(python=sys.executable, gpu=str(found.folder))
    )
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(GpuBusy, "seconds", 0.2)
    yield found
    found.leave()


def log_of(here: Path) -> str:
    """The sweep's controller.log so far."""
    path = here / "outputs" / "s" / "controller.log"
    return path.read_text() if path.exists() else ""


def once_it_waits(here: Path, act: Callable[[], object], times: int = 1) -> threading.Thread:
    """Act in another thread once the log says so often that a trial waits."""
    thread = threading.Thread(
        target=lambda: (wait_for(lambda: log_of(here).count("waits. ") >= times, 60), act())
    )
    thread.start()
    return thread


def ends(sweep: Path) -> list[list[tuple[str | None, bool]]]:
    """Of each trial the failures of its attempts, and whether they do not count."""
    events = [
        [e for e in lines(trial / "attempts.jsonl") if e["event"] == "ended"]
        for trial in trials(sweep)
    ]
    return [[(e.get("failure"), bool(e.get("again"))) for e in each] for each in events]


CROWDED = ("gpu_memory", True)
FINE = (None, False)


@pytest.mark.slow
def test_a_sweep_waits_for_a_neighbour_and_loses_nothing(
    gpu: Gpu, sweep_here: Sweep, tmp_path: Path, printed: Printed
) -> None:
    """The trial fails, waits and continues: no attempt is spent, no micro-batch is halved, one line
    says who holds how much.
    """
    gpu.take(56)
    seen: list[str] = []

    def leave() -> None:
        wait_for(lambda: seen.extend(filter(None, [waits(tmp_path)])) or seen)
        gpu.leave()

    thread = once_it_waits(tmp_path, leave)
    folder = sweep_here(*gpu.words(30), "lr=1e-4,2e-4,3e-4")
    thread.join()
    said = unwrap(printed())
    held = f"56 GiB held by process {gpu.neighbour.pid}, not ours"
    assert (
        f"trial 0: out of GPU memory: 15 of the GPU's 80 GiB in use, {held}; it has no "
        "checkpoint yet"
    ) in said
    line = f"GPU 0: {held}; it needs 30 GiB, 24 are free"
    assert said.count(f"trial 0 waits. {line}") == log_of(tmp_path).count("waits. ") == 1
    assert seen == [line]
    assert ends(folder) == [[CROWDED, FINE], [FINE], [FINE]]
    assert [read(trial / "result.json")["status"] for trial in trials(folder)] == ["finished"] * 3
    assert not list(folder.glob("trials/*/healed.json"))


def waits(here: Path) -> str | None:
    """Why the first open trial waits, as ``status --json`` tells it."""
    found = status_json(read_sweep(here / "outputs" / "s"))["under_way"]
    return found[0]["waits"] if found else None


@pytest.mark.slow
def test_a_sweep_that_waits_can_be_interrupted_and_continued(
    gpu: Gpu, sweep_here: Sweep, tmp_path: Path
) -> None:
    """The next controller knows what the trial needs, and waits before it starts it."""
    gpu.take(56)
    words = (*gpu.words(30), "lr=1e-4")
    thread = once_it_waits(tmp_path, lambda: os.kill(os.getpid(), signal.SIGINT))
    folder = sweep_here(*words)
    thread.join()
    assert ends(folder) == [[CROWDED]]
    thread = once_it_waits(tmp_path, gpu.leave, times=2)
    assert sweep_here(*words) == folder
    thread.join()
    assert ends(folder) == [[CROWDED, FINE]]
    assert read(trials(folder)[0] / "result.json")["status"] == "finished"


@pytest.mark.slow
def test_trials_that_share_a_gpu_with_a_neighbour_all_finish(gpu: Gpu, sweep_here: Sweep) -> None:
    """Four share a GPU of which the neighbour has half, so only two fit at once. Those that fail
    wait for the others.
    """
    gpu.take(40)
    share = ("cluster.trials_per_gpu=4", "trainer.args.step_seconds=0.1")
    folder = sweep_here(*gpu.words(18), *share, "lr=1e-4,2e-4,3e-4,4e-4")
    assert [each[-1] for each in ends(folder)] == [FINE] * 4
    assert {end for each in ends(folder) for end in each[:-1]} == {CROWDED}
    assert not list(folder.glob("trials/*/healed.json"))


def test_a_trial_that_needs_more_than_its_share_is_at_fault(gpu: Gpu, sweep_here: Sweep) -> None:
    """A neighbour that holds a little is no reason to wait: the micro-batch is halved, as without
    one.
    """
    gpu.take(4)
    folder = sweep_here(*gpu.words(50), "cluster.trials_per_gpu=2", "lr=1e-4")
    assert [end for (end,) in [ends(folder)]] == [[("gpu_memory", False), ("gpu_memory", False)]]
    message = read(trials(folder)[0] / "result.json")["failure"]["message"]
    held = f"4 GiB held by process {gpu.neighbour.pid}, not ours"
    assert message == f"out of GPU memory: 25 of its 40 GiB in use, 25 GiB more asked for, {held}"


class Sleepers:
    """Attempts that only sleep."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *_: object) -> int:
        """Sleep."""
        self.running.append(subprocess.Popen(["sleep", "600"]))
        return self.running[-1].pid

    def poll(self, pid: int, timeout: float = 0.0) -> int | None:  # noqa: ARG002 - the contract's arguments
        """Return how it ended."""
        return next(process for process in self.running if process.pid == pid).poll()

    def lost(self, pid: int) -> bool:  # noqa: ARG002 - the contract's arguments
        """None had a server."""
        return False

    def close(self) -> None:
        """End them."""
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def local(gpu: Gpu) -> Iterator[Local]:
    """A launcher of four trials on the GPU."""
    launcher = Local(Sleepers(), ["0"] * 4, slots=4, share=4)
    yield launcher
    launcher.close()


Submit = Callable[..., str]


@pytest.fixture
def submit(local: Local, tmp_path: Path) -> Submit:
    """``submit("0", 18)`` starts a trial that needs so many GiB."""

    def call(name: str, needs: float | None, crowded: bool = False) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        return local.submit(Job(folder, 0, Cluster(), needs_gib=needs, was_crowded_out=crowded))

    return call


def test_as_many_trials_start_as_fit_with_the_neighbour(
    submit: Submit, local: Local, gpu: Gpu
) -> None:
    """By what they need, not by what they hold yet; the next one starts when the neighbour has
    left.
    """
    gpu.take(40)
    for number in range(2):
        submit(f"{number}", 18)
    with pytest.raises(
        GpuBusy,
        match=rf"40 GiB held by process {gpu.neighbour.pid}, not ours; it needs 18 GiB, 4 are free",
    ):
        submit("2", 18)
    gpu.leave()
    submit("2", 18)
    assert len(local.processes.running) == 3  # type: ignore[attr-defined]  # its processes are the test's


def test_without_neighbours_and_without_a_known_need_trials_start_as_ever(
    submit: Submit, local: Local, gpu: Gpu
) -> None:
    """Ours may need more than there is, by the estimate: CUDA decides."""
    for number in range(3):
        submit(f"{number}", 70)
    gpu.take(79)
    submit("3", None)


def test_a_neighbour_whose_processes_cannot_be_listed_is_waited_for(
    submit: Submit, local: Local, gpu: Gpu
) -> None:
    """In a container: nothing of ours runs, and memory is used."""
    (gpu.folder / "hidden").write_text("70")
    with pytest.raises(
        GpuBusy,
        match="GPU 0: 70 GiB held by processes that cannot be listed here, not ours; it needs 18",
    ):
        submit("0", 18)


def test_a_program_of_the_desktop_is_not_waited_for(submit: Submit, gpu: Gpu) -> None:
    """It stays. An estimate that lacks a little of the whole GPU may be too high, and a trial that
    fails for it is too large.
    """
    gpu.take(2)
    submit("0", 20)
    (gpu.folder / "hidden").write_text("3")
    for number in range(1, 4):
        submit(f"{number}", 20, crowded=True)


def test_a_trial_that_was_crowded_out_waits_for_ours_where_processes_have_other_ids(
    submit: Submit, local: Local, gpu: Gpu
) -> None:
    """In a container it is not known who holds what, so the wait may be for the sweep's own trials,
    which end.
    """
    first = submit("0", 18)
    (gpu.folder / "hidden").write_text("75")
    submit("1", 18)
    with pytest.raises(
        GpuBusy,
        match="75 GiB in use by this sweep's trials and by processes that cannot be listed here",
    ):
        submit("2", 18, crowded=True)
    assert local.poll(first) is None
