"""The user's files that a training depends on: find them, hash them, keep a copy in the sweep, and
notice a change.

These are data files, files of rewards, training scripts and what they import from the project,
configuration files of others, and local model folders. ``inputs.json`` in the sweep's folder
records their hashes. Code and small data are copied to ``inputs/<hash>/<absolute path>``, which
attempts read, so the originals may be edited while trials wait. A file that has no copy is compared
with its recorded hash when an attempt starts.
"""

import ast
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from grporecipe.errors import UserError
from grporecipe.files import absolute, text_or, text_sha256
from grposweep.process import OWN_PACKAGES
from grposweep.schema import Experiment, Task, Trainer
from grposweep.storage import paths
from grposweep.storage.records import Record, as_mapping, read_fields, read_provenance

# larger files are hashed by samples
WHOLE_BYTES = 64 << 20
# this many samples of this many bytes, so the cost of a file is bounded
SAMPLES, SAMPLE_BYTES = 64, 1 << 20
# the largest file that is copied
COPIED_BYTES = 10 << 20
# of a package or a folder; further files are ignored
MOST_FILES = 1000
# a file or folder that is no part of a folder's content
_HIDDEN = r"/(\.|__pycache__)"
# prefix of a hash of samples
SAMPLED = "~"
# A copy would not find files that code reads relative to its own location.
_OWN_PLACE = r"\b__file__\b|\b__path__\b|\bimportlib\.resources\b|\bpkgutil\b"


@dataclass(frozen=True)
class InputFile:
    """One file or folder: its hash, and whether the sweep has a copy."""

    digest: str
    copied: bool = False


@dataclass(frozen=True)
class Inputs(Record):
    """The files of a sweep under the names in the configuration; ``copies`` is their folder in the
    sweep.
    """

    FILE = paths.INPUTS

    files: Mapping[str, InputFile] = field(default_factory=dict)
    copies: str | None = None

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Return the inputs in a JSON object; files without a hash are left out."""
        content = as_mapping(content)
        files = {}
        for name, entry in as_mapping(content.get("files")).items():
            known = read_fields(InputFile, as_mapping(entry))
            if "digest" in known:
                files[name] = InputFile(**known)
        return cls(files, text_or(content.get("copies")) or None)

    @property
    def digests(self) -> dict[str, str]:
        """Return the hash of each file, for provenance."""
        return {name: file.digest for name, file in self.files.items()}

    def changed(self, now: "Inputs") -> list[str]:
        """Return the files that both records name with different content. A hash of samples is not
        compared with a whole one.
        """
        return [
            name
            for name, file in self.files.items()
            if name in now.files and _is_changed(file.digest, now.files[name].digest)
        ]

    def keep(self, sweep: Path, path_of: Callable[[str], str] = str) -> "Inputs":
        """Copy code and small data into the sweep, once per state. Return the inputs with their
        copies.

        ``path_of`` returns where a file's content is; another sweep may have it.
        """
        chosen = [name for name, file in self.files.items() if file.copied]
        if not chosen:
            return replace(self, copies=None)
        state = text_sha256(repr([(name, self.files[name].digest) for name in sorted(chosen)]))
        target = sweep / paths.INPUTS_FOLDER / state[:12]
        if not target.exists():
            with drafted(target) as draft:
                for name in chosen:
                    copy = draft / Path(name).resolve().relative_to("/")
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path_of(name), copy)
                    if digest_of(copy)[:16] != self.files[name].digest:
                        raise UserError(
                            f"{name} was changed while it was copied. Give the same command again."
                        )
        return replace(self, copies=f"{paths.INPUTS_FOLDER}/{target.name}")


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """Yield a new folder, which becomes ``target`` once all is in it."""
    target.parent.mkdir(exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=".draft-"))
    # mkdtemp's 0700 would exclude team mates
    draft.chmod(0o755)
    yield draft
    draft.rename(target)


def _is_changed(old: str, new: str) -> bool:
    """Return whether two hashes differ; one of samples is not compared with a whole one."""
    return old != new and old.startswith(SAMPLED) == new.startswith(SAMPLED)


_COPY = rf".*/{paths.INPUTS_FOLDER}/[0-9a-f]{{12}}(?=/)"


def original_path(name: str) -> str:
    """Return the user's file for a path that may be the sweep's copy of it, relative to the working
    directory if below it.
    """
    return _name(Path(re.sub(_COPY, "", name)))


def find_inputs(
    experiments: Iterable[Experiment], asked: Callable[[Trainer], list[Path]] = lambda _: []
) -> Inputs:
    """Find the files that these experiments depend on, with their present hashes.

    ``asked`` returns the files that a user's command read and imported when it was asked what its
    trainer gets.
    """
    data: list[Path] = []
    read_in_place: list[Path] = []
    code: list[Path] = []
    for experiment in experiments:
        task, trainer, model = experiment.task, experiment.trainer, Path(experiment.model.path)
        data += data_files(task)
        named = Path(trainer.deepspeed_config or os.devnull)
        if named.is_file():
            read_in_place.append(named)
        if model.is_dir():
            read_in_place.append(model)
        code += code_files(task.rewards)
        read_in_place += asked(trainer)
    is_movable = True
    for path in {*code}:
        if re.search(_OWN_PLACE, path.read_text(encoding="utf-8", errors="replace")):
            is_movable = False
    copied = {path: _is_small(path) for path in data}
    copied |= dict.fromkeys(read_in_place, False)
    copied |= {path: is_movable and _is_small(path) for path in code}
    files = {_name(path): InputFile(digest_of(path)[:16], own) for path, own in copied.items()}
    return Inputs(dict(sorted(files.items())))


def data_files(task: Task) -> list[Path]:
    """Return the task's files and folders of prompts that exist here."""
    named = filter(None, (task.path, task.eval_split))
    return [path for path in map(Path, named) if path.exists()]


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= COPIED_BYTES


