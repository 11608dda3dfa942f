"""Search the repository around a recipe: its root, its folders, and the version of a package that its files pin.

A repository is walked once, breadth first, with limits. Links are not followed; hidden folders and environments are skipped.
Files with requirements are read as text, and Python files such as setup.py by their literals. Nothing is executed. A commit
or a branch is no version. Sources: PEP 440 and 508; pip's VCS support; poetry's caret and tilde; conda's single ``=``.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from grporecipe.files import file_stamp
from grporecipe.model.setting import Version

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
    """A repository's files with requirements and all its folders, nearest to the root first."""

    root: Path
    requirements: tuple[Path, ...]
    folders: tuple[Path, ...]


def find_repository(file: Path) -> Repository | None:
    """Return the repository of a file, or None."""
    root = find_root(file)
    return None if root is None else walk(root)


def find_root(file: Path) -> Path | None:
    """Return the folder with ``.git`` above a file. Without one, return the outermost folder that looks like a project.

    The search ends at the working directory, the home and the temporary directory, because these hold several projects.
    """
    absolute = file.absolute()
    folders = list(absolute.parents)[:UPWARD]
    here, never = Path.cwd(), {Path.home(), Path(tempfile.gettempdir()), Path("/")}
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
    """Return the folders that a script may be started in: the working directory, and those above it in its repository."""
    root = find_root(script) or script.absolute().parent
    above = list(script.absolute().parents)
    return [Path.cwd(), *(above[: above.index(root) + 1] if root in above else above[:UPWARD])]


def find_folders(names: Iterable[str], script: Path) -> tuple[Path, ...]:
    """Return the folders that a script names, such as those of its PYTHONPATH."""
    return tuple(folder / name for name in names for folder in _working_folders(script) if (folder / name).is_dir())


def find_program(program: str, script: Path, paths: Sequence[str] = ()) -> Path | None:
    """Return the file of a program that a script names (``src/train.py``, or a dotted module), if the repository has it.

    A script may be for another working directory, so a file is also found by the end of its path; the nearest of several.
    ``paths`` are the folders of PYTHONPATH.
    """
    root, folders = find_root(script) or script.absolute().parent, _working_folders(script)
    if not program.endswith(".py"):
        if not program.replace(".", "_").isidentifier():
            return None
        whole = Path(*program.split("."))
        starts = [*find_folders(paths, script), *(start for folder in folders for start in (folder, folder / "src"))]
        return _first_file(start / name for start in starts for name in (f"{whole}.py", whole / "__init__.py"))
    if Path(program).is_absolute() and Path(program).is_file():
        return Path(program)
    parts = [part for part in Path(program).parts if part not in (".", "..", "/")]
    unknown = [n for n, part in enumerate(parts) if "$" in part]
    parts = parts[unknown[-1] + 1 :] if unknown else parts  # $SCRIPT_DIR/train.py
    wanted = Path(*parts)
    places = (folder / wanted.name for folder in walk(root).folders)
    programs = [place for place in places if place.parts[-len(parts) :] == wanted.parts]
    return (
        _first_file(folder / wanted for folder in folders)
        or (_nearest_file(programs, script, is_bare=len(parts) == 1) if parts else None)
        or _first_file(folder / Path(*parts[n:]) for n in range(1, len(parts)) for folder in folders)
    )


SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
MOST_SCRIPTS = 1000
LARGEST_SCRIPT = 2**16  # bytes


