"""What a sweep says about a preparation that failed, and what a refused command leaves."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grporecipe.errors import ExitCode, UserError
from grposweep.schema import Cluster, Experiment
from grposweep.storage.folders import SweepFolder
from grposweep.sweep._interrupts import SignalCounter
from grposweep.sweep._start import prepare_sweep
from in_process import Sweep
from support import Run, read


class Fails:
    """A launcher whose preparation ends at once with this code, a line in its log, and an
    explanation if there is one.
    """

    where = "here"

    def __init__(self, code: int, explanation: str = "") -> None:
        self.code = code
        self.explanation = explanation

    def preparation(self, _cluster: Cluster) -> "Fails":
        return self

    def start(self, sweep: Path, log: Path) -> None:
        log.write_text("a line of the log\n")
        if self.explanation:
            (sweep / "prepare.error").write_text(f"{self.explanation}\n")

    def poll(self) -> int | None:
        return self.code

    def end(self) -> None:
        pytest.fail("it has ended")


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        (
            Fails(ExitCode.BAD_INPUT, "task.path=x: there is no such file."),
            r"^task\.path=x: there is no such file\.$",
        ),
        (
            Fails(ExitCode.BAD_INPUT),
            r"\(exit code 2\): a line of the log\. Its whole output is in .*log",
        ),
        (
            Fails(ExitCode.FAILED, "half a sen"),
            r"\(exit code 1\): a line of the log\. Its whole output is in .*log",
        ),
    ],
    ids=["bad input with its explanation", "bad input without one", "a crash"],
)
def test_a_failed_preparation_is_explained(tmp_path: Path, launcher: Any, message: str) -> None:
    """In its own words if the input is bad and it said so, otherwise by the end of its log."""
    console = Console(quiet=True)
    with pytest.raises(UserError, match=message):
        prepare_sweep(
            SweepFolder(tmp_path), {"key": Experiment()}, launcher, console, SignalCounter()
        )


def test_a_refused_command_leaves_no_folder(
    sweep_here: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty sweep would be the newest one. A sweep that has trials stays."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    words = ("trainer=fake", "name=s", "schedule.budget_completions=512")
    with pytest.raises(UserError, match=r"cluster\.gpus=2"):
        sweep_here(*words, "cluster.gpus=2")
    assert list(tmp_path.glob("outputs/*")) == []
    folder = sweep_here(*words, "cluster.gpus=0")
    with pytest.raises(UserError, match=r"cluster\.gpus=2"):
        sweep_here(*words, "cluster.gpus=2")
    assert len(list((folder / "trials").iterdir())) == 1


def test_a_reward_finds_its_neighbours_and_the_sweep_keeps_a_copy_of_them(
    run: Run, here: Path
) -> None:
    """Its file may be in any folder. A package comes before a file of its name."""
    (here / "rewards").mkdir()
    (here / "rewards" / "mine.py").write_text(
        "import tool, yaml\n\n\ndef f(completions):\n    return [tool.x] * len(completions)\n"
    )
    (here / "rewards" / "tool.py").write_text("import other\n\nx = other.x\n")
    (here / "other.py").write_text("x = 1.0\n")
    (here / "rewards" / "yaml.py").write_text("raise RuntimeError('not the package')\n")
    ended = run(
        "trainer=fake",
        "schedule.max_steps=4",
        "schedule=steps",
        "name=s",
        "task.rewards=[rewards/mine.py:f]",
    )
    assert ended.code == 0, ended
    assert read(ended.sweep / "inputs.json")["files"].keys() == {
        "rewards/mine.py",
        "rewards/tool.py",
        "other.py",
    }
