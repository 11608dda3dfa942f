"""CPU ranks that train the tiny model sharded or with vLLM, through grposweep's own launcher, from one warm server."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from grporecipe.files import append_line, read_lines
from grposweep.config.compose import load_experiment
from grposweep.launchers.base import Job
from grposweep.launchers.local import TRAINING, TRL, Local
from grposweep.process import ForkServer
from grposweep.train.vllm import DIFFERENCE
from train.conftest import make_trial, metrics_of  # noqa: F401 - make_trial is a fixture

PATCHES = Path(__file__).with_name("patches")
SECONDS = 600.0  # that one attempt may take on busy cores, with a vLLM server that starts
# What vLLM needs on a CPU in addition to TRL; its first two are of our patches.
VLLM = {
    "GPU_STACK_VLLM": "1",
    "GPU_STACK_DTYPE": "float32",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; else a share of the machine's memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # colocated: TRL reaches into the engine of its own process
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@pytest.fixture(scope="session", autouse=True)
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The environment of every process that these tests start. They never skip: without DeepSpeed they fail."""
    assert find_spec("deepspeed") is not None, "DeepSpeed is not installed here. Run these tests by: make gpu-stack"
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
        append_line(folder / "attempts.jsonl", {"attempt": sum(1 for _ in read_lines(folder / "attempts.jsonl"))})
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
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted((folder / "logs").glob("*.log")))


# TRL's mean difference of log-probabilities between trainer and engine, in nats per token. Measured in sync: 3e-7 to 2e-6 in
# float32. A test of vLLM without it proves nothing: an engine that gets no weights trains as well.
ROUNDING = 1e-5


def differences(folder: Path) -> list[float]:
    """That of each optimizer step; every step has one."""
    return [line[DIFFERENCE] for line in metrics_of(folder) if line["kind"] == "train"]