def _name(path: Path) -> str:
    """Return a path as the user would type it: relative if it is below the working directory."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def code_files(specs: Sequence[str]) -> list[Path]:
    """Return the files of a task's code, and what they import from the project."""
    files: list[Path] = []
    named_roots = map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    # not our own source
    given = [root for root in named_roots if not (root / "grposweep").is_dir()]
    for spec in specs:
        place = spec.rpartition(":")[0]
        last = user_folders([spec])
        named = []
        if place.endswith(".py"):
            named = [Path(place)]
        elif place:
            named = _module_files(place, given, last)
        files += _with_imports([path for path in named if path.is_file()], given, last)
    return files


def user_folders(specs: Iterable[str]) -> list[Path]:
    """Return the folders that are searched last for what a task's code imports: those of its files,
    and the working directory.
    """
    folders = []
    for spec in specs:
        module = spec.rpartition(":")[0]
        if module.endswith(".py"):
            folders.append(absolute(module).parent)
    return list(dict.fromkeys([*folders, Path.cwd()]))


def _with_imports(files: Sequence[Path], roots: Sequence[Path], last: Sequence[Path]) -> list[Path]:
    """Return files and the project's files that they import, directly or indirectly."""
    by_path = {absolute(path): path for path in files}
    waiting = list(files)
    while waiting and len(by_path) < MOST_FILES:
        for module in _imports(waiting.pop()):
            for path in _module_files(module, roots, last):
                if absolute(path) not in by_path:
                    by_path[absolute(path)] = path
                    waiting.append(path)
    return list(by_path.values())


def _imports(path: Path) -> set[str]:
    """Return the modules that a file imports by absolute names; empty for one that cannot be
    parsed.
    """
    if not _is_small(path):
        return set()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def _module_files(module: str, roots: Sequence[Path], last: Sequence[Path]) -> list[Path]:
    """Return the project's files of a module; all files of a package, because it may import them by
    name.

    An installed package takes precedence over the folders ``last``.
    """
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in OWN_PACKAGES:
        return []
    searched = [*roots]
    if _is_unknown(top, last):
        searched += last
    for root in searched:
        if (root / f"{top}.py").is_file():
            return [root / f"{top}.py"]
        package = root / top
        # an installed package takes precedence over a folder without __init__.py
        if package.is_dir() and ((package / "__init__.py").is_file() or _is_unknown(top, roots)):
            return sorted(package.rglob("*.py"))[:MOST_FILES]
    return []


def _is_unknown(top: str, folders: Sequence[Path]) -> bool:
    """Return whether no package of this name is installed outside these folders, without importing
    it.
    """
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return True
    if spec is None:
        return True
    for place in filter(None, (spec.origin, *(spec.submodule_search_locations or ()))):
        if not set(folders).isdisjoint(Path(place).parents[:2]):
            return True
    return False


