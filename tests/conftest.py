"""The command as a subprocess, from a folder of its own whose name has a space; and Hydra's own
composition.
"""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hypothesis import settings
from omegaconf import DictConfig

from command_server import Started
from grposweep.config.compose import Session, open_session, register_schema
from grposweep.config.points import Compose
from grposweep.process import PROJECT
from in_process import Sweep, sweeps_in
from support import RUN, Ended, Printed, Run, Start, StartInterpreter, environment, examples, run_in

# Modules whose tests are all of another tier: pytest would import them, and torch with them, to
# deselect all of it.
ELSEWHERE = re.compile(r"^pytestmark = \[?pytest\.mark\.(slow|slurm|gpu|gpu_stack)\b", re.MULTILINE)

# of CPU time in the test's own process; on a busy machine a second is two
MOST_SECONDS = 20.0

# The same examples at each run, so that a failure can be repeated and is one of the change. `make
# thorough` draws new ones.
settings.register_profile(
    "repeatable",
    derandomize="GRPOSWEEP_THOROUGH" not in os.environ,
    # a busy machine takes any time
    deadline=None,
    max_examples=examples(100),
)
settings.load_profile("repeatable")

# Torch reads it when it is imported. With more threads a tiny model takes ten times as long where
# other workers need the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# set in xdist's workers only: what is printed would be of another width there
os.environ.pop("COLUMNS", None)
# a command sets it, and reads it as the user's wish
os.environ.pop("HYDRA_FULL_ERROR", None)
# not the user's index of sweeps
os.environ.setdefault("GRPOSWEEP_CACHE", str(Path.home() / ".cache/grposweep/tests"))


def pytest_collection_finish() -> None:
    """Look for cycles rarely, and never in what the imports left: a tenth of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test of the default tier that takes more of the processor than any should; waiting
    does not count.
    """
    start = time.process_time()
    result = yield
    took = time.process_time() - start
    if took > MOST_SECONDS and "not slow" in item.config.option.markexpr:
        pytest.fail(
            f"took {took:.0f} s of CPU time; mark it slow, or make it faster (most take hundredths)"
        )
    return result


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the folders and modules of another tier."""
    if collection_path.name in ("gpu", "gpu_stack"):
        return f"not {collection_path.name}" in config.option.markexpr or None
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    tier = ELSEWHERE.search(collection_path.read_text())
    return True if tier and f"not {tier[1]}" in config.option.markexpr else None


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The working directory of the commands below."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    return folder


@pytest.fixture
def run(here: Path) -> Run:
    """``run("-m", "lr=...")`` runs the command to its end."""

    def call(*arguments: str, timeout: float = 300) -> Ended:
        return run_in(here, *arguments, timeout=timeout)

    return call


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """``printed()``: what went to the terminal since the last call, without errors."""
    return lambda: capsys.readouterr().out


@pytest.fixture
def sweep_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """``sweep_here("name=s", "lr=1e-3,2e-3")``: a whole sweep in this process; its folder."""
    return sweeps_in(tmp_path, monkeypatch)


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    """``start(...)`` starts the command, for interrupting and killing; it ends with the test at the
    latest.
    """
    started: list[Started] = []

    def call(*arguments: str) -> Started:
        started.append(Started([str(RUN), *arguments], environment(), here))
        return started[-1]

    yield call
    for process in started:
        process.kill()
        process.wait()


def accept_interrupts() -> None:
    """A process started in the background inherits that Ctrl-C is ignored, and its children with
    it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start_interpreter(here: Path) -> Iterator[StartInterpreter]:
    """The same in a new interpreter, for what happens before a command begins, and to its
    children.
    """
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(RUN), *arguments]
        process = subprocess.Popen(
            command,
            cwd=here,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=accept_interrupts,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


# once for all tests
register_schema()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Take back what a command leaves in its process: ``recipe`` options, which external trainers
    offer to Hydra, and a wish.
    """
    os.environ.pop("HYDRA_FULL_ERROR", None)
    groups = ConfigStore.instance().repo
    for name, options in list(groups.items()):
        if isinstance(options, dict) and options.pop("recipe.yaml", None) and not options:
            del groups[name]


@cache
def composed(*overrides: str) -> DictConfig:
    """One composition, kept for all modules."""
    return hydra_compose("config", list(overrides), return_hydra_config=True)


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    """``compose(["batch=small"])``: what Hydra makes of overrides, its own section included."""
    with initialize_config_dir(config_dir=str(PROJECT / "conf"), version_base="1.3"):
        yield lambda overrides: composed(*overrides)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Hydra over conf/."""
    with open_session() as opened:
        yield opened
