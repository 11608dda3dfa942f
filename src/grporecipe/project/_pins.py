"""Find which releases of a package a repository asks for: requirements, project files, locks,
Dockerfiles and scripts.

Files are read as text, and Python files such as setup.py by their literals. Nothing is executed. A
commit or a branch is no version. Sources: PEP 440 and 508; pip's VCS support; poetry's caret and
tilde; conda's single ``=``.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from grporecipe.files import file_stamp
from grporecipe.model.setting import Version

# bytes; lock files have a megabyte
LARGEST = 4 * 2**20

# whose repositories are those of the packages themselves
OWNERS = r"[/:](?:huggingface|volcengine|verl-project|modelscope|hiyouga)/"

LOCKS = ("uv.lock", "poetry.lock", "Pipfile.lock")

# Every repetition has a limit, so that a hostile file takes no longer than its length.
_VERSION = r"v?\d{1,9}(?:\.\d{1,9}){0,5}(?:\.\*)?(?:[.-]?(?:dev|rc|a|b|post)\d{0,9})?"

_BLANK = r"\s{0,20}"

_SIGN = r"===|==|~=|>=|<=|!=|<|>|=|\^|~"

_CLAUSE = rf"(?:{_SIGN}){_BLANK}{_VERSION}"

_VARIABLE = r"(?m)^[ \t]{0,20}(?:ARG|ENV|export)[ \t]{1,20}(\w{1,80})[= ]\"?([\w.+-]+)"

_CLAUSES = rf"{_CLAUSE}(?:{_BLANK},{_BLANK}{_CLAUSE}){{0,9}}"


class Pin(NamedTuple):
    """A requirement in a file: its text and PEP 440 specifier. ``ref`` is a commit, tag or branch
    instead of a version.
    """

    file: Path
    text: str
    specifier: str = ""
    ref: str = ""

    @property
    def exact(self) -> Version | None:
        """The one version that is required."""
        if re.fullmatch(r"v?\d{1,9}\.\d{1,9}(\.\d{1,9})?(\.?(dev|rc|post)\d*)?", self.ref):
            return _release(self.ref)
        clause = re.search(r"(?:^|,)==([^*,]+)(?:,|\Z)", self.specifier)
        if clause is None:
            return None
        return _release(clause[1])

    @property
    def is_open(self) -> bool:
        """Whether it names a commit or a branch, whose version is unknown."""
        return bool(self.ref) and self.exact is None

    @property
    def is_fork(self) -> bool:
        """Whether it names a repository of git that is not the package's own."""
        url = re.search(r"(?:git\+|://|git@)\S+", self.text)
        return bool(self.ref and url) and not re.search(OWNERS, self.text)

    def allows(self, version: Version) -> bool:
        """Return whether a version satisfies the requirement."""
        # only a requirement needs it
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(self.specifier).contains(".".join(map(str, version)))


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", re.split(r"dev|rc|a|b|post", text)[0])[:3]


def _release(text: str) -> Version:
    major, minor, patch = (*map(int, _numbers(text)), 0, 0)[:3]
    return major, minor, patch


def find_pins(file: Path, package: str) -> tuple[Pin, ...]:
    """Return a file's requirements of a package, those with a version first."""
    stamp = file_stamp(file)
    if stamp is None:
        return ()
    return _find_pins(file, package, *stamp)


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
    """Yield the requirements in lines: of requirements files, conda's, shell commands, strings of
    setup.py.
    """
    name = _any_spelling(package)
    required = re.compile(
        rf"(?<![\w./@-]){name}(?:\[[^\[\]]{{0,200}}\])?{_BLANK}\(?{_BLANK}({_CLAUSES})\)?",
        re.IGNORECASE,
    )
    of_git = re.compile(
        rf"git\+[^\s+]{{0,200}}?/{name}(?:\.git)?/?(?:@([\w./-]{{1,200}}))?(?=[\s\"'#;)\]]|$)",
        re.IGNORECASE,
    )
    for line in lines:
        for match in of_git.finditer(line):
            yield Pin(file, _short(match[0]), "", (match[1] or "main").removesuffix(".git"))
        for match in required.finditer(line):
            yield Pin(file, _short(match[0]), _specifier(match[1]))


def _specifier(text: str) -> str:
    """Return clauses in PEP 440's syntax, which has neither poetry's ``^`` and ``~`` nor conda's
    ``=``, a prefix.
    """
    return ",".join(
        _clause(sign, version) for sign, version in re.findall(rf"({_SIGN})\s*({_VERSION})", text)
    )


def allows(text: str, version: Version) -> bool:
    """Return whether a version satisfies a requirement, given by its text."""
    return Pin(Path(), text, _specifier(text)).allows(version)


def _clause(sign: str, version: str) -> str:
    """Return one clause. Pre- and post-releases count as their release, because tables of keys have
    releases only.
    """
    parts = _numbers(version)
    is_prefix = "*" in version
    plain = ".".join(parts)
    if sign in ("^", "~") or (sign == "~=" and len(parts) == 1):
        held = 1
        if sign == "~" or (sign == "^" and parts[0] == "0"):
            held = 2
        return f">={plain},=={'.'.join([*parts, '0'][:held])}.*"
    if sign == "=" and len(parts) < 3:
        is_prefix = True
    if sign in ("=", "==="):
        sign = "=="
    if sign in ("==", "!=") and is_prefix:
        plain += ".*"
    return sign + plain


def _short(text: str) -> str:
    return " ".join(text.split())[:80]


def _expanded(text: str) -> list[str]:
    """Return the lines without comments, and with the variables that a Dockerfile sets by ARG and
    ENV.
    """
    lines = [re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines()]
    values = dict(re.findall(_VARIABLE, "\n".join(lines)))
    used = [line for line in lines if not re.match(r"\s*(?:ARG|ENV|export)\s", line)]
    return [
        re.sub(r"\$\{?(\w+)\}?", lambda match: values.get(match[1], match[0]), line)
        for line in used
    ]


def _literals(text: str) -> list[str]:
    """Return the strings of Python code, in order; empty if it cannot be parsed."""
    # few repositories have a setup.py
    import ast

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


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
    """Yield the requirements in an entry: ``trl = "^0.15"``, ``{version = "0.15.2"}``, ``{git =
    ..., tag = "v0.14.0"}``.
    """
    entry = value
    if not isinstance(value, dict):
        entry = {"version": value}
    version = entry.get("version")
    ref = entry.get("tag") or entry.get("rev") or entry.get("branch") or "main"
    if isinstance(version, str) and re.fullmatch(rf"{_BLANK}\(?{_CLAUSES}\)?{_BLANK}", version):
        yield Pin(file, _short(f'{key} = "{version}"'), _specifier(version))
    elif isinstance(version, str) and re.fullmatch(_VERSION, version):
        yield Pin(file, f'{key} = "{version}"', _clause("==", version))
    elif entry.get("git") and isinstance(ref, str):
        yield Pin(file, _short(f"{key} {entry['git']} {ref}"), "", ref)


def _of_lock(file: Path, text: str, package: str) -> Iterator[Pin]:
    name = _any_spelling(package)
    patterns = (
        rf'name = "{name}"[ \t\r]{{0,9}}\n(?:\w{{1,40}} = .*\n){{0,5}}?version = "({_VERSION})"',
        rf'"{name}"\s*:\s*\{{[^{{}}]*?"version"\s*:\s*"==({_VERSION})"',
    )
    for pattern in patterns:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            yield Pin(file, f"{package} {match[1]}", _clause("==", match[1]))
