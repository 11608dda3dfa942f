"""A finished sweep of the fake trainer, made once: tests work on copies."""

import shutil
from pathlib import Path

import pytest

from support import run_in

# Invalid points, a crash, labels of several types.
GRID = (
    "trainer=fake",
    "name=s",
    "trainer.args.crash_above_lr=5e-3",
    "-m",
    "lr=1e-2,1e-3",
    "batch.num_generations=8,12",
    "kl.sync_ref_model=true,false",
    "kl=low",
)


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder."""
    here = tmp_path_factory.mktemp("grid")
    assert run_in(here, *GRID).code == 0
    return here / "outputs" / "s"


@pytest.fixture
def sweep(grid: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(grid, tmp_path / "s"))
