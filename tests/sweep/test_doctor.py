"""The doctor finds what was broken, says what would repair it, and repairs it without losing anything."""

import io
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import append_line, write_json
from grposweep.storage import lease as lease_module
from grposweep.storage.lease import Lease
from grposweep.storage.results import run_cost
from grposweep.sweep.doctor import run_checks
from support import environment, grposweep, read, run_in, trials


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A holder of a lease is given up after half a second."""
    monkeypatch.setattr(lease_module, "PATIENCE_SECONDS", 0.6)
    monkeypatch.setattr(lease_module, "BEAT_SECONDS", 0.1)
    return


def doctor(sweep: Path, repair: bool = False) -> tuple[int, str]:
    """The exit code and what was said."""
    out = io.StringIO()
    code = run_checks(str(sweep), Path("outputs"), repair, out)
    return code, out.getvalue()


def tree(sweep: Path) -> dict[str, bytes]:
    """Every file with its content."""
    return {str(path.relative_to(sweep)): path.read_bytes() for path in sweep.rglob("*") if path.is_file()}


def test_a_finished_sweep_is_sound_and_looking_changes_nothing(sweep: Path) -> None:
    """Not a byte."""
    before = tree(sweep)
    assert doctor(sweep) == (0, "s is sound: 4 trials, 2 finished, 2 failed, 0 unfinished\n")
    assert doctor(sweep, repair=True)[0] == 0
    assert tree(sweep) == before


def write(path: Path, text: str) -> None:
    """Replace or append, by the text's first letter."""
    with path.open("a" if text.startswith("+") else "w") as file:
        file.write(text.removeprefix("+"))


def first(sweep: Path) -> Path:
    """The first trial's folder."""
    return trials(sweep)[0]


def finished(sweep: Path) -> Path:
    """The folder of the first trial that finished."""
    return next(path for path in trials(sweep) if read(path / "result.json")["status"] == "finished")


def lose_number(sweep: Path, number: float | None = None) -> Path:
    """Give the finished trial a result without a number, as NaN is written or as another program may write it."""
    trial = finished(sweep)
    (trial / "result.json").write_text(json.dumps({**read(trial / "result.json"), "objective": number}))
    return trial


def cut(path: Path) -> None:
    """Keep the first 37 bytes."""
    path.write_bytes(path.read_bytes()[:37])


def make_link(sweep: Path, trial: Path) -> Path:
    """Put a trial's folder elsewhere, and a link in its place; return the link."""
    trial.rename(elsewhere := sweep.with_name("elsewhere"))
    trial.symlink_to(elsewhere)
    return trial


def write_twice(sweep: Path) -> None:
    """A second folder for a number, never attempted."""
    shutil.copytree(first(sweep), twin := first(sweep).with_name(first(sweep).name.split("-")[0] + "-000000"))
    (twin / "attempts.jsonl").unlink()
    (twin / "trial.json").write_text('{"point": {}, "attributes": {"experiment": "000000"}}')


def leave_draft(sweep: Path, name: str) -> None:
    """Of a writer that died an hour ago; a fresh one may be a living writer's."""
    (first(sweep) / name).write_text("{")
    age(first(sweep) / name)


def age(path: Path) -> None:
    """Make a file an hour old."""
    os.utime(path, (time.time() - 3600,) * 2, follow_symlinks=False)


def leave_lease(sweep: Path) -> None:
    """Of a controller whose pid no process has."""
    write_json(sweep / "lease.json", {"owner": "x", "host": socket.gethostname(), "pid": 2**22 + 1, "counter": 3})


def reopen_attempt(sweep: Path) -> None:
    """An attempt whose end was not seen, with its controller gone."""
    append_line(first(sweep) / "attempts.jsonl", {"attempt": 1, "event": "intent", "time": 1.0})
    append_line(first(sweep) / "attempts.jsonl", {"attempt": 1, "event": "started", "job_id": "local-77"})


