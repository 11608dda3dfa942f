"""CPU ranks that train the tiny model sharded or with vLLM, through grposweep's own launcher, from
one warm server.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from grporecipe.files import append_line, read_lines
from grposweep.config.compose import load_experiment
from grposweep.launchers.base import Job
from grposweep.launchers.local import TRAINING, TRL, Local
from grposweep.launchers.slurm._script import render_script
from grposweep.process import SOURCE, ForkServer
from grposweep.schema import Cluster, Generation
from grposweep.train._vllm import DIFFERENCE
from train.conftest import build_experiment, make_trial, metrics_of  # noqa: F401 - make_trial is a fixture

PATCHES = Path(__file__).with_name("patches")
# that one attempt may take on busy cores, with a vLLM server that starts
SECONDS = 600.0
# What vLLM needs on a CPU in addition to TRL; its first two are of our patches.
VLLM = {
    "GPU_STACK_VLLM": "1",
    "GPU_STACK_DTYPE": "float32",
    # GiB; else a share of the machine's memory
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # colocated: TRL reaches into the engine of its own process
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@pytest.fixture(scope="session", autouse=True)
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The environment of every process that these tests start. They never skip: without DeepSpeed
    they fail.
    """
    assert find_spec("deepspeed") is not None, (
        "DeepSpeed is not installed here. Run these tests by: make gpu-stack"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PATCHES))
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setenv("HF_HUB_OFFLINE", "1")
        if find_spec("vllm") is not None:
            patch.setenv("VLLM_CACHE_ROOT", str(tmp_path_factory.mktemp("vllm")))
            for name, value in VLLM.items():
                patch.setenv(name, value)
        yield


@dataclass
class Ranks:
    """Starts attempts of as many ranks as their configuration says, and waits for their end."""

    launcher: Local

    def train(self, folder: Path, **environment: str) -> int:
        """Run the next attempt of a trial; return its exit code."""
        attempt = sum(1 for _ in read_lines(folder / "attempts.jsonl")) - 1
        experiment = load_experiment(folder / "config.yaml")
        cluster = replace(experiment.cluster, environment=environment)
        job = self.launcher.submit(Job(folder, attempt, cluster, experiment.generation))
        until = time.monotonic() + SECONDS
        while (end := self.launcher.poll(job)) is None:
            if time.monotonic() > until:
                self.launcher.cancel(job)
                raise TimeoutError(log_of(folder))
            time.sleep(0.05)
        return end.code

    def train_again(self, folder: Path, **environment: str) -> int:
        """Announce another attempt of a trial and run it, as the controller does."""
        append_line(
            folder / "attempts.jsonl",
            {"attempt": sum(1 for _ in read_lines(folder / "attempts.jsonl"))},
        )
        return self.train(folder, **environment)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Imports take longer than these trainings, so one warm server forks all of them."""
    launcher = Local(ForkServer([*TRAINING, *TRL]), [], slots=1)
    yield Ranks(launcher)
    launcher.close()


def wrapped(folder: Path) -> set[str]:
    """The types of the models that the ranks of the last attempt trained."""
    return {json.loads(path.read_text()) for path in folder.glob("wrapped-*.json")}


def log_of(folder: Path) -> str:
    """What the ranks said, for a failing test."""
    return "\n".join(
        f"{path.name}:\n{path.read_text()}" for path in sorted((folder / "logs").glob("*.log"))
    )


# TRL's mean difference of log-probabilities between trainer and engine, in nats per token. Measured
# in sync: 3e-7 to 2e-6 in float32. A test of vLLM without it proves nothing: an engine that gets no
# weights trains as well.
ROUNDING = 1e-5


def differences(folder: Path) -> list[float]:
    """That of each optimizer step; every step has one."""
    return [line[DIFFERENCE] for line in metrics_of(folder) if line["kind"] == "train"]


STEPS = 12
# until the server must answer: it imports vLLM in four processes, one after the other
SERVER_SECONDS = 500
SERVED = (
    "generation.use_vllm=true",
    "generation.vllm_mode=server",
    "generation.vllm_max_model_length=32",
    "generation.vllm_gpu_memory_utilization=0.3",
    "model.dtype=float32",
    f"schedule.max_steps={STEPS}",
)


def wait_lines() -> str:
    """The lines of the Slurm script that wait for its server."""
    generation = Generation(
        use_vllm=True, vllm_mode="server", vllm_gpus=1, vllm_server_timeout=SERVER_SECONDS
    )
    cluster = Cluster(kind="slurm", gpus_per_node=2, python="python")
    script = render_script(
        Job(Path("/s/trials/0"), 0, cluster, generation), Path("/s"), Path("/s/code")
    )
    said = script.index('echo "the vLLM server answers')
    return script[script.index("answers() {") : script.index("\n", said)]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one that ``grposweep.train serve`` became, as in a Slurm job; it outlives its
    trainers.
    """
    assert find_spec("vllm") is not None, (
        "vLLM is not installed here. Run these tests by: make vllm-stack"
    )
    folder = tmp_path_factory.mktemp("served")
    (folder / "config.yaml").write_text(
        OmegaConf.to_yaml(OmegaConf.structured(build_experiment(*SERVED)))
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    told = {
        "PYTHONPATH": f"{PATCHES}:{SOURCE}",
        "GRPOSWEEP_VLLM_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    environment = {**os.environ, **told}
    del environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
    log = folder / "vllm.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "grposweep.train", "serve", str(folder)]
        started = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    url = f"http://127.0.0.1:{port}"
    known = {
        **told,
        "server": str(started.pid),
        "server_address": "127.0.0.1",
        "GRPOSWEEP_VLLM_SERVER": url,
    }
    try:
        waited = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", wait_lines()],
            env={**os.environ, **known},
            capture_output=True,
            text=True,
            check=False,
        )
        assert f"the vLLM server answers at {url} after" in waited.stdout, (
            waited.stdout + log.read_text()
        )
        yield url
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.wait(timeout=300)


def is_marked(path: Path, mark: str) -> bool:
    """Whether a process has the mark in its environment; one that has just ended has none."""
    try:
        return mark.encode() in path.read_bytes()
    except OSError:
        return False


def left_after(seconds: float, mark: str) -> list[Path]:
    """The processes with the mark that still run after so long: the guard that kills a server's
    engines needs a moment.
    """
    until = time.monotonic() + seconds
    while (
        found := [path for path in Path("/proc").glob("[0-9]*/environ") if is_marked(path, mark)]
    ) and (time.monotonic() < until):
        time.sleep(0.2)
    return found