def scripts_of(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the shell scripts of a repository with their present texts."""
    for path in _scripts(root):
        with suppress(OSError):  # removed since
            yield path, _text(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _scripts(root: Path) -> tuple[Path, ...]:
    scripts = (path for folder in walk(root).folders for path in sorted(folder.glob("*.*")) if path.suffix in SCRIPTS)
    return tuple(islice(scripts, MOST_SCRIPTS))


@lru_cache(maxsize=2 * MOST_SCRIPTS)
def _text(path: Path, _: int) -> str:
    return head_of(path)


def is_overridden(file: Path, values: Mapping[str, Any]) -> bool:
    """Return whether launches build on a Hydra or EasyR1 configuration, and each gives one of these keys another value.

    A launch names it (``config=a.yaml``, ``--config-name a``), or starts a program that does (``config_name="a"``).
    """
    root = find_root(file)
    if root is None:
        return False
    stem = re.escape(file.stem)
    named = re.compile(rf"\bconfig=\S*\b{stem}\.ya?ml|(?:--config-name|-cn)[= ]['\"]?{stem}\b")
    primary = re.compile(rf"config_name\s*=\s*['\"]{stem}(?:\.yaml)?['\"]")
    above = [folder for folder in list(file.absolute().parents)[:3] if folder.is_relative_to(root)]
    programs = [path.name for folder in above for path in folder.glob("*.py") if primary.search(head_of(path))]
    texts = [text for _, text in scripts_of(root) if named.search(text) or any(name in text for name in programs)]
    others = [re.compile(rf"\b{re.escape(key)}=(?!{re.escape(str(value))}(?![\w.]))") for key, value in values.items()]
    return bool(texts) and all(any(other.search(text) for other in others) for text in texts)


def head_of(path: Path) -> str:
    """Return the beginning of a text file; empty if it cannot be read."""
    try:
        return path.read_bytes()[:LARGEST_SCRIPT].decode("utf-8", "replace")
    except OSError:
        return ""


def is_elsewhere(file: Path, folder: str) -> bool:
    """Return whether a script changes to an absolute folder whose name no folder of its repository has."""
    root = find_root(file)
    if root is None or not folder.startswith("/") or Path(folder).is_relative_to(root):
        return False
    return Path(folder).name not in {root.name, *(each.name for each in walk(root).folders)}


MOST_MODULES = 3000  # Python files that are searched for a registration


def registers(file: Path, word: str) -> bool:
    """Return whether Python code of a file's repository registers a word: ``@register("x")``, ``R.register("x")``, an Enum."""
    root = find_root(file)
    return root is not None and _registers(root, word)


@lru_cache(maxsize=256)
def _registers(root: Path, word: str) -> bool:
    quoted = rf"""["']{re.escape(word)}["']"""
    registered = re.compile(rf"\bregister\w*\(\s*(?:[\w.]+\s*,\s*)?{quoted}")
    listed = re.compile(rf"^[ \t]+\w+\s*=\s*{quoted}", re.MULTILINE)
    paths = (path for folder in walk(root).folders for path in folder.glob("*.py"))
    texts = (head_of(path) for path in islice(paths, MOST_MODULES))
    return any(registered.search(text) or ("Enum)" in text and listed.search(text)) for text in texts)


SETS = re.compile(r"^[ \t]+(?:config|cfg)\.((?:\w+\.)+\w+)[ \t]*=(?!=)", re.MULTILINE)


def set_by_program(file: Path, program: str = "") -> dict[str, str]:
    """Return the keys that a Hydra program of the repository sets itself, each with the file that does.

    Without a launch the program is one above a configuration, up to the repository's root.
    """
    root = find_root(file)
    if root is None:
        return {}
    if program:
        paths = [find_program(program, file)]
    else:
        above = (folder for folder in file.absolute().parents[1:] if folder.is_relative_to(root))
        paths = [path for folder in above for path in sorted(folder.glob("*.py"))]
    texts = {path.name: head_of(path) for path in paths if path is not None}
    return {
        key: f"{name} sets it" for name, text in texts.items() if "hydra.main(" in text for key in SETS.findall(text)
    }


LITERAL = re.compile(r"(?:[\w.+-]+/)+[\w.+-]+\.(?:json|ya?ml|py)")


def lacks_file(file: Path, name: str) -> bool:
    """Return whether a file names another one of its repository that is certainly missing.

    ``name`` is a literal path. The repository has its folder, below its root or a folder above ``file``, but no file of that
    name anywhere, and ``file`` does not write it.
    """
    repository = find_repository(file) if LITERAL.fullmatch(name) and ".." not in name else None
    if repository is None or not repository.folders[0].joinpath(".git").exists():
        return False
    wanted = PurePosixPath(name)
    above = [folder for folder in file.absolute().parents if folder.is_relative_to(repository.root)]
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
    """Return the file with the longest path in common with a script; None for one of several of the same bare name."""
    files, shared = [path for path in places if path.is_file()], script.absolute().parts
    if is_bare and len(files) > 1:
        return None
    return max(files, key=lambda path: sum(a == b for a, b in zip(path.parts, shared, strict=False)), default=None)


@lru_cache(maxsize=32)
def walk(root: Path) -> Repository:
    """Return the files and folders below a folder, by a walk with limits."""
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
    """Return a folder's subfolders and its files with requirements, sorted by name."""
    folders, files = [], []
    try:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name.lower() not in SKIPPED:
                        folders.append(folder / entry.name)
                elif has_requirements(entry.name, folder.name) and entry.is_file(follow_symlinks=False):
                    files.append(folder / entry.name)
    except OSError:  # a folder without permission to read
        return [], []
    return folders, files


def has_requirements(name: str, folder: str = "") -> bool:
    """Return whether a file of this name, in a folder of this name, holds requirements."""
    return (
        name in NAMES
        or (name.endswith(".txt") and folder == "requirements")
        or (name.endswith((".txt", ".in")) and "require" in name)
        or name.startswith("Dockerfile")
        or name.endswith((".dockerfile", ".Dockerfile"))
        or (name.startswith(("environment", "conda")) and name.endswith((".yml", ".yaml")))
    )


LARGEST = 4 * 2**20  # bytes; lock files have a megabyte
LOCKS = ("uv.lock", "poetry.lock", "Pipfile.lock")
# Every repetition has a limit, so that a hostile file takes no longer than its length.
_VERSION = r"v?\d{1,9}(?:\.\d{1,9}){0,5}(?:\.\*)?(?:[.-]?(?:dev|rc|a|b|post)\d{0,9})?"
_BLANK = r"\s{0,20}"
_SIGN = r"===|==|~=|>=|<=|!=|<|>|=|\^|~"
_CLAUSE = rf"(?:{_SIGN}){_BLANK}{_VERSION}"
_VARIABLE = re.compile(r"^[ \t]{0,20}(?:ARG|ENV|export)[ \t]{1,20}(\w{1,80})[= ]\"?([\w.+-]+)", re.MULTILINE)
_CLAUSES = rf"{_CLAUSE}(?:{_BLANK},{_BLANK}{_CLAUSE}){{0,9}}"


class Pin(NamedTuple):
    """A requirement in a file: its text and PEP 440 specifier. ``ref`` is a commit, tag or branch instead of a version."""

    file: Path
    text: str
    specifier: str = ""
    ref: str = ""

    @property
    def exact(self) -> Version | None:
        """The one version that is required."""
        if re.fullmatch(r"v?\d{1,9}\.\d{1,9}(\.\d{1,9})?(\.?(dev|rc|post)\d*)?", self.ref):
            return _release(self.ref)
        clauses = self.specifier.split(",")
        return next((_release(clause[2:]) for clause in clauses if re.fullmatch(r"==[^*]+", clause)), None)

    @property
    def is_open(self) -> bool:
        """Whether it names a commit or a branch, whose version is unknown."""
        return bool(self.ref) and self.exact is None

    def allows(self, version: Version) -> bool:
        """Return whether a version satisfies the requirement."""
        from packaging.specifiers import SpecifierSet  # only a requirement needs it

        return SpecifierSet(self.specifier).contains(".".join(map(str, version)))


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", re.split(r"dev|rc|a|b|post", text)[0])[:3]


def _release(text: str) -> Version:
    major, minor, patch = (*map(int, _numbers(text)), 0, 0)[:3]
    return major, minor, patch


def find_pins(file: Path, package: str) -> tuple[Pin, ...]:
    """Return a file's requirements of a package, those with a version first."""
    stamp = file_stamp(file)
    return () if stamp is None else _find_pins(file, package, *stamp)


@lru_cache(maxsize=512)
def _find_pins(file: Path, package: str, _: int, size: int) -> tuple[Pin, ...]:
    try:
        if size > LARGEST:
            return ()
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    if not _named(package).search(text):
        return ()
    pins = list(dict.fromkeys(_read(file, text, package)))
    return tuple(sorted(pins, key=lambda pin: (pin.is_open, pin.exact is None)))


@lru_cache(maxsize=32)
def _named(package: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){_any_spelling(package)}(?![\w-])", re.IGNORECASE)


def _any_spelling(package: str) -> str:
    return "[-_.]".join(map(re.escape, re.split(r"[-_.]", package)))


def _read(file: Path, text: str, package: str) -> Iterator[Pin]:
    if file.name in LOCKS:
        yield from _of_lock(file, text, package)
    elif file.suffix == ".py":
        yield from _of_lines(file, _literals(text), package)
    elif file.suffix == ".toml" or file.name == "Pipfile":
        yield from _of_toml(file, text, package)
    else:
        yield from _of_lines(file, _expanded(text), package)


def _of_lines(file: Path, lines: Sequence[str], package: str) -> Iterator[Pin]:
    """Yield the requirements in lines: of requirements files, conda's, shell commands, strings of setup.py."""
    name = _any_spelling(package)
    required = re.compile(
        rf"(?<![\w./@-]){name}(?:\[[^\[\]]{{0,200}}\])?{_BLANK}\(?{_BLANK}({_CLAUSES})\)?", re.IGNORECASE
    )
    of_git = re.compile(
        rf"git\+[^\s+]{{0,200}}?/{name}(?:\.git)?/?(?:@([\w./-]{{1,200}}))?(?=[\s\"'#;)\]]|$)", re.IGNORECASE
    )
    for line in lines:
        for match in of_git.finditer(line):
            yield Pin(file, _short(match[0]), "", (match[1] or "main").removesuffix(".git"))
        for match in required.finditer(line):
            yield Pin(file, _short(match[0]), _specifier(match[1]))


def _specifier(text: str) -> str:
    """Return clauses in PEP 440's syntax, which has neither poetry's ``^`` and ``~`` nor conda's ``=``, a prefix."""
    return ",".join(_clause(sign, version) for sign, version in re.findall(rf"({_SIGN})\s*({_VERSION})", text))


def allows(text: str, version: Version) -> bool:
    """Return whether a version satisfies a requirement, given by its text."""
    return Pin(Path(), text, _specifier(text)).allows(version)


def _clause(sign: str, version: str) -> str:
    """Return one clause. Pre- and post-releases count as their release, because tables of keys have releases only."""
    parts, is_prefix = _numbers(version), "*" in version
    plain = ".".join(parts)
    if sign in ("^", "~") or (sign == "~=" and len(parts) == 1):
        held = 2 if sign == "~" or (sign == "^" and parts[0] == "0") else 1
        return f">={plain},=={'.'.join([*parts, '0'][:held])}.*"
    if sign in ("=", "===", "=="):
        return f"=={plain}.*" if is_prefix or (sign == "=" and len(parts) < 3) else f"=={plain}"
    return f"!={plain}.*" if sign == "!=" and is_prefix else sign + plain


def _short(text: str) -> str:
    return " ".join(text.split())[:80]


def _expanded(text: str) -> list[str]:
    """Return the lines without comments, and with the variables that a Dockerfile sets by ARG and ENV."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    lines = [re.sub(r"\s#.*", "", line) for line in lines]
    known = dict(_VARIABLE.findall("\n".join(lines)))
    used = [line for line in lines if not re.match(r"\s*(?:ARG|ENV|export)\s", line)]
    return [re.sub(r"\$\{?(\w+)\}?", lambda match: known.get(match[1], match[0]), line) for line in used]


def _literals(text: str) -> list[str]:
    """Return the strings of Python code, in order; empty if it cannot be parsed."""
    import ast  # few repositories have a setup.py

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _of_toml(file: Path, text: str, package: str) -> Iterator[Pin]:
    """Yield the requirements of pyproject.toml: PEP 621 and 735, poetry's tables, sources of uv."""
    import tomllib

    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError):
        return
    name = re.compile(_any_spelling(package), re.IGNORECASE)
    strings: list[str] = []
    stack: list[Any] = [table]
    while stack:
        item = stack.pop(0)
        if isinstance(item, str):
            strings.append(item)
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, dict):
            for key, value in item.items():
                if name.fullmatch(str(key)):
                    yield from _of_entry(file, str(key), value)
                if str(key) != "scripts":
                    stack.append(value)
    yield from _of_lines(file, strings, package)


