"""A rank of a job finds its place among the others, by its launcher's variables."""

import subprocess
import sys
from pathlib import Path

import pytest

from grposweep.launchers.slurm.launcher import Slurm
from grposweep.schema import Cluster, Experiment, Generation
from grposweep.train.process import devices, torch_variables
from support import PROJECT, environment

SLURM = Slurm.scheduler
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    "GRPOSWEEP_PORT": "11234",
}


def test_sruns_variables_become_torchs() -> None:
    """The script chooses the job's ports, so that two jobs on a node do not meet."""
    assert torch_variables(SLURM.rank_place(SRUN), {}) == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "11234",
    }


def test_ranks_meet_at_the_first_node_as_slurm_reaches_it() -> None:
    """Srun's own address is loopback where nodes resolve themselves to it."""
    place = SLURM.rank_place(
        {**SRUN, "SLURM_LAUNCH_NODE_IPADDR": "127.0.1.1", "GRPOSWEEP_FIRST_NODE": "n1.cluster"}
    )
    assert place.address == "n1.cluster"


def test_the_address_in_the_jobs_setup_lines_wins() -> None:
    """Some clusters route over another interface."""
    found = torch_variables(SLURM.rank_place(SRUN), {"MASTER_ADDR": "ib0", "MASTER_PORT": "7"})
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("ib0", "7")


def test_a_single_rank_needs_no_group() -> None:
    """So torch.distributed is not started."""
    assert torch_variables(SLURM.rank_place({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}), {}) == {}


REPORT = """
import os, pathlib
from grposweep.train.process import port_for_weights, restarts, take_rank_place
take_rank_place(pathlib.Path.cwd())
print(os.environ["GRPOSWEEP_ATTEMPT"], restarts(), port_for_weights(), os.environ.get("RANK"))
print(os.environ.get("VLLM_HOST_IP"))
"""


@pytest.mark.parametrize(
    ("ranks", "log"), [({"GRPOSWEEP_RANKS": "slurm"}, "5 2 11236 5\n127.0.0.1"), ({}, None)]
)
def test_a_restarted_job_is_a_later_attempt_and_has_its_own_log(
    tmp_path: Path, ranks: dict[str, str], log: str | None
) -> None:
    """Only if the job's script says so: an interactive shell on a cluster has the same
    variables.
    """
    (tmp_path / "logs").mkdir()
    server = {"GRPOSWEEP_VLLM_SERVER": "http://127.0.0.1:11235"}
    job = {**SRUN, **ranks, **server, "SLURM_RESTART_COUNT": "2", "GRPOSWEEP_ATTEMPT": "3"}
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(PROJECT / "src"), **job),
        capture_output=True,
        text=True,
        check=True,
    )
    written = tmp_path / "logs" / "rank-5.log"
    assert (written.read_text().strip() if written.exists() else None) == log
    assert (done.stdout == "") is (log is not None)


def test_a_job_holds_its_servers_gpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes with four GPUs, six of them for ranks; the same folder here holds as many as it has
    ranks.
    """
    job = Experiment(cluster=Cluster(kind="slurm", nodes=2, gpus_per_node=4, processes=6))
    assert devices(job) == 6
    monkeypatch.setenv("GRPOSWEEP_RANKS", "slurm")
    assert devices(job) == 8
    monkeypatch.delenv("GRPOSWEEP_RANKS")
    served = Experiment(cluster=Cluster(processes=3), generation=Generation(vllm_gpus=1))
    assert devices(served) == 4


def test_a_rank_that_cannot_reach_the_first_one_says_so() -> None:
    """Without a loopback interface, torch.distributed waits for half an hour."""
    if subprocess.call("unshare --user --net true", shell=True):
        pytest.skip("a network of its own needs unshare (util-linux) and user namespaces")
    call = "from grposweep.train.process import reach_first_rank as reach; reach(1.0)"
    place = {"RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    for enter, says in (
        ((), ""),
        (("unshare", "--user", "--net"), "rank 1 cannot reach the first rank at 127.0.0.1:9"),
    ):
        command = [*enter, sys.executable, "-c", call]
        ended = subprocess.run(
            command, env=environment(**place), capture_output=True, text=True, check=False
        )
        assert ended.returncode == bool(says)
        assert says in ended.stderr
