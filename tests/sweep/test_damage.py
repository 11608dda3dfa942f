"""Damaged files of a sweep are named by `status` and by the resume, with what follows; nothing is
changed.
"""

import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grposweep.report.status import status_screen
from grposweep.report.view import read_sweep
from in_process import Sweep
from support import (
    Ended,
    grposweep,
    lines,
    on_terminal,
    read,
    run_in,
    sampled,
    trials,
    unwrap,
    update,
)

COMMAND = ("trainer=fake", "name=s", "-m", "lr=1e-3,2e-3,3e-3")


def tree(sweep: Path) -> dict[str, bytes]:
    """Every file with its content."""
    return {
        str(path.relative_to(sweep)): path.read_bytes()
        for path in sweep.rglob("*")
        if path.is_file()
    }


def append(path: Path, text: str) -> None:
    """Add text at the end."""
    with path.open("a") as file:
        file.write(text)


def first(sweep: Path) -> Path:
    """The first trial's folder."""
    return trials(sweep)[0]


def finished(sweep: Path) -> Path:
    """The folder of the first trial that finished."""
    return next(
        path for path in trials(sweep) if read(path / "result.json")["status"] == "finished"
    )


def lose_number(sweep: Path, number: float | None = None) -> Path:
    """Give the finished trial a result without a number, as NaN is written or as another program
    may write it.
    """
    trial = finished(sweep)
    update(trial / "result.json", objective=number)
    return trial


def cut(path: Path) -> None:
    """Keep the first 37 bytes."""
    path.write_bytes(path.read_bytes()[:37])


def conflict(path: Path) -> None:
    """Leave both sides of a merge in a file, as git does."""
    text = path.read_text()
    head, *rest = text.splitlines(keepends=True)
    path.write_text(f"{head}<<<<<<< HEAD\n{''.join(rest)}=======\n{''.join(rest)}>>>>>>> other\n")


def make_link(sweep: Path, trial: Path) -> Path:
    """Put a trial's folder elsewhere, and a link in its place; return the link."""
    trial.rename(elsewhere := sweep.with_name("elsewhere"))
    trial.symlink_to(elsewhere)
    return trial


def write_twice(sweep: Path) -> None:
    """A second folder for a number, never attempted."""
    shutil.copytree(
        first(sweep), twin := first(sweep).with_name(first(sweep).name.split("-")[0] + "-000000")
    )
    (twin / "attempts.jsonl").unlink()
    (twin / "trial.json").write_text('{"point": {}, "attributes": {"experiment": "000000"}}')


def replace_folder(path: Path) -> None:
    """Put a folder in the place of a file."""
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "conflicts in a result": (
        lambda s: conflict(first(s) / "result.json"),
        "/result.json has conflict marks of git in line 2, so it is skipped; the trial is "
        "trained again",
    ),
    "an empty control": (
        lambda s: (first(s) / "control.json").write_text("[]"),
        "/control.json holds no JSON object, so it is skipped; the trial has no request",
    ),
    "damaged preparation": (
        lambda s: (s / "prepared.json").write_text("[1]"),
        "prepared.json holds no JSON object, so it is skipped; the sweep's command prepares again",
    ),
    "two folders": (write_twice, " has 2 folders, so one of them is skipped"),
    "no record": (
        lambda s: (first(s) / "trial.json").unlink(),
        "it is skipped; provenance.json states it",
    ),
    "no record and no copy": (
        lambda s: [(first(s) / name).unlink() for name in ("trial.json", "provenance.json")],
        "/trial.json does not state the trial's point, so the trial is skipped; overrides.yaml "
        "has the point",
    ),
    "torn attempts": (
        lambda s: append(first(s) / "attempts.jsonl", '{"atte'),
        "/attempts.jsonl has 1 torn line (line 4)",
    ),
    "torn metrics": (
        lambda s: append(first(s) / "metrics.jsonl", "\x00\x00\n{"),
        "/metrics.jsonl has 2 torn lines",
    ),
    "conflicts in metrics": (
        lambda s: conflict(finished(s) / "metrics.jsonl"),
        "/metrics.jsonl has conflict marks of git in line 2, so that line is skipped",
    ),
    "a folder": (
        lambda s: replace_folder(first(s) / "metrics.jsonl"),
        "/metrics.jsonl cannot be read (it is not a regular file), so it is skipped",
    ),
    "a step twice": (
        lambda s: append(
            finished(s) / "metrics.jsonl",
            (finished(s) / "metrics.jsonl").read_text().splitlines()[1] + "\n",
        ),
        "/metrics.jsonl has step 1 more than once, so its curve shows 1 twice",
    ),
    "no runs": (lambda s: (finished(s) / "runs.jsonl").unlink(), "/runs.jsonl lacks runs of"),
    "no configuration": (
        lambda s: (first(s) / "config.yaml").unlink(),
        "has no config.yaml that can be read",
    ),
    "another configuration": (
        lambda s: append(first(s) / "config.yaml", "seed: 5\n"),
        "/config.yaml was changed after the trial was written; restore it",
    ),
    "a cut curve": (
        lambda s: cut(finished(s) / "metrics.jsonl"),
        "/metrics.jsonl ends at step 0 of",
    ),
    "a linked trial": (lambda s: make_link(s, finished(s)), "is a symbolic link"),
    "attempts twice": (
        lambda s: append(first(s) / "attempts.jsonl", (first(s) / "attempts.jsonl").read_text()),
        "/attempts.jsonl states that attempt 0 was announced after attempt 0",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_status_names_a_damaged_file_and_what_follows(sweep: Path, name: str) -> None:
    """And changes nothing; a sound sweep has no such line."""
    assert read_sweep(sweep).damage == []
    damage, words = DAMAGE[name]
    damage(sweep)
    before = tree(sweep)
    assert any(words in line for line in read_sweep(sweep).damage), read_sweep(sweep).damage
    assert tree(sweep) == before


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended, Ended, Path]:
    """`status` of a sweep with a result in conflict and a torn line, its resume, and `status` after
    it.
    """
    here = tmp_path_factory.mktemp("damaged")
    assert run_in(here, *COMMAND).code == 0
    conflict(trials(here / "outputs" / "s")[1] / "result.json")
    append(trials(here / "outputs" / "s")[2] / "metrics.jsonl", '{"step"')
    looked = grposweep(here, "status", "s")
    return looked, run_in(here, *COMMAND), grposweep(here, "status", "s"), here / "outputs" / "s"