def repeat_step(sweep: Path) -> None:
    """A step that two attempts wrote."""
    path = first(sweep) / "metrics.jsonl"
    write(path, "+" + path.read_text().splitlines()[-1] + "\n")


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "two folders": (write_twice, "is a second folder of trial"),
    "damaged control": (lambda s: write(first(s) / "control.json", "{"), "control.json is damaged: set it aside"),
    "damaged preparation": (lambda s: write(s / "prepared.json", "[1]"), "prepared.json is damaged"),
    "no record": (lambda s: (first(s) / "trial.json").unlink(), "write it again from provenance.json"),
    "torn attempts": (lambda s: write(first(s) / "attempts.jsonl", '+{"atte'), "attempts.jsonl has 1 torn line"),
    "torn metrics": (lambda s: write(first(s) / "metrics.jsonl", "+\x00\x00\n{"), "metrics.jsonl has 2 torn lines"),
    "a step twice": (repeat_step, "metrics.jsonl has step"),
    "no number": (lose_number, "result.json has no number as objective of a finished trial: set it aside"),
    "NaN": (lambda s: lose_number(s, math.nan), "result.json has no number as objective of a finished trial"),
    "cut runs": (lambda s: cut(finished(s) / "runs.jsonl"), "runs.jsonl lacks runs of"),
    "no runs": (lambda s: (finished(s) / "runs.jsonl").unlink(), "runs.jsonl lacks runs of"),
    "an open attempt": (reopen_attempt, "attempt 1 of"),
    "a draft": (lambda s: leave_draft(s, ".result.json.abcd1234"), "is the draft of a writer that died"),
    "a heartbeat's draft": (lambda s: leave_draft(s, ".heartbeat.attempt.new"), "is the draft of a writer that died"),
    "a lease": (leave_lease, "lease.json was left by a controller that died"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_named_and_repaired(sweep: Path, name: str) -> None:
    """Exit code 1 and no change; with --repair 0."""
    damage, words = DAMAGE[name]
    damage(sweep)
    damaged = tree(sweep)
    code, said = doctor(sweep)
    assert code == 1
    assert words in said
    assert tree(sweep) == damaged
    code, said = doctor(sweep, repair=True)
    assert (code, said.splitlines()[-1].startswith("s is sound")) == (0, True), said
    assert doctor(sweep)[0] == 0


def test_the_last_line_says_what_a_repair_would_do(sweep: Path) -> None:
    """One problem, which it repairs."""
    leave_draft(sweep, ".result.json.abcd1234")
    assert doctor(sweep)[1].splitlines()[-1].startswith("s has 1 problem; --repair repairs it")


FOR_THE_USER: dict[str, tuple[Callable[[Path], object], str]] = {
    "no record and no copy": (
        lambda s: [(first(s) / name).unlink() for name in ("trial.json", "provenance.json")],
        "trial.json does not state the trial's point: read it from overrides.yaml",
    ),
    "no configuration": (lambda s: (first(s) / "config.yaml").unlink(), "has no config.yaml"),
    "another configuration": (
        lambda s: write(
            first(s) / "config.yaml", (first(s) / "config.yaml").read_text().replace("seed: 0", "seed: 5", 1)
        ),
        "config.yaml differs from the hash in trial.json",
    ),
    "a cut curve": (
        lambda s: cut(finished(s) / "metrics.jsonl"),
        "metrics.jsonl ends at step 0, and the trial finished",
    ),
    "half a curve": (
        lambda s: write(
            finished(s) / "metrics.jsonl",
            "".join((finished(s) / "metrics.jsonl").read_text().splitlines(keepends=True)[:9]),
        ),
        "metrics.jsonl ends at step",
    ),
    "a linked trial": (lambda s: make_link(s, finished(s)), "is a symbolic link to"),
    "attempts out of order": (
        lambda s: write(
            first(s) / "attempts.jsonl", '+{"attempt": 0, "event": "intent"}\n{"attempt": 0, "event": "ended"}\n'
        ),
        "attempt 0 was announced after attempt 0",
    ),
}


@pytest.mark.parametrize("name", FOR_THE_USER)
def test_what_only_the_user_can_repair_is_left_as_it_is(sweep: Path, name: str) -> None:
    """Said, and still said after --repair."""
    damage, words = FOR_THE_USER[name]
    damage(sweep)
    assert words in doctor(sweep)[1]
    code, said = doctor(sweep, repair=True)
    assert code == 1
    assert words in said


def test_everything_at_once_is_repaired_in_one_run(sweep: Path) -> None:
    """Damage that hides other damage as well."""
    for name in DAMAGE.keys() - {"two folders", "no runs"}:
        DAMAGE[name][0](sweep)
    code, said = doctor(sweep, repair=True)
    assert code == 0, said


def test_nothing_that_was_damaged_is_thrown_away(sweep: Path) -> None:
    """It lies next to what was repaired."""
    write(first(sweep) / "metrics.jsonl", "+torn")
    doctor(sweep, repair=True)
    assert (first(sweep) / "metrics.jsonl.damaged").read_text() == "torn\n"


def test_a_living_controller_is_not_disturbed(sweep: Path) -> None:
    """What it may be writing is no finding, and --repair is refused."""
    with Lease(sweep / "lease.json"):
        reopen_attempt(sweep)
        code, said = doctor(sweep)
        assert (code, "a controller is running" in said) == (0, True), said
        (first(sweep) / "trial.json").unlink()
        with pytest.raises(UserError, match="another controller"):
            doctor(sweep, repair=True)


def test_trials_that_a_living_controller_is_writing_are_no_finding(sweep: Path) -> None:
    """One has no files yet; a slow disk leaves it so for seconds."""
    (sweep / "trials" / "0009-abcdef").mkdir()
    with Lease(sweep / "lease.json"):
        code, said = doctor(sweep)
    assert (code, "is sound" in said) == (0, True), said
    code, said = doctor(sweep)
    assert "0009-abcdef has no config.yaml" in said


@pytest.mark.parametrize(
    "text", ["", "a: [", "search: 3", "space: {}\nsearch: {direction: up, metric: x}", "\x00", "- 1", "[" * 100_000]
)
def test_a_sweep_that_does_not_say_what_was_searched_is_unusable(sweep: Path, text: str) -> None:
    """One message, also for brackets without end: the C reader would end the process."""
    (sweep / "sweep.yaml").write_text(text)
    with pytest.raises(UserError, match=r"sweep\.yaml"):
        doctor(sweep)


def test_the_command_finds_a_sweep_by_name_and_exits_as_promised(sweep: Path) -> None:
    """0, 1 and 2, and no traceback."""
    shutil.copytree(sweep, sweep.parent / "outputs" / "s")
    command = [sys.executable, "-m", "grposweep", "doctor"]
    codes = []
    for arguments in (["s"], ["nothing"]):
        done = subprocess.run(
            [*command, *arguments], cwd=sweep.parent, env=environment(PYTHONPATH=os.environ.get("PYTHONPATH", "")),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        codes.append(done.returncode)
    assert codes == [0, 2]


def test_what_stands_in_a_files_place_is_named_and_set_aside(sweep: Path) -> None:
    """A folder, a file of brackets without end, a pipe that would never end; what was there is kept."""
    trial = first(sweep)
    (trial / "metrics.jsonl").unlink()
    (trial / "metrics.jsonl").mkdir()
    (trial / "attempts.jsonl").write_text("[" * 100_000 + "\n")
    _, said = doctor(sweep, repair=True)
    assert f"{trial.name}/metrics.jsonl: it is not a regular file" in said
    assert f"{trial.name}/attempts.jsonl has 1 torn line" in said
    assert (trial / "metrics.jsonl.damaged").is_dir()


def test_a_finished_trial_without_a_number_has_one_state_everywhere(tmp_path: Path) -> None:
    """It has failed, with its reason; the sweep's command runs it again."""
    command = ("trainer=fake", "name=s", "-m", "lr=1e-3,2e-3,3e-3")
    assert run_in(tmp_path, *command).code == 0
    sweep = tmp_path / "outputs" / "s"
    trial = lose_number(sweep)
    ended = {word: grposweep(tmp_path, *word.split(), "s") for word in ("status", "doctor", "status --format json")}
    assert "2 finished, 1 failed" in ended["status"].out
    assert "it finished without a number as its objective" in ended["status"].out
    assert "2 finished, 1 failed" in ended["doctor"].out
    assert run_in(tmp_path, *command).code == 0
    assert read(trial / "result.json")["objective"] is not None
    assert "3 finished" in grposweep(tmp_path, "status", "s").out
    assert "s is sound: 3 trials, 3 finished" in grposweep(tmp_path, "doctor", "s").out


def test_a_restored_runs_file_has_the_hours_of_the_result(sweep: Path) -> None:
    """So the budget and the costs count them again."""
    before = run_cost(trial := finished(sweep))
    cut(trial / "runs.jsonl")
    assert doctor(sweep, repair=True)[0] == 0
    assert run_cost(trial) == pytest.approx(before, abs=0.1)


def test_a_resume_trains_into_no_link(tmp_path: Path) -> None:
    """It is refused with the link's name before anything is written; a trial that is over may lie elsewhere."""
    command = ("trainer=fake", "name=s", "trainer.fake.crash_above_lr=5e-3", "-m", "lr=1e-3,1e-2")
    assert run_in(tmp_path, *command).code == 0
    sweep = tmp_path / "outputs" / "s"
    make_link(sweep, finished(sweep))
    assert run_in(tmp_path, *command).code == 0
    failed = next(path for path in trials(sweep) if read(path / "result.json")["status"] == "failed")
    failed.rename(tmp_path / "other")
    failed.symlink_to(tmp_path / "other")
    before = tree(tmp_path / "other")
    ended = run_in(tmp_path, *command, "search.retry_failed=true")
    assert ended.code == 2
    assert f"{failed} is a symbolic link to {tmp_path / 'other'}" in ended.err
    assert tree(tmp_path / "other") == before
