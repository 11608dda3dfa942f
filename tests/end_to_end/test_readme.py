"""The README's commands run as they stand there, from another folder."""

import shlex
import subprocess

import pytest

from support import PROJECT, Run

COMMANDS = [
    shlex.split(line, comments=True)[2:]
    for line in (PROJECT / "README.md").read_text().splitlines()
    # The slurm tier has a cluster for it, and the test of the guide has a user's own command.
    if line.startswith("python src/run.py") and "cluster=slurm" not in line and " -- " not in line
]


def test_the_readme_has_its_commands() -> None:
    """One run, a grid, a search, a study, help."""
    assert len(COMMANDS) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_of_the_readme_runs(run: Run, command: list[str]) -> None:
    """With the fake trainer; the slow tier trains for real."""
    ended = run(*command) if "--help" in command else run("trainer=fake", *command)
    assert ended.code == 0, ended.err


def test_the_demo_is_the_study_that_the_readme_shows() -> None:
    """``make demo`` runs the study of the worked example, whose file exists."""
    asked = subprocess.run(
        ["make", "--dry-run", "demo"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    study = asked.stdout.split("sweeps=")[1].split()[0]
    assert f"sweeps/{study}.yaml" in (PROJECT / "README.md").read_text()
    assert (PROJECT / "sweeps" / f"{study}.yaml").exists()
