"""A fake Slurm and a toy launcher, each with its jobs in a folder of the test."""

from collections.abc import Iterator
from pathlib import Path

import fake_slurm
import pytest
from toy_queue import JOBS, Toy

from grposweep.schema.registries import LAUNCHERS


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The fake cluster's folder, its tools first on PATH; its jobs end with the test."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    fake_slurm.install(tmp_path / "bin")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr(fake_slurm, "STATE", folder, raising=False)
    yield folder
    fake_slurm.scancel([path.stem for path in folder.glob("*.job")])


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The toy launcher, registered by its line; the folder of its jobs, which end with the test."""
    folder = tmp_path / "toy"
    folder.mkdir()
    monkeypatch.setenv("TOY_QUEUE", str(folder))
    monkeypatch.setitem(LAUNCHERS, "toy", Toy)
    yield folder
    JOBS.cancel_jobs([path.stem for path in folder.glob("*.job")])
