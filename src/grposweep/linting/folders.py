"""Files to lint: those that are named, and in a folder all that may hold a recipe and that git does not ignore."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from grposweep.frameworks.parsing.load import LARGEST_NOTEBOOK, SHELLS

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

YAML = (".yaml", ".yml")
PYTHON = (".py", ".ipynb")
SUFFIXES = frozenset((*YAML, *SHELLS, *PYTHON))
SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__"})
MARK = b"GRPO"  # a Python file that trains with GRPO names GRPOConfig, or a class of its own


class Target(NamedTuple):
    """A file to lint; one that was not named but found in a folder is left out silently if it is no recipe."""

    path: Path
    found: bool = False


def find_targets(paths: Iterable[Path]) -> Iterator[Target]:
    """Yield the files that are named, and those of the folders that are named, sorted by name."""
    for path in paths:
        if path.is_dir():
            yield from (Target(file, found=True) for file in _walk(path))
        else:
            yield Target(path)


def _walk(top: Path) -> Iterator[Path]:
    specs = dict(_ignored_above(top))
    for folder, folders, files in os.walk(top):
        here = Path(folder)
        specs.update(_ignored_in(here))
        folders[:] = sorted(
            name for name in folders if _is_searched(here, name) and not _is_ignored(here / name, specs)
        )
        for name in sorted(files):
            path = here / name
            if path.suffix in SUFFIXES and path.is_file() and _may_train(path) and not _is_ignored(path, specs):
                yield path


def _is_searched(here: Path, name: str) -> bool:
    """Return whether a folder may hold recipes: a hidden one, a virtual environment and a cache do not."""
    return not name.startswith(".") and name not in SKIPPED and not (here / name / "pyvenv.cfg").exists()


def _may_train(path: Path) -> bool:
    """Return whether a file is worth reading; a repository has thousands of Python files."""
    if path.suffix not in PYTHON:
        return True
    try:
        return path.stat().st_size <= LARGEST_NOTEBOOK and MARK in path.read_bytes()
    except OSError:
        return False


def _ignored_above(top: Path) -> Iterator[tuple[Path, "GitIgnoreSpec"]]:
    """Yield the .gitignore files above a folder, up to the root of its repository."""
    folders = [top.absolute(), *top.absolute().parents]
    root = next((n for n, folder in enumerate(folders) if (folder / ".git").exists()), 0)
    for folder in reversed(folders[1 : root + 1]):
        yield from _ignored_in(folder)


def _ignored_in(folder: Path) -> Iterator[tuple[Path, "GitIgnoreSpec"]]:
    from pathspec import GitIgnoreSpec  # only a folder needs it

    try:
        lines = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    yield folder.absolute(), GitIgnoreSpec.from_lines(lines)


def _is_ignored(path: Path, specs: dict[Path, "GitIgnoreSpec"]) -> bool:
    """Return whether git ignores a path: of all files that have a pattern for it, the deepest decides."""
    whole, ending = path.absolute(), "/" if path.is_dir() else ""
    for folder in whole.parents:
        if folder in specs:
            verdict = specs[folder].check_file(whole.relative_to(folder).as_posix() + ending).include
            if verdict is not None:
                return verdict
    return False
