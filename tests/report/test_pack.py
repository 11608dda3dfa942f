"""``grposweep best --pack``: one archive with which a colleague repeats the winner in another folder."""

from pathlib import Path
from zipfile import ZipFile

from support import grposweep, read, run_in, trials

REWARD = "def short(completions, **_):\n    return [1.0] * len(completions)\n"
SWEEP = ("trainer=fake", "schedule.budget_completions=800", "name=s", "task=jsonl", "task.path=data/sums.jsonl")


def make_sweep(here: Path) -> Path:
    """A sweep with files below its folder and outside of it."""
    project, other = here / "project", here / "other"
    for folder in (project / "data", other):
        folder.mkdir(parents=True)
    (project / "data" / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 9)
    (other / "rewards.py").write_text(REWARD)
    assert run_in(project, *SWEEP, f"task.rewards=[{other}/rewards.py:short]", "-m", "lr=1e-4,1e-3").code == 0
    return project


def test_the_winner_is_repeated_from_the_archive_alone(tmp_path: Path) -> None:
    """Elsewhere, without the first folders: the same objective, and no path of the first machine in the configuration."""
    project, there = make_sweep(tmp_path), tmp_path / "there"
    ended = grposweep(project, "best", "s", "--pack", "winner.zip")
    assert ended.code == 0, ended.err
    ZipFile(project / "winner.zip").extractall(there)
    (tmp_path / "other").rename(tmp_path / "gone")
    texts = [path.read_text() for path in there.rglob("*") if path.is_file() and path.suffix != ".jsonl"]
    assert not any(str(tmp_path) in text for text in texts)
    again = grposweep(there, "run", "--config-dir", ".", "--config-name", "winner")
    assert again.code == 0, again.err
    expected = read(there / "expected" / "result.json")["objective"]
    assert read(trials(again.sweep)[0] / "result.json")["objective"] == expected


def test_an_archive_that_exists_is_kept(tmp_path: Path) -> None:
    """Unless --force is given."""
    project = make_sweep(tmp_path)
    (project / "winner.zip").write_text("mine")
    ended = grposweep(project, "best", "s", "--pack", "winner.zip")
    assert (ended.code, (project / "winner.zip").read_text()) == (2, "mine")
    assert grposweep(project, "best", "s", "--pack", "winner.zip", "--force").code == 0
