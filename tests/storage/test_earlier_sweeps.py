"""Sweep folders that commit bb865b9 made continue, are reported and are repaired: the files on disk are a contract."""

import json
import shutil
import socket
from pathlib import Path

import pytest

from support import PROJECT, Ended, grposweep, lines, read, run_in, trials

FIXTURES = PROJECT / "tests" / "fixtures" / "sweeps_bb865b9"
KILLED = (
    "trainer=fake",
    "trainer.keep=best",
    "trainer.fake.step_seconds=0.05",
    "trainer.fake.crash_above_lr=5e-3",
    "schedule=steps",
    "schedule.max_steps=40",
    "schedule.checkpoints=10",
    "schedule.evaluations=8",
    "search=tpe",
    "search.trials=6",
    "search.stopping=asha",
    "search.enqueue=[{lr:9e-3,batch:small},{lr:5e-4,batch:small},{lr:1e-5,batch:small},{lr:7e-4,batch:small},{lr:1e-3,batch:small}]",
    "-m",
    "lr=tag(log,interval(1e-5,1e-2))",
    "batch=small,open_r1_medium",
)
REAL = (
    "schedule=steps",
    "schedule.max_steps=4",
    "schedule.evaluations=2",
    "schedule.checkpoints=1",
    "task.eval_prompts=16",
    "lr=1e-3",
)
DEAD = 2**30  # no system gives a process this id


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working folder with both sweeps under outputs; the killed controller ran on this machine."""
    shutil.copytree(FIXTURES, tmp_path / "outputs")
    lease = tmp_path / "outputs" / "killed" / "lease.json"
    lease.write_text(json.dumps({**read(lease), "host": socket.gethostname(), "pid": DEAD}))
    return tmp_path


def end_of(result: Path) -> tuple[str, float | None]:
    """Status and objective."""
    content = read(result)
    return content["status"], content["objective"]


def test_a_killed_sweep_of_an_earlier_version_continues_with_its_unfinished_trials_only(here: Path) -> None:
    """Trial 4 continues from its checkpoint, one more is started, and what had ended stays as it was."""
    sweep = here / "outputs" / "killed"
    before = [(folder / "result.json").read_text() for folder in trials(sweep)[:4]]
    ended = run_in(here, "name=killed", *KILLED)
    assert ended.code == 0, ended.err
    assert "6 trials (tpe), 4 of them recorded already" in ended.out
    assert len(trials(sweep)) == 6
    assert [(folder / "result.json").read_text() for folder in trials(sweep)[:4]] == before
    fifth = trials(sweep)[4]
    assert read(fifth / "result.json")["status"] == "finished"
    steps = [line["step"] for line in lines(fifth / "metrics.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, 41))
    assert {line["attempt"] for line in lines(fifth / "metrics.jsonl")} == {0, 1}


def test_a_finished_sweep_of_an_earlier_version_shows_its_result(here: Path) -> None:
    """A trial of the real trainer is recognised, and not run again."""
    ended = run_in(here, "name=real", *REAL)
    assert ended.code == 0, ended.err
    assert "1 of them recorded already" in ended.out
    assert "best: trial 0, 0.3047 against 0.2891 before training" in ended.out
    assert len(trials(here / "outputs" / "real")) == 1


def test_a_sweep_of_an_earlier_version_is_reported(here: Path) -> None:
    """As text, as JSON and as a page."""
    text = grposweep(here, "status", "killed")
    assert text.code == 0, text.err
    for said in ("4 of 6 trials", "best     0.7407", "1 trial stopped early", "1 trial: crashed; trial 0"):
        assert said in text.out
    status = json.loads(grposweep(here, "status", "killed", "--json").out)
    wanted = {"finished": 2, "pruned": 1, "failed": 1, "stopped": 1}
    assert {name: status["states"][name] for name in wanted} == wanted
    assert status["best"]["number"] == 3
    shown = grposweep(here, "show", "3", "--sweep", "killed")
    assert "0.7407" in shown.out, shown.err
    assert grposweep(here, "report", "real").code == 0
    assert (here / "outputs" / "real" / "report.html").stat().st_size > 100_000


def doctor(here: Path) -> Ended:
    """Repair the killed sweep."""
    return grposweep(here, "doctor", "killed", "--repair")


def test_a_damaged_sweep_of_an_earlier_version_is_repaired_from_its_trial_folders(here: Path) -> None:
    """The journal is cut off, a trial's record is gone, and a line of metrics is torn; afterwards it is sound."""
    sweep = here / "outputs" / "killed"
    journal = sweep / "study.journal"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    (trials(sweep)[1] / "trial.json").unlink()
    with (trials(sweep)[4] / "metrics.jsonl").open("a") as file:
        file.write('{"v": 1, "attempt": 0, "st')
    before = [end_of(folder / "result.json") for folder in trials(sweep)[:4]]
    repaired = doctor(here)
    assert repaired.code == 0, repaired.out + repaired.err
    for said in ("study.journal is damaged", "has 1 torn line", "attempt 0 of 0004-c20dd2 is open"):
        assert said in repaired.out
    assert "5 trials, 2 finished, 1 stopped early, 1 failed, 1 unfinished" in repaired.out
    assert [end_of(folder / "result.json") for folder in trials(sweep)[:4]] == before
    assert "is sound" in doctor(here).out
