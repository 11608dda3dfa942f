"""The copy of the code that jobs run, and the commit that is recorded."""

import os
import subprocess
from pathlib import Path

import pytest

from grposweep.process import SOURCE
from grposweep.storage.inputs import Inputs
from grposweep.storage.provenance import collect_provenance, is_present_code, snapshot_code


def test_a_snapshot_is_the_running_code_and_is_made_once(tmp_path: Path) -> None:
    """With all of its folders, and without a draft."""
    snapshot = snapshot_code(tmp_path)
    assert is_present_code(snapshot)
    modules = {path.relative_to(SOURCE) for path in (SOURCE / "grposweep").rglob("*.py")}
    assert {
        path.relative_to(snapshot) for path in (snapshot / "grposweep").rglob("*.py")
    } == modules
    assert snapshot_code(tmp_path) == snapshot
    assert list((tmp_path / "code").iterdir()) == [snapshot]


@pytest.fixture
def other_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of another project, which a variable of git names."""
    folder = tmp_path / "other"
    commit = [
        "-c",
        "user.name=me",
        "-c",
        "user.email=me@host",
        "commit",
        "-qm",
        "first",
        "--allow-empty",
    ]
    for arguments in (["init", "-q", str(folder)], ["-C", str(folder), *commit]):
        subprocess.run(["git", *arguments], check=True)
    monkeypatch.setenv("GIT_DIR", str(folder / ".git"))
    return folder


def test_another_repository_in_gits_variables_is_not_recorded(other_checkout: Path) -> None:
    """A hook of git sets them."""
    recorded = collect_provenance(Inputs())["git_sha"]
    own = subprocess.run(
        ["git", "-C", str(other_checkout), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert recorded not in (None, own.stdout.strip())


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exec sleep 60", "it did not answer within 0 s"),
        ("echo fatal: dubious ownership >&2; exit 128", "dubious ownership"),
    ],
)
def test_a_git_that_hangs_or_refuses_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    says: str,
) -> None:
    """The commit is then unknown, and nothing waits."""
    (tmp_path / "git").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("grposweep.storage.provenance.GIT_SECONDS", 0.3)
    assert collect_provenance(Inputs())["git_sha"] is None
    assert says in capsys.readouterr().err
