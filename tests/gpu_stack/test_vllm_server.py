"""A real vLLM server (its CPU build) that grposweep starts, and trainers of all kinds that send it their weights."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grporecipe.errors import ExitCode
from grposweep.launchers.base import Job
from grposweep.launchers.local import Local
from grposweep.launchers.slurm.script import render_script
from grposweep.process import SOURCE
from grposweep.schema import Cluster, Generation
from train.conftest import MakeTrial, build_experiment, metrics_of, result_of

from .conftest import PATCHES, ROUNDING, Ranks, differences, log_of, wrapped
from .test_sharded_training import ADAPTERS

pytestmark = pytest.mark.gpu_stack

STEPS = 12
SECONDS = 500  # until the server must answer: it imports vLLM in four processes, one after the other
SERVED = (
    "generation.use_vllm=true", "generation.vllm_mode=server", "generation.vllm_max_model_length=32",
    "generation.vllm_gpu_memory_utilization=0.3", "model.dtype=float32", f"schedule.max_steps={STEPS}",
)  # fmt: skip
TWO = ("cluster.processes=2", "batch.per_device_train_batch_size=4")
# The overrides, and the type of the wrapped model
KINDS = {
    "one rank": ((), ""),
    "ZeRO-2": ((*TWO, "trainer.sharding=zero2"), "DeepSpeedEngine"),
    "ZeRO-3": ((*TWO, "trainer.sharding=zero3"), "DeepSpeedEngine"),
    "FSDP 2": ((*TWO, "trainer.sharding=fsdp"), "FSDP"),
    "LoRA": (ADAPTERS, ""),
    "ZeRO-3 and LoRA": ((*TWO, "trainer.sharding=zero3", *ADAPTERS), "DeepSpeedEngine"),
}


def wait_lines() -> str:
    """The lines of the Slurm script that wait for its server."""
    generation = Generation(use_vllm=True, vllm_mode="server", vllm_gpus=1, vllm_server_timeout=SECONDS)
    cluster = Cluster(kind="slurm", gpus_per_node=2, python="python")
    script = render_script(Job(Path("/s/trials/0"), 0, cluster, generation), Path("/s"), Path("/s/code"))
    said = script.index('echo "the vLLM server answers')
    return script[script.index("answers() {") : script.index("\n", said)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one that ``grposweep.train serve`` became, as in a Slurm job; it outlives its trainers."""
    assert find_spec("vllm") is not None, "vLLM is not installed here. Run these tests by: make vllm-stack"
    folder = tmp_path_factory.mktemp("served")
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(build_experiment(*SERVED))))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    told = {"PYTHONPATH": f"{PATCHES}:{SOURCE}", "GRPOSWEEP_VLLM_PORT": port, "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **told}
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    log = folder / "vllm.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "grposweep.train", "serve", str(folder)]
        started = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    known = {**told, "server": str(started.pid), "server_address": "127.0.0.1", "GRPOSWEEP_VLLM_SERVER": url}
    try:
        waited = subprocess.run(["bash", "-euo", "pipefail", "-c", wait_lines()], env={**os.environ, **known},
                                capture_output=True, text=True, check=False)  # fmt: skip
        assert f"the vLLM server answers at {url} after" in waited.stdout, waited.stdout + log.read_text()
        yield url
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.wait(timeout=300)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_samples_from_the_weights_that_are_trained(
    make_trial: MakeTrial, ranks: Ranks, server: str, kind: str
) -> None:
    """In all twelve steps, while the weights change."""
    overrides, type_name = KINDS[kind]
    folder = make_trial(*SERVED, f"generation.vllm_server_base_url={server}", *overrides)
    assert ranks.train(folder) == ExitCode.FINISHED, log_of(folder)
    found = differences(folder)
    print(kind, found)  # pytest shows it with -rP, or where the test fails
    assert len(found) == STEPS
    assert max(found) < ROUNDING
    assert all(line["update_size"] > 0 for line in metrics_of(folder) if line["kind"] == "train")
    assert all(name.startswith(type_name) for name in wrapped(folder))


def test_trl_alone_sends_a_server_the_weights_of_the_base_model(
    make_trial: MakeTrial, ranks: Ranks, server: str
) -> None:
    """The negative control of LoRA: without our copies TRL unmerges the adapter before its weights are sent."""
    learns_quickly = ("lr=1e-2", "schedule.max_steps=40")
    folder = make_trial(*SERVED, f"generation.vllm_server_base_url={server}", *ADAPTERS, *learns_quickly)
    assert ranks.train(folder, GPU_STACK_STOCK_LORA="1") == ExitCode.BAD_INPUT, log_of(folder)
    found = differences(folder)
    print(found)
    assert found[0] < ROUNDING
    assert len(found) < 40
    assert "the engine's weights are stale" in result_of(folder)["failure"]["message"]


def test_a_trial_starts_its_own_server_and_takes_it_down(make_trial: MakeTrial, ranks: Ranks) -> None:
    """On this machine, on one of two GPUs; these are names, and both train and sample on the CPU."""
    own = Ranks(Local(ranks.launcher.processes, ["0", "1"], slots=1))
    folder = make_trial(*SERVED, "generation.vllm_gpus=1", f"generation.vllm_server_timeout={SECONDS}")
    marked = {"GPU_STACK_MARK": str(folder), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    assert own.train(folder, **marked) == ExitCode.FINISHED, log_of(folder)
    found = differences(folder)
    print(found)
    assert len(found) == STEPS
    assert max(found) < ROUNDING
    assert "Application startup complete" in (folder / "logs" / "vllm.log").read_text()
    assert not [path for path in Path("/proc").glob("[0-9]*/environ") if is_marked(path, str(folder))]


def is_marked(path: Path, mark: str) -> bool:
    """Whether a process has the mark in its environment; one that has just ended has none."""
    try:
        return mark.encode() in path.read_bytes()
    except OSError:
        return False
