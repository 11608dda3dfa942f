"""What a sweep writes and deletes stays in its folder, and its files have the permissions that the
user's umask leaves.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grporecipe.files import append_line, write_text
from grposweep.storage.checkpoints import drop_best_models, drop_checkpoints
from grposweep.storage.folders import TrialFolder
from support import Run


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Set the process's umask; afterwards it is as before."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_have_the_permissions_that_the_umask_leaves(
    tmp_path: Path, umask: Callable[[int], int], mask: int, mode: int
) -> None:
    """A shared folder stays shared, a private one private; also a file that replaces another
    one.
    """
    umask(mask)
    for _ in range(2):
        write_text(tmp_path / "whole", "x")
        append_line(tmp_path / "lines", {})
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "whole": mode,
        "lines": mode,
    }


@pytest.mark.slow
def test_all_files_of_a_sweep_can_be_read_by_team_mates(here: Path, run: Run) -> None:
    """With the usual umask of 022, and written by the user alone."""
    mask = os.umask(0o022)
    os.umask(mask)
    # the commands of the tests are forks of one process that began with it
    if mask != 0o022:
        pytest.skip(f"the umask is {mask:03o}")
    assert run("trainer=fake", "name=s", "-m", "lr=1e-3,1e-4").code == 0
    modes = {
        path: path.stat().st_mode & 0o777
        for path in (here / "outputs").rglob("*")
        if not path.is_symlink()
    }
    assert {
        path for path, mode in modes.items() if mode != (0o755 if path.is_dir() else 0o644)
    } == set()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder outside of the sweep, with what must stay."""
    for name in ("checkpoints", "model"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / name / "kept").touch()
    (tmp_path / "s" / "trials").mkdir(parents=True)
    return tmp_path / "elsewhere"


def kept(elsewhere: Path) -> int:
    """How many of its files are left."""
    return len(list(elsewhere.rglob("kept")))


@pytest.mark.parametrize(
    "link",
    [
        "trials/0000-abcdef",
        *(f"trials/0000-abcdef/{name}" for name in ("checkpoints", "model")),
        "trials",
    ],
)
def test_a_link_in_a_sweep_is_not_followed_when_checkpoints_are_deleted(
    tmp_path: Path, elsewhere: Path, link: str
) -> None:
    """Whether the trial, its checkpoints, its model or all trials are elsewhere."""
    path = tmp_path / "s" / link
    target = elsewhere
    if link == "trials":
        path.rmdir()
        (elsewhere / "0000-abcdef").mkdir()
        for name in ("checkpoints", "model"):
            (elsewhere / name).rename(elsewhere / "0000-abcdef" / name)
    if link.endswith(("checkpoints", "model")):
        path.parent.mkdir()
        target = elsewhere / path.name
    path.symlink_to(target)
    trial = TrialFolder(tmp_path / "s" / "trials" / "0000-abcdef")
    trial.delete_checkpoints()
    trial.delete_model()
    assert kept(elsewhere) == 2


def test_checkpoints_of_a_sweep_behind_a_link_are_deleted(tmp_path: Path) -> None:
    """``outputs`` is often a link to another disk."""
    trial = tmp_path / "disk" / "s" / "trials" / "0000-abcdef"
    (trial / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    (tmp_path / "outputs").symlink_to(tmp_path / "disk")
    TrialFolder(tmp_path / "outputs" / "s" / "trials" / trial.name).delete_checkpoints()
    assert not (trial / "checkpoints").exists()


def test_a_checkpoint_that_is_a_link_is_not_followed(tmp_path: Path, elsewhere: Path) -> None:
    """Neither at the end of a training nor when a better model was found."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (elsewhere / "trainer_state.json").write_text('{"global_step": 4}')
    for name in ("checkpoint-4", "best-3"):
        (folder / name).symlink_to(elsewhere)
    drop_checkpoints(folder, 1)
    drop_best_models(folder, ())
    assert kept(elsewhere) == 2


@pytest.mark.parametrize("name", ["../x", "a/../../b", "/tmp/x", "..", ".", "a/b", "''"])
def test_a_sweeps_name_cannot_leave_the_outputs(here: Path, run: Run, name: str) -> None:
    """One message, and nothing is written."""
    ended = run("trainer=fake", f"name={name}")
    assert ended.code == 2
    assert "it names a folder under outputs=outputs. Set one without slashes" in ended.err
    assert list(here.iterdir()) == []
