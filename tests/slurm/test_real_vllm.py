"""A vLLM server beside the ranks of a real Slurm job: its place, the wait for it, its end. The server is a stub."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_jobs import ours

from support import Ended, read, trials

pytestmark = pytest.mark.slurm
Run = Callable[..., Ended]
STUB = Path(__file__).with_name("vllm_stub.py")
SERVED = ("trainer=fake", "name=s", "cluster=slurm", "cluster.poll_seconds=1", "cluster.cpus_per_gpu=1", "batch=auto",
          "batch.num_generations=6", "batch.prompts_per_step=6", "generation=vllm_server")  # fmt: skip


def served_by(command: str) -> str:
    """The override for a shell line."""
    return f'generation.vllm_server_command="{command}"'


RUNS_STUB = f"{shlex.quote(sys.executable)} {shlex.quote(str(STUB))}"


def ranks(trial: Path) -> int:
    """How many of them there were."""
    return len(list((trial / "logs").glob("rank-*.log")))


@pytest.mark.parametrize("memory", ["null", "8"])
def test_a_server_takes_some_gpus_of_a_single_node(run: Run, memory: str) -> None:
    """One of four GPUs is the server's; the three ranks start when it answers, and it ends with them.

    Server and ranks share the job's memory: where the cluster counts it, whichever came first could take all of it.
    """
    shape = ("cluster.gpus_per_node=4", f"cluster.mem_gb={memory}", "cluster.walltime_min=5")
    ended = run(*SERVED, *shape, served_by(f"exec {RUNS_STUB}"))
    assert ended.code == 0, ended.err
    (trial,) = trials(ended.sweep)
    assert read(trial / "result.json")["status"] == "finished"
    assert "gpus 0\n" in (trial / "logs" / "vllm.log").read_text()
    assert "the vLLM server answers" in (trial / "logs" / "job.log").read_text()
    assert ranks(trial) == 3
    assert not ours()


def test_a_server_takes_the_last_of_several_nodes(run: Run) -> None:
    """Two nodes with two GPUs each: two ranks on the first, and four GPUs on the bill."""
    shape = ("cluster.nodes=2", "cluster.gpus_per_node=2", "generation.vllm_gpus=2")
    ended = run(*SERVED, *shape, served_by(f"exec {RUNS_STUB}"))
    assert ended.code == 0, ended.err
    (trial,) = trials(ended.sweep)
    result = read(trial / "result.json")
    assert "node n2 gpus 0,1\n" in (trial / "logs" / "vllm.log").read_text()
    assert ranks(trial) == 2
    assert result["gpu_seconds"] == pytest.approx(4 * result["seconds"], abs=0.1)


@pytest.mark.parametrize("command", ["echo no such model; exit 7", f"timeout 6 {RUNS_STUB}"])
def test_a_server_that_ends_too_early_is_the_reason_of_the_failure(run: Run, command: str) -> None:
    """Before it ever answered, or while training runs; nobody waits until the time limit."""
    ended = run(
        *SERVED, "cluster.gpus_per_node=4", "trainer.fake.step_seconds=1", "generation.vllm_server_timeout=60",
        served_by(command),
    )  # fmt: skip
    assert ended.code == 1
    (trial,) = trials(ended.sweep)
    failure = read(trial / "result.json")["failure"]
    assert failure["kind"] == "vllm_server"
    assert "logs/vllm.log" in failure["message"]
    assert not ours()
