"""Sweeps whose trials share one vLLM server (its CPU build), started as a user starts them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from grposweep.process import SOURCE
from support import lines, read, trials

from .conftest import PATCHES, ROUNDING, SECONDS, is_marked, left_after
from .test_sharded_training import ADAPTERS

pytestmark = pytest.mark.gpu_stack

SHARED = (
    *ADAPTERS,
    "name=s",
    "outputs=.",
    "generation=vllm_shared",
    "generation.vllm_max_model_length=32",
    "tracker=none",
    "model.dtype=float32",
    "search.parallel=2",
    "generation.vllm_server_timeout=500",
    "search.guards=false",
    "-m",
    "lr=1e-3,2e-3",
)
RUN = str(SOURCE / "run.py")
DIFFERENCE = "sampling/sampling_logp_difference/mean"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a sweep in an empty folder; its processes are marked with the folder, and none is
    left.
    """
    started: list[subprocess.Popen[bytes]] = []

    def begin(
        *arguments: str, command: Sequence[str] = (RUN, *SHARED), **environment: str
    ) -> "subprocess.Popen[bytes]":
        marked = {
            "PYTHONPATH": f"{PATCHES}:{SOURCE}",
            "GPU_STACK_MARK": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        }
        known = {
            name: value
            for name, value in os.environ.items()
            if name != "VLLM_ENABLE_V1_MULTIPROCESSING"
        }
        with (tmp_path / "output").open("ab") as output:
            words = [sys.executable, *command, *arguments]
            started.append(
                subprocess.Popen(
                    words,
                    cwd=tmp_path,
                    env={**known, **marked, **environment},
                    stdout=output,
                    stderr=output,
                )
            )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
    assert not left_after(30, str(tmp_path))


def said(folder: Path) -> str:
    """What the sweep and its server printed."""
    logs = (
        folder / "output",
        *folder.glob("s/servers/shared/logs/*"),
        *folder.glob("s/trials/*/logs/*"),
    )
    return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in logs)


def steps(trial: Path) -> list[dict[str, float]]:
    """The metrics of each optimizer step of a trial."""
    path = trial / "metrics.jsonl"
    return [line for line in lines(path) if line["kind"] == "train"] if path.exists() else []


def wait_until(
    found: Callable[[], object], running: "subprocess.Popen[bytes]", folder: Path
) -> None:
    """Wait while the sweep runs."""
    until = time.monotonic() + SECONDS
    while not found():
        assert running.poll() is None, said(folder)
        assert time.monotonic() < until, said(folder)
        time.sleep(0.05)


def process_of(folder: Path, words: str) -> int:
    """The marked process whose command line has these words."""
    for path in Path("/proc").glob("[0-9]*"):
        if is_marked(path / "environ", str(folder)):
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if words in command:
                return int(path.name)
    raise AssertionError(f"no process with {words!r}")


def test_each_trial_samples_from_its_own_adapter(start: Start, tmp_path: Path) -> None:
    """Two at once, in all steps while their weights change; then nothing of them is left, on disk
    and in memory.
    """
    assert start("schedule.max_steps=12").wait(SECONDS) == 0, said(tmp_path)
    found = trials(tmp_path / "s")
    assert [read(trial / "result.json")["status"] for trial in found] == ["finished", "finished"]
    for trial in found:
        print([step[DIFFERENCE] for step in steps(trial)])
        assert len(steps(trial)) == 12
        assert max(step[DIFFERENCE] for step in steps(trial)) < ROUNDING
        assert max(step["update_size"] for step in steps(trial)) > 0
        assert not (trial / "adapter_versions").exists()
    assert not left_after(30, str(tmp_path))


def test_an_adapter_that_is_never_sent_ends_its_trial(start: Start, tmp_path: Path) -> None:
    """The negative control: each trial samples from its first version."""
    sent = start("schedule.max_steps=40", "lr=1e-2,2e-2", GPU_STACK_NO_SYNC="1")
    assert sent.wait(SECONDS) != 0, said(tmp_path)
    for trial in trials(tmp_path / "s"):
        assert "the engine's weights are stale" in read(trial / "result.json")["failure"]["message"]


def test_a_killed_server_and_a_killed_trial_cost_their_sweep_nothing(
    start: Start, tmp_path: Path
) -> None:
    """The server starts again and gets both adapters. The other trial does not notice the end of
    the first one, which resumes.
    """
    sweep = start("schedule.max_steps=60", "schedule.checkpoints=12")
    wait_until(
        lambda: (tmp_path / "s/trials").exists() and len(trials(tmp_path / "s")) == 2,
        sweep,
        tmp_path,
    )
    first, second = trials(tmp_path / "s")
    wait_until(lambda: len(steps(first)) > 10 and len(steps(second)) > 10, sweep, tmp_path)
    os.kill(process_of(tmp_path, "vllm.entrypoints.cli.main serve"), signal.SIGKILL)
    reached = len(steps(first))
    wait_until(lambda: len(steps(first)) > reached + 10, sweep, tmp_path)
    os.kill(
        int(lines(first / "attempts.jsonl")[-1]["job_id"].removeprefix("local-")), signal.SIGKILL
    )
    sweep.wait(SECONDS)
    assert read(first / "result.json")["failure"]["kind"] == "signal 9", said(tmp_path)
    assert start(command=("-m", "grposweep", "retry", "s", "--outputs", ".")).wait(SECONDS) == 0, (
        said(tmp_path)
    )
    for trial in (first, second):
        assert [step["step"] for step in steps(trial)] == list(range(1, 61))
        assert max(step[DIFFERENCE] for step in steps(trial)) < ROUNDING
    assert (tmp_path / "s/servers/shared/logs/rank-0.log").read_text().count(
        "starting the server"
    ) == 3
    assert {step["attempt"] for step in steps(second)} == {0}
