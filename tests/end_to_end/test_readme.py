"""The README's commands run as they stand there, from another folder."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from support import PROJECT, Ended

COMMANDS = [
    shlex.split(line, comments=True)[2:]
    for line in (PROJECT / "README.md").read_text().splitlines()
    # The slurm tier has a cluster for it, and the tutorial's test somebody's own script.
    if line.startswith("python src/run.py") and "cluster=slurm" not in line and "train.py" not in line
]


def test_the_readme_has_its_commands() -> None:
    """One run, a grid, a search, a study, help."""
    assert len(COMMANDS) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_of_the_readme_runs(run: Callable[..., Ended], command: list[str]) -> None:
    """With the fake trainer; the slow tier trains for real."""
    ended = run(*command) if "--help" in command else run("trainer=fake", *command)
    assert ended.code == 0, ended.err


def test_every_file_of_the_tree_in_the_readme_exists() -> None:
    """The annotated tree describes the present."""
    text = (PROJECT / "README.md").read_text()
    block = next(part for part in text.split("```") if "src/grposweep/\n" in part)
    inside, missing = PROJECT, []
    for line in block.strip().splitlines():
        name = line.split()[0]
        inside = PROJECT / "src" / "grposweep" if line.startswith("  ") else PROJECT
        if not (inside / name).exists():
            missing.append(name)
    assert not missing


def test_the_demo_is_the_study_that_the_readme_shows() -> None:
    """Make demo runs the file that the worked example describes."""
    makefile = Path(PROJECT / "Makefile").read_text()
    assert "src/run.py sweeps=lr_batch" in makefile
    assert "sweeps/lr_batch.yaml" in (PROJECT / "README.md").read_text()