def hidden_files(spec: str) -> Iterator[str]:
    """Yield a sentence for each of the user's files that a task's code would import, if no package
    had its name.
    """
    path = spec.rpartition(":")[0]
    folders = user_folders([spec])
    modules = _imports(Path(path)) if path.endswith(".py") and Path(path).is_file() else {path}
    for top in sorted({module.partition(".")[0] for module in modules} - {""}):
        files = [folder / f"{top}.py" for folder in folders if (folder / f"{top}.py").is_file()]
        if files and (top in sys.stdlib_module_names or not _is_unknown(top, folders)):
            yield (
                f"{_name(files[0])} is not used: 'import {top}' finds the installed package of "
                "that name. Rename the file."
            )


def digest_of(path: Path) -> str:
    """Return the hash of a file or folder; of a large file, the hash of its size and samples."""
    if path.is_dir():
        digest = hashlib.sha256()
        names = [item.relative_to(path) for item in sorted(path.rglob("*")) if item.is_file()]
        shown = [name for name in names if not re.search(_HIDDEN, f"/{name}")]
        for name in shown[:MOST_FILES]:
            digest.update(f"{name}\0{digest_of(path / name)}\0".encode())
        return digest.hexdigest()
    stat = path.stat()
    return _file_digest(absolute(path), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _file_digest(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001 - the date is part of the cache's key
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256(str(size).encode())
        # evenly spread, from the first byte to the last
        for number in range(SAMPLES):
            file.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
        return SAMPLED + digest.hexdigest()


@dataclass(frozen=True)
class TrialInputs:
    """The inputs of one trial as its attempts find them (provenance.json in its folder), or of a
    sweep's preparation.
    """

    copies: Path | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, trial: Path) -> Self:
        """Return the inputs of a trial; empty without a record of them."""
        recorded = read_provenance(trial)
        copies = recorded.get("copies")
        files = recorded.get("files")
        if not isinstance(copies, str) or not isinstance(files, dict):
            return cls()
        folder = trial.parent.parent / copies if copies else None
        return cls(folder, {str(name): str(digest) for name, digest in files.items()})

    @classmethod
    def of_sweep(cls, sweep: Path) -> Self:
        """Return the inputs of a sweep's new trials."""
        recorded = Inputs.read(sweep)
        copies = sweep / recorded.copies if recorded.copies else None
        return cls(copies, recorded.digests)

    def over(self, now: Inputs) -> Inputs:
        """Return the recorded files with their recorded content, and those of ``now`` that were not
        recorded.
        """
        old = {
            name: InputFile(digest, self._copy(name) is not None)
            for name, digest in self.digests.items()
        }
        return Inputs({**now.files, **old})

    def with_originals(self, text: str) -> str:
        """Return a text with the user's files in place of their copies."""
        if self.copies is None:
            return text
        copies = str(self.copies)
        return text.replace(f"{copies}{Path.cwd()}/", "").replace(copies, "")

    def path(self, name: str) -> str:
        """Return the copy of a file, or its own path if there is none."""
        copy = self._copy(name)
        return name if copy is None else str(copy)

    def _copy(self, name: str) -> Path | None:
        if self.copies is None:
            return None
        copy = self.copies / Path(name).resolve().relative_to("/")
        return copy if copy.is_file() else None

    def task(self, task: Task) -> Task:
        """Return the task with its files replaced by their copies."""
        rewards = list(map(self._code, task.rewards))
        path = task.path and self.path(task.path)
        held_out = task.eval_split and self.path(task.eval_split)
        return replace(task, path=path, eval_split=held_out, rewards=rewards)

    def _code(self, spec: str) -> str:
        path, _, name = spec.rpartition(":")
        return f"{self.path(path)}:{name}" if path.endswith(".py") else spec

    def roots(self, given: Iterable[str]) -> list[str]:
        """Return the copies of folders on the import path."""
        if self.copies is None:
            return []
        copies = [self.copies / Path(root or ".").resolve().relative_to("/") for root in given]
        return [str(copy) for copy in copies if copy.is_dir()]

    def search_path(self, given: Sequence[str], task: Task) -> list[str]:
        """Return an import path that ends with the folders of the task's code. The copy of a folder
        comes before it.
        """
        places = []
        for root in dict.fromkeys([*given, *map(str, user_folders(task.rewards))]):
            places += [*self.roots([root]), root]
        return places

    def check(self) -> None:
        """Raise UserError if a file without a copy changed since it was recorded."""
        for name, digest in self.digests.items():
            path = Path(name)
            if self._copy(name) is not None or not path.exists():
                continue
            now = digest_of(path)[:16]
            if _is_changed(digest, now):
                raise UserError(
                    f"{name} has changed since the sweep recorded it (then {digest[:8]}, now "
                    f"{now[:8]}), and the sweep has no copy of it. Restore it, or give the sweep's "
                    "command again, which names the choices."
                )
