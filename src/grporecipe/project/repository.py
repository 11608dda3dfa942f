"""Search the repository around a recipe: its root, its folders, its scripts, and its files with
requirements.

A repository is walked once, breadth first, with limits. Links are not followed; hidden folders and
environments are skipped.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from operator import eq
from pathlib import Path, PurePosixPath
from typing import Any

from grporecipe.files import absolute

# of a repository
MOST_FOLDERS = 3000
# with requirements
MOST_FILES = 400
# folders below the root
DEEPEST = 7
# folders above a file
UPWARD = 12
SKIPPED = (
    r"\..*|node_modules|venv|env|site-packages|__pycache__|build|dist|wandb|outputs|checkpoints"
    r"|third_party|data|datasets"
)
NAMES = frozenset(
    [
        "setup.py",
        "setup.cfg",
        "pyproject.toml",
        "uv.lock",
        "poetry.lock",
        "Pipfile",
        "Pipfile.lock",
        "environment.yml",
        "environment.yaml",
        "conda.yml",
        "conda.yaml",
        "setup.sh",
        "install.sh",
    ]
)
MARKERS = NAMES | {"README.md", "LICENSE", "requirements.txt", ".grposweep.toml"}


@dataclass(frozen=True)
class Repository:
    """A repository's files with requirements and all its folders, nearest to the root first."""

    root: Path
    requirements: tuple[Path, ...]
    folders: tuple[Path, ...]


def find_repository(file: Path) -> Repository | None:
    """Return the repository of a file, or None."""
    root = find_root(file)
    if root is None:
        return None
    return walk(root)


def find_root(file: Path) -> Path | None:
    """Return the folder with ``.git`` above a file. Without one, return the outermost folder that
    looks like a project.

    The search ends at the working directory, the home and the temporary directory, because these
    hold several projects.
    """
    return _root_above(absolute(file).parent, Path.cwd())


def project_folder(file: Path) -> Path:
    """Return the root of a file's repository; without one, the file's own folder."""
    return find_root(file) or absolute(file).parent


@lru_cache(maxsize=1024)
def _root_above(start: Path, here: Path) -> Path | None:
    folders = [start, *start.parents][:UPWARD]
    never = {Path.home(), Path(tempfile.gettempdir()), Path("/")}
    for folder in folders:
        if (folder / ".git").exists() and folder not in never:
            return folder
    root = None
    for folder in folders:
        if folder in never:
            break
        if any((folder / name).exists() for name in MARKERS):
            root = folder
        if folder == here:
            break
    return root


def _working_folders(script: Path) -> list[Path]:
    """Return the folders that a script may be started in: the working directory, and those above it
    in its repository.
    """
    root = project_folder(script)
    above = list(absolute(script).parents)
    levels = UPWARD
    if root in above:
        levels = above.index(root) + 1
    return [Path.cwd(), *above[:levels]]


def find_folders(names: Iterable[str], script: Path) -> tuple[Path, ...]:
    """Return the folders that a script names, such as those of its PYTHONPATH."""
    places = product(names, _working_folders(script))
    folders = (folder / name for name, folder in places)
    return tuple(filter(Path.is_dir, folders))


def find_program(program: str, script: Path, paths: Sequence[str] = ()) -> Path | None:
    """Return the file of a program that a script names (``src/train.py``, or a dotted module), if
    the repository has it.

    A script may be for another working directory, so a file is also found by the end of its path;
    the nearest of several. ``paths`` are the folders of PYTHONPATH.
    """
    root = project_folder(script)
    folders = _working_folders(script)
    if not program.endswith(".py"):
        if not program.replace(".", "_").isidentifier():
            return None
        whole = Path(*program.split("."))
        starts = list(find_folders(paths, script))
        for folder in folders:
            starts += folder, folder / "src"
        names = (whole.with_suffix(".py"), whole / "__init__.py")
        return _first_file(start / name for start, name in product(starts, names))
    if Path(program).is_absolute() and Path(program).is_file():
        return Path(program)
    parts: list[str] = []
    for part in Path(program).parts:
        # $SCRIPT_DIR/train.py
        if "$" in part:
            parts.clear()
        elif part not in (".", "..", "/"):
            parts.append(part)
    wanted = Path(*parts)
    found = _first_file(folder / wanted for folder in folders)
    if found is None and parts:
        places = (folder / wanted.name for folder in walk(root).folders)
        programs = [place for place in places if place.parts[-len(parts) :] == wanted.parts]
        found = _nearest_file(programs, script, is_bare=len(parts) == 1)
    if found is None:
        ends = [Path(*parts[n:]) for n in range(1, len(parts))]
        found = _first_file(folder / end for end, folder in product(ends, folders))
    return found


SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
MOST_SCRIPTS = 1000
# bytes
LARGEST_SCRIPT = 2**16
# of a framework's source, or a file of its configuration
LARGEST_SOURCE = 2 * 2**20


def scripts_of(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the shell scripts of a repository with their present texts."""
    for path in _scripts(root):
        # removed since
        with suppress(OSError):
            yield path, _text(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _scripts(root: Path) -> tuple[Path, ...]:
    scripts = (path for path in _files_of(root, "*.*") if path.suffix.lower() in SCRIPTS)
    return tuple(islice(scripts, MOST_SCRIPTS))


def _files_of(root: Path, pattern: str) -> Iterator[Path]:
    """Yield the files of a repository whose names match, by folder."""
    for folder in walk(root).folders:
        yield from sorted(folder.glob(pattern))


@lru_cache(maxsize=2 * MOST_SCRIPTS)
def _text(path: Path, _: int) -> str:
    return head_of(path)


def is_overridden(file: Path, values: Mapping[str, Any]) -> bool:
    """Return whether launches build on a Hydra or EasyR1 configuration, and each gives one of these
    keys another value.

    A launch names it (``config=a.yaml``, ``--config-name a``), or starts a program that does
    (``config_name="a"``).
    """
    root = find_root(file)
    if root is None:
        return False
    stem = re.escape(file.stem)
    named = re.compile(rf"\bconfig=\S*\b{stem}\.ya?ml|(?:--config-name|-cn)[= ]['\"]?{stem}\b")
    primary = re.compile(rf"config_name\s*=\s*['\"]{stem}(?:\.yaml)?['\"]")
    programs = []
    for folder in list(absolute(file).parents)[:3]:
        if folder.is_relative_to(root):
            programs += [path.name for path in folder.glob("*.py") if primary.search(head_of(path))]
    words = [
        rf"\b{re.escape(key)}=(?!{re.escape(str(value))}(?![\w.]))" for key, value in values.items()
    ]
    other = re.compile("|".join(words) or r"(?!)")
    is_named = False
    for _, text in scripts_of(root):
        if named.search(text) or any(name in text for name in programs):
            if not other.search(text):
                return False
            is_named = True
    return is_named


def head_of(path: Path, most: int = LARGEST_SCRIPT) -> str:
    """Return the beginning of a text file, up to a number of bytes; empty if it cannot be read."""
    try:
        return path.read_bytes()[:most].decode("utf-8", "replace")
    except OSError:
        return ""


def is_elsewhere(file: Path, folder: str) -> bool:
    """Return whether a script changes to an absolute folder whose name no folder of its repository
    has.
    """
    root = find_root(file)
    if root is None or not folder.startswith("/") or Path(folder).is_relative_to(root):
        return False
    return Path(folder).name not in {root.name, *(each.name for each in walk(root).folders)}


# Python files that are searched for a registration
MOST_MODULES = 3000


def python_files(root: Path) -> Iterator[Path]:
    """Yield the Python files of a repository."""
    return islice(_files_of(root, "*.py"), MOST_MODULES)


def registers(file: Path, word: str) -> bool:
    """Return whether Python code of a file's repository registers a word: ``@register("x")``,
    ``R.register("x")``, an Enum.
    """
    root = find_root(file)
    return root is not None and _registers(root, word)


@lru_cache(maxsize=256)
def _registers(root: Path, word: str) -> bool:
    quoted = rf"""["']{re.escape(word)}["']"""
    registered = re.compile(rf"\bregister\w*\(\s*(?:[\w.]+\s*,\s*)?{quoted}")
    listed = re.compile(rf"^[ \t]+\w+\s*=\s*{quoted}", re.MULTILINE)
    for path in python_files(root):
        text = head_of(path)
        if registered.search(text) or ("Enum)" in text and listed.search(text)):
            return True
    return False


SETS = r"(?m)^[ \t]+(?:config|cfg)\.((?:\w+\.)+\w+)[ \t]*=(?!=)"


def set_by_program(file: Path, program: str) -> dict[str, str]:
    """Return the keys that a Hydra program of the repository sets itself, each with the file that
    does.

    Without a launch the program is one above a configuration, up to the repository's root.
    """
    root = find_root(file)
    if root is None:
        return {}
    paths = [find_program(program, file)]
    if not program:
        for folder in absolute(file).parents[1:]:
            if folder.is_relative_to(root):
                paths += sorted(folder.glob("*.py"))
    texts = {path.name: head_of(path) for path in paths if path is not None}
    keys: dict[str, str] = {}
    for name, text in texts.items():
        if "hydra.main(" in text:
            keys |= dict.fromkeys(re.findall(SETS, text), f"{name} sets it")
    return keys


LITERAL = r"(?:[\w.+-]+/)+[\w.+-]+\.(?:json|ya?ml|py)"


def lacks_file(file: Path, name: str) -> bool:
    """Return whether a file names another one of its repository that is certainly missing.

    ``name`` is a literal path. The repository has its folder, below its root or a folder above
    ``file``, but no file of that name anywhere, and ``file`` does not write it.
    """
    if ".." in name or not re.fullmatch(LITERAL, name):
        return False
    repository = find_repository(file)
    if repository is None or not (repository.root / ".git").exists():
        return False
    wanted = PurePosixPath(name)
    above = [folder for folder in absolute(file).parents if folder.is_relative_to(repository.root)]
    if not any((folder / wanted.parent).is_dir() for folder in above):
        return False
    try:
        writes = re.search(rf">\s*\S*{re.escape(wanted.name)}", file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False
    return not writes and not any((folder / wanted.name).exists() for folder in repository.folders)


def _first_file(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _nearest_file(places: Iterable[Path], script: Path, is_bare: bool) -> Path | None:
    """Return the file with the longest path in common with a script; None for one of several of the
    same bare name.
    """
    files = [path for path in places if path.is_file()]
    shared = absolute(script).parts
    if is_bare and len(files) > 1:
        return None
    return max(files, key=lambda path: sum(map(eq, path.parts, shared)), default=None)


@lru_cache(maxsize=32)
def walk(root: Path) -> Repository:
    """Return the files and folders below a folder, by a walk with limits."""
    folders = [root]
    level = [root]
    requirements: list[Path] = []
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
    """Return a folder's subfolders and its files with requirements, sorted by name."""
    folders = []
    files = []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and not re.fullmatch(
                        SKIPPED, entry.name.lower()
                    ):
                        folders.append(folder / entry.name)
                elif has_requirements(entry.name, folder.name) and entry.is_file(
                    follow_symlinks=False
                ):
                    files.append(folder / entry.name)
    except OSError:
        # a folder without permission to read
        return [], []
    return folders, files


def has_requirements(name: str, folder: str) -> bool:
    """Return whether a file of this name, in a folder of this name, holds requirements."""
    return (
        name in NAMES
        or (name.endswith(".txt") and folder == "requirements")
        or (name.endswith((".txt", ".in")) and "require" in name)
        or name.startswith("Dockerfile")
        or name.endswith((".dockerfile", ".Dockerfile"))
        or (name.startswith(("environment", "conda")) and name.endswith((".yml", ".yaml")))
    )
