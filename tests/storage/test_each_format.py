"""A sweep that an earlier commit began continues, is shown and is repaired, or its refusal says why.

`tests/storage/keep_sweep.py` made the fixtures. CONTRIBUTING.md says how to add one when what is on disk changes.
"""

import json
import os
import socket
import tarfile
from pathlib import Path

import pytest

from fuzz.damaged_sweeps import Remembered, without_waiting
from grposweep.cli import results, sweeps
from grposweep.cli.run import _composer
from grposweep.config.compose import open_session
from grposweep.errors import UserError
from grposweep.search.parse import parse_space, split_tokens
from grposweep.sweep import run
from storage.keep_sweep import KEPT, WORDS
from support import lines, read, trials

BEGUN = {
    "e87232f": "a journal of Optuna and a lease; no record of runs, no trial.json",
    "40d25c7": "typed records, controller.log",
    "94446ac": "copies of the user's files, GPU seconds by a steady clock",
    "4fcdf34": "completions, screens, parameters of other applications",
}
TOO_EARLY = {"5a06651": "before the first release of the format: another identity"}
DEAD = 2**30  # no system gives a process this id


@pytest.fixture
def sweep(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sweep of a commit under outputs; its controller was killed on this machine."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "outputs" / "killed"
    with tarfile.open(KEPT / f"{request.param}.tar.gz") as file:
        file.extractall(path, filter="data")
    lease = path / "lease.json"
    lease.write_text(json.dumps({**read(lease), "host": socket.gethostname(), "pid": DEAD}))
    return path


def resume_sweep() -> int:
    """Give the sweep's command again, with attempts that take no time."""
    with open_session() as session, without_waiting():
        words = [word for word in WORDS if word != "-m"]
        space, fixed = parse_space(list(split_tokens(words)), {}, session.loader)
        return run.run_sweep(space, Remembered(_composer(session.loader, "config"), fixed), fixed, "s")


@pytest.mark.parametrize("sweep", BEGUN, indirect=True)
def test_it_continues_with_what_is_unfinished(sweep: Path) -> None:
    """The finished trial stays as it is, the second continues in a further attempt, the third begins."""
    before = (trials(sweep)[0] / "result.json").read_bytes()
    assert resume_sweep() == 0
    assert [read(trial / "result.json")["status"] for trial in trials(sweep)] == ["finished"] * 3
    assert (trials(sweep)[0] / "result.json").read_bytes() == before
    assert [read(trial / "result.json")["attempt"] for trial in trials(sweep)] == [0, 1, 0]


@pytest.mark.parametrize("sweep", list(BEGUN)[-1:], indirect=True)
def test_the_newest_has_all_that_a_controller_writes_today(sweep: Path) -> None:
    """If this fails, keep a sweep of your commit: `python tests/storage/keep_sweep.py COMMIT`, and add it to BEGUN."""
    assert resume_sweep() == 0
    before, today = trials(sweep)[0], trials(sweep)[2]
    for name in ("trial.json", "result.json", "plan.json", "attempts.jsonl"):
        assert keys(today / name) <= keys(before / name), name


def keys(path: Path) -> set[str]:
    """The keys of a JSON file, or of all its lines."""
    rows = lines(path) if path.suffix == ".jsonl" else [read(path)]
    return {key for row in rows for key in row}


@pytest.mark.parametrize("sweep", BEGUN | TOO_EARLY, indirect=True)
def test_it_is_shown_reported_and_repaired(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of the finished trial changes."""
    before = (trials(sweep)[0] / "result.json").read_bytes()
    sweeps.status("killed", json=True)
    status = json.loads(capsys.readouterr().out)
    assert status["states"]["finished"] == 1
    assert status["best"]["number"] == 0
    sweeps.report("killed")
    assert (sweep / "report.html").is_file()
    results.doctor("killed", repair=True)
    assert results.doctor("killed") == 0, capsys.readouterr().out
    assert (trials(sweep)[0] / "result.json").read_bytes() == before


@pytest.mark.parametrize("sweep", TOO_EARLY, indirect=True)
def test_one_that_cannot_continue_says_why(sweep: Path) -> None:
    """Its folder does not hold what identifies it today, so nothing is mixed up."""
    before = sorted(os.walk(sweep))
    with pytest.raises(UserError, match=r"an earlier version.*did not record its base configuration.*Set another name"):
        resume_sweep()
    assert sorted(os.walk(sweep)) == before
