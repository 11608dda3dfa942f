"""``grposweep rm``: what goes is listed with its size, nothing goes unasked, and a sweep that runs keeps its files."""

import io
import shutil
import sys
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import append_line, write_json
from grposweep.storage.lease import Lease
from grposweep.sweep.remove import remove
from support import grposweep, trials

OUTPUTS = Path("outputs")


class Terminal(io.StringIO):
    """Someone who answers."""

    def isatty(self) -> bool:
        """A terminal."""
        return True


@pytest.fixture
def large(sweep: Path) -> Path:
    """The first trial, with a checkpoint of a MiB and a model of two."""
    trial = trials(sweep)[0]
    for path, size in ((trial / "checkpoints" / "checkpoint-9" / "optimizer.pt", 1), (trial / "model" / "model.st", 2)):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size * 2**20)
    return trial


def test_a_sweep_is_listed_and_then_removed(sweep: Path, large: Path, tmp_path: Path) -> None:
    """Records, checkpoints and models, with sizes."""
    ended = grposweep(tmp_path, "rm", str(sweep), "--yes")
    assert ended.code == 0, ended.err
    assert "checkpoints: 1 file, 1.0 MiB" in ended.out
    assert "model: 1 file, 2.0 MiB" in ended.out
    assert "configuration, metrics and logs: " in ended.out
    assert not sweep.exists()
    assert not large.exists()


def test_a_trial_loses_its_checkpoints_and_model_and_stays_in_the_table(
    sweep: Path, large: Path, tmp_path: Path
) -> None:
    """The other trials lose nothing."""
    before = {path for path in sweep.rglob("*") if path.is_file()}
    assert remove(str(sweep), ["4"], tmp_path, asks=False) == 0
    gone = before - {path for path in sweep.rglob("*") if path.is_file()}
    assert {path.relative_to(large).parts[0] for path in gone} == {"checkpoints", "model"}
    assert "finished" in grposweep(tmp_path, "export", str(sweep)).out


def test_nothing_goes_without_a_yes(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that cannot answer is told of --yes."""
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    assert remove(str(sweep), [], OUTPUTS, asks=True) == 1
    assert "nothing was removed" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UserError, match="Add --yes"):
        remove(str(sweep), [], OUTPUTS, asks=True)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert remove(str(sweep), [], OUTPUTS, asks=True) == 0
    assert not sweep.exists()


def test_a_sweep_that_runs_keeps_its_files(sweep: Path) -> None:
    """A live controller holds its lease. One that was killed leaves an attempt without an end, and nothing that runs."""
    trial = trials(sweep)[1]
    (trial / "result.json").unlink()
    append_line(trial / "attempts.jsonl", {"attempt": 9, "event": "started", "job_id": "1", "time": 1.0})
    with Lease(sweep / "lease.json"), pytest.raises(UserError, match=r"its controller runs.* grposweep cancel s"):
        remove(str(sweep), [], OUTPUTS, asks=False)
    assert remove(str(sweep), [], OUTPUTS, asks=False) == 0
    assert not sweep.exists()


def test_a_removal_that_was_killed_is_finished_by_the_same_command(sweep: Path) -> None:
    """The file by which a folder is a sweep goes last; links lead out of it, and what they name stays."""
    kept = sweep.parent / "kept"
    kept.mkdir()
    (sweep / "data").symlink_to(kept)
    shutil.rmtree(sweep / "trials")
    write_json(sweep / "prepared.json", {})
    assert remove(str(sweep), [], OUTPUTS, asks=False) == 0
    assert kept.exists()
    assert not sweep.exists()


def test_a_trial_that_does_not_exist_is_named(sweep: Path) -> None:
    """With those that do."""
    with pytest.raises(UserError, match=r"9 is no trial of s. It has 4, 5, 6, 7"):
        remove(str(sweep), ["9"], OUTPUTS, asks=False)
