"""The names of a sweep's files are spelled in one module."""

import ast
from pathlib import Path

from grposweep.storage import paths
from support import PROJECT

# Words that name other things as well, or are printed.
COMMON = {paths.LOGS, paths.TRIALS, paths.MODEL, paths.CHECKPOINTS, paths.PREPARE_FOLDER}
NAMES = {value for name, value in vars(paths).items() if name.isupper()} - COMMON


def spelled(path: Path) -> list[str]:
    """The names of files that a module spells as strings of their own; messages may mention them."""
    strings = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
    return [text for text in strings if isinstance(text, str) and text in NAMES]


def test_no_other_module_spells_the_name_of_a_sweeps_file() -> None:
    """Whoever renames a file changes one line."""
    modules = [path for path in (PROJECT / "src").rglob("*.py") if path != Path(paths.__file__)]
    assert {str(path.relative_to(PROJECT)): found for path in modules if (found := spelled(path))} == {}
