"""The sbatch script, as a person reads it: a golden file whose diff shows every change."""

import os
import subprocess
from pathlib import Path

import pytest

from grposweep.files import PROJECT
from grposweep.launchers.base import Job
from grposweep.launchers.slurm.script import render_script, submit_environment
from grposweep.schema import Cluster, Generation

GOLDEN = Path(__file__).parent
ACCEPT = "ACCEPT_SCRIPT=1 python -m pytest tests/launchers/slurm/test_script.py"
EVERYTHING = Cluster(
    kind="slurm", nodes=2, gpus_per_node=4, processes=8, cpus_per_gpu=6, threads=2, mem_gb=200, walltime_min=240,
    partition="gpu", account="lab", qos="high", constraint="a100|h100", exclude="n[3-4]", setup=["module load cuda"],
    container=["--container-image=/images/a b.sqsh"], extra=["--exclusive"], python="/opt/venv/bin/python",
)  # fmt: skip


SERVER = Generation(use_vllm=True, vllm_mode="server", vllm_gpus=2, vllm_tensor_parallel_size=2)
ONE_NODE = Cluster(kind="slurm", gpus_per_node=8, processes=6, cpus_per_gpu=6, python="python")
LAST_NODE = Cluster(kind="slurm", nodes=3, gpus_per_node=2, processes=4, cpus_per_gpu=6, python="python")
SCRIPTS = {
    "trial.sbatch": (EVERYTHING, Generation()),
    "vllm_one_node.sbatch": (ONE_NODE, SERVER),
    "vllm_last_node.sbatch": (LAST_NODE, SERVER),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_the_one_that_was_read_last(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes with every option set; a vLLM server on two of a node's GPUs, and on the last of three nodes."""
    monkeypatch.chdir("/")
    sweep, (cluster, generation) = Path("/runs/a sweep"), SCRIPTS[name]
    script = render_script(
        Job(sweep / "trials" / "0007-3f9a1c", 2, cluster, generation), sweep, sweep / "code" / "7be1"
    )
    if os.environ.get("ACCEPT_SCRIPT"):
        (GOLDEN / name).write_text(script)
    assert script == (GOLDEN / name).read_text(), f"read the difference; to accept it: {ACCEPT}"


@pytest.mark.parametrize(
    ("cluster", "generation"), [*SCRIPTS.values(), (Cluster(kind="slurm"), Generation())], ids=[*SCRIPTS, "nothing"]
)
def test_the_script_is_valid_shell(cluster: Cluster, generation: Generation, tmp_path: Path) -> None:
    """Also for hostile folders."""
    folder = tmp_path / 'it\'s "x" %j $HOME `id`\nnew line' / "trials" / "0007-3f9a1c"
    script = render_script(Job(folder, 0, cluster, generation), folder.parent.parent, folder)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert not [line for line in lines if "%" in line or "'" in line]


def test_a_job_inherits_nothing_of_the_job_that_submits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller may itself be a job; a person's default account counts where the configuration names none."""
    for name in ("SLURM_NTASKS", "SBATCH_TIMELIMIT", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "RANK", "SLURM_CONF"):
        monkeypatch.setenv(name, "outer")
    found = submit_environment(Cluster(kind="slurm", partition="gpu"))
    assert {name for name, value in found.items() if value == "outer"} == {"SLURM_CONF", "SBATCH_ACCOUNT"}
    assert str(PROJECT / "src") in found["PYTHONPATH"]
