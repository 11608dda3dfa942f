"""Two CPU ranks that train the tiny model sharded, through grposweep's own launcher, from one warm server."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from grposweep.files import append_line, read_lines
from grposweep.launchers.base import Job
from grposweep.launchers.local import TRAINING, TRL, Local
from grposweep.process import ForkServer
from grposweep.schema import Cluster
from train.conftest import make_trial  # noqa: F401 - a fixture

PATCHES = Path(__file__).with_name("patches")
SECONDS = 300.0  # that one attempt may take on busy cores


@pytest.fixture(scope="session", autouse=True)
def stack() -> Iterator[None]:
    """The environment of every process that these tests start. They never skip: without DeepSpeed they fail."""
    assert find_spec("deepspeed") is not None, "DeepSpeed is not installed here. Run these tests by: make gpu-stack"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PATCHES))
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@dataclass
class Ranks:
    """Starts attempts of two ranks and waits for their end."""

    launcher: Local

    def train(self, folder: Path, **environment: str) -> int:
        """Run the next attempt of a trial; return its exit code."""
        attempt = sum(1 for _ in read_lines(folder / "attempts.jsonl")) - 1
        job = self.launcher.submit(Job(folder, attempt, Cluster(processes=2), environment=environment))
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
