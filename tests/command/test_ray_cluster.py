"""A job's Ray cluster, with a program in Ray's place: what starts when, why it fails, and that
nothing is left.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grporecipe.errors import UserError
from grposweep.command import _ray_cluster as ray_cluster
from grposweep.command._contract import RayCluster
from grposweep.command._ray_cluster import RayNode, StoppedEarly, make_folder, wait_for_head
from grposweep.process import MARK, start_guard
from support import read, wait_for

# A Python that knows nothing but what is asked of Ray; $FAKE holds what has happened, and what is
# to go wrong.
PYTHON = """#!/bin/sh
case "$*" in
*find_spec*) [ ! -e "$FAKE/no_ray" ] || { echo "ModuleNotFoundError: No module named 'ray'" >&2; exit 1; }; echo False ;;
*--head*) echo head >>"$FAKE/happened"; [ ! -e "$FAKE/no_head" ] || { echo no shared memory; exit 3; }
  for word; do case $word in --temp-dir=*) echo 10.0.0.1:4321 >"${word#*=}/ray_current_cluster" ;; esac; done; exec sleep 60 ;;
*--address=10.0.0.1:4321*) echo worker >>"$FAKE/happened"; [ ! -e "$FAKE/no_worker" ] || { echo no route to the head; exit 4; }
  exec sleep 60 ;;
