"""A trial of verl on two nodes of a real Slurm, in a Ray cluster that its job starts; only verl
itself is a stub.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_jobs import ours, slurm

from grposweep.storage.results import read_runs
from stub_verl import write_stub
from support import PROJECT, Run, Start, read, trials, wait_for

pytestmark = pytest.mark.slurm
PYTHON = PROJECT / ".venvs" / "ray" / "bin" / "python"
NODES = (
    "cluster=slurm",
    "cluster.nodes=2",
    "cluster.gpus_per_node=2",
    "cluster.cpus_per_gpu=4",
    "cluster.poll_seconds=1",
)


def ray_processes() -> list[str]:
    """Return the command lines of all processes of Ray, those of other sweeps among them."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        line = b" ".join(words).decode(errors="replace")
        if (
            line.startswith("ray::")
            or "/ray/core/src/ray/" in line
            or "ray.scripts.scripts" in line
        ):
            found.append(line[:200])
    return found


def ray_folders() -> set[Path]:
    """Return the folders that Ray uses now."""
    return set(Path("/tmp").glob("ray-*"))


@pytest.fixture
def verl(here: Path) -> Iterator[tuple[str, ...]]:
    """The overrides of a trial on two nodes; afterwards nothing of Ray is left, processes or
    folders.
    """
    if not PYTHON.is_file():
        if os.environ.get("GRPOSWEEP_RAY_REQUIRED"):
            pytest.fail(f"no {PYTHON}")
        pytest.skip(f"needs Ray in {PYTHON.parents[1]} (make slurm-ray installs it)")
    before = ray_folders()
    yield (*write_stub(here, PYTHON), *NODES)
    wait_for(lambda: not ours(), seconds=60)
    wait_for(lambda: not ray_processes(), seconds=30)
    assert ray_folders() == before


def test_a_trial_sees_the_gpus_of_both_nodes(run: Run, verl: tuple[str, ...], here: Path) -> None:
    """Each GPU is used once, workers have the trial's environment on every node, and the command
    has the job's shape.
    """
    ended = run(*verl, timeout=300)
    assert ended.code == 0, ended
    seen = read(here / "seen.json")
    assert seen["used"] == [["n1", "0", "x"], ["n1", "1", "x"], ["n2", "0", "x"], ["n2", "1", "x"]]
    assert (seen["resources"]["GPU"], seen["resources"]["CPU"]) == (4, 16)
    assert (seen["arguments"]["trainer.nnodes"], seen["arguments"]["trainer.n_gpus_per_node"]) == (
        "2",
        "2",
    )
    (trial,) = trials(ended.sweep)
    assert read(trial / "result.json")["objective"] == 0.5


def test_the_programs_exit_code_is_the_attempts(run: Run, verl: tuple[str, ...]) -> None:
    """The failure is the program's on the first node, not that of a node that was ended with it."""
    ended = run(*verl, "+trainer.environment.EXIT_CODE='7'", timeout=300)
    assert ended.code == 1
    (trial,) = trials(ended.sweep)
    assert read(trial / "result.json")["failure"]["kind"] == "exit code 7"


def test_two_jobs_share_the_nodes(run: Run, verl: tuple[str, ...]) -> None:
    """No port and no folder of one Ray is the other's, and the first to end does not end the
    other.
    """
    ended = run(
        *verl,
        "-m",
        "lr=1e-6,2e-6",
        "cluster.max_jobs=2",
        "+trainer.environment.SECONDS_TO_RUN='5'",
        timeout=1500,
    )
    assert ended.code == 0, ended
    assert [read(trial / "result.json")["status"] for trial in trials(ended.sweep)] == [
        "finished"
    ] * 2


def test_a_warned_job_stops_the_program_and_starts_ray_again(
    start: Start, verl: tuple[str, ...], here: Path
) -> None:
    """Slurm's warning before the time limit reaches every node; only the program on the first one
    is asked to stop.
    """
    command = start(*verl, "+trainer.environment.SECONDS_TO_RUN='600'")
    wait_for(lambda: (here / "seen.json").is_file(), seconds=240)
    first = read(here / "seen.json")["address"]
    slurm("scancel", "--signal=USR1", "--batch", *ours())
    assert command.wait(timeout=300) == 0
    assert read(here / "seen.json")["address"] != first
    (trial,) = trials(here / "outputs" / "s")
    assert [run.restarts for run in read_runs(trial)] == [0, 1]


def test_a_cancelled_job_leaves_no_ray(
    start: Callable[..., object], verl: tuple[str, ...], here: Path
) -> None:
    """Scancel while the program runs."""
    start(*verl, "+trainer.environment.SECONDS_TO_RUN='600'")
    wait_for(lambda: (here / "seen.json").is_file(), seconds=240)
    time.sleep(1)
    slurm("scancel", *ours())
