"""The names of a sweep's files are spelled in one module."""

import ast
import shutil
from pathlib import Path

import pytest

from grporecipe.diagnose import readers
from grporecipe.linting import command
from grposweep.storage import paths
from support import PROJECT, grposweep, run_in

# Words that name other things as well, or are printed.
COMMON = {paths.LOGS, paths.TRIALS, paths.MODEL, paths.CHECKPOINTS, paths.PREPARE_FOLDER}
NAMES = {value for name, value in vars(paths).items() if name.isupper()} - COMMON


def spelled(path: Path) -> list[str]:
    """The names of files that a module spells as strings of their own; messages may mention
    them.
    """
    strings = [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    ]
    return [text for text in strings if isinstance(text, str) and text in NAMES]


def test_no_other_module_spells_the_name_of_a_sweeps_file() -> None:
    """To rename a file, change one line."""
    # Logs of trials and sweeps are found by name in grporecipe too, which does not know sweeps.
    others = {Path(paths.__file__), Path(readers.__file__), Path(command.__file__)}
    assert (readers.METRICS, readers.PLAN, readers.CONFIG) == (
        paths.METRICS,
        paths.PLAN,
        paths.CONFIG,
    )
    assert command.SWEEP == paths.SWEEP
    modules = [path for path in (PROJECT / "src").rglob("*.py") if path not in others]
    assert {
        str(path.relative_to(PROJECT)): found for path in modules if (found := spelled(path))
    } == {}


@pytest.mark.slow
def test_sweeps_are_listed_from_any_folder_by_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the user has started some; a name alone is refused with the path to give, because
    another folder may reuse it.
    """
    monkeypatch.setenv("GRPOSWEEP_CACHE", str(tmp_path / "cache"))
    here = tmp_path / "here"
    elsewhere = tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    sweep = run_in(here, "trainer=fake", "schedule.budget_completions=320", "name=mine").sweep
    run_in(here, "trainer=fake", "schedule.budget_completions=320", "name=mine")
    assert grposweep(elsewhere, "list").out.count(f"in {sweep.parent}:") == 1
    assert f"Name it by its path: {sweep}" in grposweep(elsewhere, "best", "mine").err
    shutil.rmtree(here)
    assert "no sweep in" in grposweep(elsewhere, "list").err
