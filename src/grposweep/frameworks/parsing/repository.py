"""What a repository contains that tells a framework's version: files with requirements, and frameworks' own source.

A repository is walked once, breadth first and bounded. Links are not followed, and hidden folders and environments are skipped.
"""

import os
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

MOST_FOLDERS = 3000  # of a repository
MOST_FILES = 400  # with requirements
DEEPEST = 7  # folders below the root
UPWARD = 12  # folders above a file
SKIPPED = frozenset(
    ["node_modules", "venv", "env", "site-packages", "__pycache__", "build", "dist", "wandb", "outputs", "checkpoints",
     "third_party", "data", "datasets"]
)  # fmt: skip
NAMES = frozenset(
    ["setup.py", "setup.cfg", "pyproject.toml", "uv.lock", "poetry.lock", "Pipfile", "Pipfile.lock", "environment.yml",
     "environment.yaml", "conda.yml", "conda.yaml", "setup.sh", "install.sh"]
)  # fmt: skip
MARKERS = NAMES | {"README.md", "LICENSE", "requirements.txt", ".grposweep.toml"}


@dataclass(frozen=True)
class Repository:
    """The files with requirements in a repository, and all its folders, nearest to the root first."""

    root: Path
    requirements: tuple[Path, ...]
    folders: tuple[Path, ...]


def find_repository(file: Path) -> Repository | None:
    """Return the repository that a file is in; None for a file in none."""
    root = find_root(file)
    return None if root is None else walk(root)


def find_root(file: Path) -> Path | None:
    """Return the folder with ``.git`` above a file; without any, the outermost one that looks like a project.

    The working directory ends the search, as do the home and the temporary directory: these hold several projects.
    """
    absolute = file.absolute()
    folders = list(absolute.parents)[:UPWARD]
    here, never = Path.cwd(), {Path.home(), Path(tempfile.gettempdir()), Path("/")}
    for folder in folders:
        if (folder / ".git").exists() and folder not in never:
            return folder
    found = None
    for folder in folders:
        if folder in never:
            break
        if any((folder / name).exists() for name in MARKERS):
            found = folder
        if folder == here:
            break
    return found


@lru_cache(maxsize=32)
def walk(root: Path) -> Repository:
    """Return what a folder contains, by a walk that is bounded."""
    folders, requirements, level = [root], list[Path](), [root]
    for _ in range(DEEPEST):
        below: list[Path] = []
        for folder in level:
            inner, files = _list(folder)
            requirements += files
            below += inner
        folders += below
        level = below
        if not level or len(folders) > MOST_FOLDERS or len(requirements) > MOST_FILES:
            break
    return Repository(root, tuple(requirements[:MOST_FILES]), tuple(folders[:MOST_FOLDERS]))


def _list(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders in a folder, and the files with requirements, by name."""
    folders, files = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name.lower() not in SKIPPED:
                        folders.append(folder / entry.name)
                elif (has_requirements(entry.name) or _is_list(folder, entry.name)) and entry.is_file(
                    follow_symlinks=False
                ):
                    files.append(folder / entry.name)
    except OSError:  # a folder that may not be read
        return [], []
    return folders, files


def _is_list(folder: Path, name: str) -> bool:
    return folder.name == "requirements" and name.endswith(".txt")


def has_requirements(name: str) -> bool:
    """Return whether a file of this name states what is installed."""
    return (
        name in NAMES
        or (name.endswith((".txt", ".in")) and "require" in name)
        or name.startswith("Dockerfile")
        or name.endswith((".dockerfile", ".Dockerfile"))
        or (name.startswith(("environment", "conda")) and name.endswith((".yml", ".yaml")))
    )
