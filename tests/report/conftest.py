"""``commands("status", ...)`` is the command in this process, from a folder whose sweeps are in
outputs/.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grposweep.cli import build_app
from made import Made, make_sweep
from support import Ended

Commands = Callable[..., Ended]


def write_sweep(name: str = "s", **made: Any) -> Path:
    """A sweep in outputs/, as ``Made`` describes it."""
    return make_sweep(Path("outputs", name), Made(**made))


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """No colours, 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")

    def call(*arguments: str) -> Ended:
        done = CliRunner().invoke(build_app(), list(arguments))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Ended(done.exit_code, done.stdout, done.stderr)

    return call
