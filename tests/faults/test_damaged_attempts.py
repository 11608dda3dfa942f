"""An attempt whose files were lost or torn, with its controller: the trial continues, and is worth
what it was.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .sweeps import EASY, Scenario, Stage, known, staged

# 18 sweeps, a second each
pytestmark = pytest.mark.slow
SCENARIO = Scenario((*EASY, "lr=1e-3,2e-3"))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two trials, one after the other."""
    with staged(SCENARIO, tmp_path_factory.mktemp("damaged")) as stage:
        yield stage


def half(path: Path) -> None:
    """A machine that died while it wrote."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def nothing(path: Path) -> None:
    """A file without its content, as some file systems leave it after a crash."""
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [half, nothing, Path.unlink])
@pytest.mark.parametrize(
    "name",
    ["result.json", "metrics.jsonl", "attempts.jsonl", "runs.jsonl", "heartbeat", "trial.json"],
)
def test_a_lost_or_torn_file_costs_no_trial(
    stage: Stage, name: str, damage: Callable[[Path], None]
) -> None:
    """The controller died before it looked, so only the file said it."""
    stage.clear()
    stage.controller()
    undisturbed = known(stage.sweep)
    calls = stage.calls()
    ends = [
        n
        for n, call in enumerate(calls)
        if call.startswith("before write trials/0000") and "attempts" in call
    ]
    stage.clear()
    # intent, started, and what would have been the end
    assert stage.controller(ends[2]) == -9
    (trial,) = stage.sweep.glob("trials/0000-*")
    damage(trial / name)
    assert stage.controller() == 0, (stage.here / "log").read_text()[-800:]
    # A trial that has its result keeps it; what its evaluations were, the study only knows from
    # metrics.jsonl.
    assert [trial[:5] for trial in known(stage.sweep)] == [trial[:5] for trial in undisturbed]