def _of_entry(file: Path, key: str, value: Any) -> Iterator[Pin]:
    """Yield the requirements in an entry: ``trl = "^0.15"``, ``{version = "0.15.2"}``, ``{git = ..., tag = "v0.14.0"}``."""
    entry = value if isinstance(value, dict) else {"version": value}
    version, ref = entry.get("version"), entry.get("tag") or entry.get("rev") or entry.get("branch")
    if isinstance(version, str) and re.fullmatch(rf"{_BLANK}\(?{_CLAUSES}\)?{_BLANK}", version):
        yield Pin(file, _short(f'{key} = "{version}"'), _specifier(version))
    elif isinstance(version, str) and re.fullmatch(_VERSION, version):
        yield Pin(file, f'{key} = "{version}"', _clause("==", version))
    elif entry.get("git") and isinstance(ref, str):
        yield Pin(file, _short(f"{key} {ref}"), "", ref)


def _of_lock(file: Path, text: str, package: str) -> Iterator[Pin]:
    name = _any_spelling(package)
    patterns = (
        rf'name = "{name}"[ \t\r]{{0,9}}\n(?:\w{{1,40}} = .*\n){{0,5}}?version = "({_VERSION})"',
        rf'"{name}"\s*:\s*\{{[^{{}}]*?"version"\s*:\s*"==({_VERSION})"',
    )
    for pattern in patterns:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield Pin(file, f"{package} {match[1]}", _clause("==", match[1]))