@pytest.mark.slow
def test_status_and_the_resume_say_the_same_lines(
    damaged: tuple[Ended, Ended, Ended, Path],
) -> None:
    """File, damage and consequence."""
    looked, resumed, _, sweep = damaged
    for ended in (looked, resumed):
        said = unwrap(ended.out)
        assert (
            f"{trials(sweep)[1].name}/result.json has conflict marks of git in line 2, so it is "
            "skipped"
        ) in said
        assert f"{trials(sweep)[2].name}/metrics.jsonl has 1 torn line" in said


@pytest.mark.slow
def test_a_trial_whose_result_is_damaged_was_attempted(
    damaged: tuple[Ended, Ended, Ended, Path],
) -> None:
    """`status` says so, counts nothing as running, and the resume trains it again."""
    looked, _, after, sweep = damaged
    assert "trial 1: attempt 0 ended, and the trial runs again" in looked.out
    assert "not running, with 1 to go" in looked.out
    assert "3 finished" in after.out
    assert "1 file" in after.out
    assert [
        line["attempt"]
        for line in lines(trials(sweep)[1] / "attempts.jsonl")
        if line["event"] == "intent"
    ] == [
        0,
        1,
    ]


@pytest.mark.parametrize("number", sampled([None, math.nan], 2))
def test_a_finished_trial_without_a_number_has_one_state_everywhere(
    sweep_here: Sweep, number: float | None
) -> None:
    """It has failed, with its reason; the sweep's command runs it again."""
    words = [word for word in COMMAND if word != "-m"]
    sweep = sweep_here(*words)
    trial = lose_number(sweep, number)
    looked = on_terminal(status_screen(read_sweep(sweep)))
    assert "2 finished, 1 failed" in looked
    assert "it finished without a number as its objective" in looked
    sweep_here(*words)
    assert read(trial / "result.json")["objective"] is not None
    assert "3 finished" in on_terminal(status_screen(read_sweep(sweep)))


@pytest.mark.slow
def test_a_resume_trains_into_no_link(tmp_path: Path) -> None:
    """It is refused with the link's name before anything is written; a trial that is over may lie
    elsewhere.
    """
    command = ("trainer=fake", "name=s", "trainer.args.crash_above_lr=5e-3", "-m", "lr=1e-3,1e-2")
    assert run_in(tmp_path, *command).code == 0
    sweep = tmp_path / "outputs" / "s"
    make_link(sweep, finished(sweep))
    assert run_in(tmp_path, *command).code == 0
    failed = next(
        path for path in trials(sweep) if read(path / "result.json")["status"] == "failed"
    )
    failed.rename(tmp_path / "other")
    failed.symlink_to(tmp_path / "other")
    before = tree(tmp_path / "other")
    ended = grposweep(tmp_path, "retry", "s")
    assert ended.code == 2
    assert f"{failed} is a symbolic link to {tmp_path / 'other'}" in ended.err
    assert tree(tmp_path / "other") == before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="its file system takes UTF-8 names only")
def test_a_working_directory_whose_name_is_not_utf8_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """In one line that shows the name, and so is such a folder of outputs."""
    here = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    here.mkdir()
    ended = run_in(here, "trainer=fake", "name=s")
    assert (ended.code, ended.err.count("\n")) == (2, 1), ended.err
    assert rf"{tmp_path}/caf\xe9 has a name that is not UTF-8" in ended.err
    assert list(here.iterdir()) == []
    assert run_in(tmp_path, "trainer=fake", "name=s", f"outputs={here}").code == 2
    assert list(here.iterdir()) == []
