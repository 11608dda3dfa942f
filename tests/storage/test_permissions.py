"""Sweeps of other users, who keep their files for themselves."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from grporecipe.errors import UserError
from grposweep.report.sweeps_list import read_sweeps
from grposweep.storage.folders import find_sweep, newest_sweep


@contextmanager
def as_another_user() -> Iterator[None]:
    """Root may read everything, so the test drops its user id."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(own)


@pytest.fixture
def outputs() -> Iterator[Path]:
    """A shared folder with two sweeps."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for sweep in ("mine", "theirs"):
            (folder / sweep / "trials").mkdir(parents=True)
            (folder / sweep / "sweep.yaml").write_text(f"name: {sweep}\n")
        folder.chmod(0o755)
        yield folder
        for path in (folder, folder / "theirs"):
            path.chmod(0o755)


@pytest.mark.parametrize(
    ("closed", "look"),
    [
        ("theirs", lambda outputs: find_sweep("theirs", outputs)),
        (".", newest_sweep),
        (".", read_sweeps),
    ],
)
def test_a_folder_that_may_not_be_read_is_named(
    outputs: Path, closed: str, look: Callable[[Path], object]
) -> None:
    """It is not said to hold no sweep."""
    (outputs / closed).chmod(0)
    with as_another_user(), pytest.raises(UserError, match=r"cannot be read .*chmod -R go\+rX"):
        look(outputs)


def test_a_file_that_may_not_be_read_hides_no_other_sweep(outputs: Path) -> None:
    """The list has a line for it."""
    (outputs / "theirs" / "sweep.yaml").chmod(0)
    with as_another_user():
        views, damaged = read_sweeps(outputs)
    assert [view.name for view in views] == ["mine"]
    assert damaged == [
        f"{(outputs / 'theirs' / 'sweep.yaml').resolve()} cannot be read (Permission denied)"
    ]