*) if [ -e "$FAKE/alone" ]; then echo '[[2, 8]]'; exit 1; fi; echo '[[2, 8], [2, 8]]' ;;
esac
"""


class Job:
    """Two nodes of a job, whose processes end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = []
        (folder / "logs").mkdir()
        python = folder / "python"
        python.write_text(PYTHON)
        python.chmod(0o755)
        self.cluster = RayCluster(str(python), nodes=2, gpus=2, cpus=8)
        self.attempts = [self.attempt(rank) for rank in (0, 1)]

    def attempt(self, rank: int) -> Any:
        """Our process on a node."""
        cluster = SimpleNamespace(ray_timeout=5)
        attempt = SimpleNamespace(
            folder=self.folder,
            number=3,
            rank=rank,
            is_main=rank == 0,
            ranks=2,
            terminated=False,
            beat=lambda _: None,
            experiment=SimpleNamespace(cluster=cluster),
        )
        attempt.asks_to_stop = lambda _: attempt.terminated
        return attempt

    def start(self, command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
        """Run a command as the program would be run."""
        with log.open("wb") as output:
            self.started.append(subprocess.Popen(command, stdout=output, stderr=output))
        return self.started[-1]

    def node(self, rank: int) -> RayNode:
        """Return one node, the first one with a folder of its own."""
        attempt = self.attempts[rank]
        folder = self.folder if rank == 0 else wait_for_head(attempt)
        return RayNode(attempt, self.cluster, folder, self.start)

    def happened(self) -> list[str]:
        """What has been started, in order."""
        return (
            (self.folder / "happened").read_text().split()
            if (self.folder / "happened").is_file()
            else []
        )


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job of two nodes with two GPUs each."""
    monkeypatch.setattr(ray_cluster, "POLL_SECONDS", 0.01)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("FAKE", str(tmp_path))
    made = Job(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()


def test_the_program_runs_while_all_nodes_are_there_and_the_others_stay_as_long(job: Job) -> None:
    """A worker waits for the head's address, and ends when the head says that the program has
    ended.
    """
    # an earlier attempt's
    (job.folder / "ray.json").write_text('{"attempt": 2, "ended": true}')
    other = threading.Thread(target=lambda: job.node(1).worker(), daemon=True)
    other.start()
    with job.node(0).head() as address:
        assert address == "10.0.0.1:4321"
        wait_for(lambda: "worker" in job.happened())
        assert other.is_alive()
    other.join(5)
    assert not other.is_alive()
    assert job.happened() == ["head", "worker"]


def enter(node: RayNode) -> None:
    """Start the head, and end it at once."""
    with node.head():
        pass


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        ("no_ray", UserError, "No module named 'ray'.*Set trainer.python"),
        (
            "no_head",
            ConnectionError,
            "Ray ended on node 0 of 2 with exit code 3. logs/ray-0.log ends with: no shared memory",
        ),
        (
            "alone",
            ConnectionError,
            "2 nodes with 2 GPUs and 8 CPUs each .* there are 2 GPUs and 8 CPUs. "
            ".*cluster.ray_timeout",
        ),
    ],
)
def test_a_cluster_that_does_not_come_up_has_one_reason(
    job: Job, fault: str, error: type[Exception], reason: str
) -> None:
    """Ray is missing, the head ends, a node does not join; the other nodes learn that there is
    nothing to wait for.
    """
    (job.folder / fault).touch()
    (job.folder / "ray.token").touch()
    with pytest.raises(error, match=reason):
        enter(job.node(0))
    assert read(job.folder / "ray.json")["ended"]
    assert not (job.folder / "ray.token").exists()


def test_a_worker_whose_ray_ends_is_the_reason(job: Job) -> None:
    """It says what its Ray said last."""
    (job.folder / "no_worker").touch()
    with (
        job.node(0).head(),
        pytest.raises(
            ConnectionError, match=r"node 1 of 2 with exit code 4. .*: no route to the head"
        ),
    ):
        job.node(1).worker()


def test_a_stop_ends_the_wait(job: Job) -> None:
    """A job's time limit may come before its last node."""
    job.attempts[0].terminated = job.attempts[1].terminated = True
    for wait in (lambda: enter(job.node(0)), lambda: job.node(1)):
        with pytest.raises(StoppedEarly):
            wait()


def test_a_worker_gives_the_program_time_to_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked to stop as well, and the program may be writing a checkpoint; but not
    forever.
    """
    monkeypatch.setattr(ray_cluster, "LAST_SECONDS", 0.3)
    with job.node(0).head():
        node = job.node(1)
        job.attempts[1].terminated = True
        other = threading.Thread(target=node.worker, daemon=True)
        other.start()
        other.join(0.1)
        assert other.is_alive()
        other.join(5)
        assert not other.is_alive()


def test_what_a_killed_process_leaves_is_removed_by_its_guard(tmp_path: Path) -> None:
    """Its guard kills Ray's processes by their mark, then removes Ray's folder."""
    folder = tmp_path / "ray-1"
    (folder / "session").mkdir(parents=True)
    left = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, MARK: "a mark"}, start_new_session=True
    )
    guard = start_guard("a mark", folder)
    assert guard.stdin is not None
    # a job's warning goes to all of its processes
    os.kill(guard.pid, signal.SIGUSR2)
    # as the kernel does for a process that was killed
    guard.stdin.close()
    assert left.wait(10) == -signal.SIGKILL
    guard.wait(10)
    assert not folder.exists()


@pytest.mark.parametrize("place", ["/tmp", "/scratch/jobs/of/a/rather/long/name/4711"])
def test_rays_folder_is_short_enough_for_its_sockets(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Unix socket's path has 107 characters, and Ray adds 66."""
    monkeypatch.setattr(ray_cluster.tempfile, "gettempdir", lambda: place)
    folder = make_folder()
    folder.rmdir()
    assert folder.parent == Path("/tmp")
    assert len(str(folder)) <= 40


def test_no_port_is_one_that_another_job_on_the_node_may_have() -> None:
    """By default every Ray takes 6379, 10001, 52365 and 10002-19999."""
    cluster = RayCluster("python", 2, 4, 32)
    head = cluster.start_head("/tmp/ray-1")
    worker = cluster.start_worker("10.0.0.1:4321")
    for command in (head, worker):
        assert {
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--dashboard-agent-listen-port=0",
        } <= set(command)
        assert {"--num-gpus=4", "--num-cpus=32", "--block", "--disable-usage-stats"} <= set(command)
    assert "--port=0" in head
    assert "--include-dashboard=false" in head
