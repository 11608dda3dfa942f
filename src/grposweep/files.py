"""Files that others read: written whole or not at all, appended a line at a time, read without trusting the tail."""

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]  # holds conf/, sweeps/ and src/
VERSION = 1  # of every line and object on disk, as "v"
_DRAFT = re.compile(r"\.(?:[\w.-]+)\.(?:[a-z0-9_]{8}|new|stale)")  # of write_text, and of the heartbeat


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` so that a reader sees the old or the new content, never a part (fsync, then rename)."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp's 0600 would lock team mates out of a shared sweep folder
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def is_draft(name: str) -> bool:
    """Whether a file of this name is what a writer leaves that was killed before its rename."""
    return _DRAFT.fullmatch(name) is not None


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace ``path`` by one JSON object that carries the format's version."""
    write_text(path, json.dumps({"v": VERSION, **value}, indent=1, sort_keys=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in ``path``; None where there is none that can be read (``grposweep doctor`` tells the two apart)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def append_line(path: Path, value: dict[str, Any]) -> None:
    """Append one JSON line that carries the format's version, in a single write; a torn last line is ended first."""
    data = (json.dumps({"v": VERSION, **value}) + "\n").encode()
    with path.open("ab+", buffering=0) as file:  # a training appends at every step: half the time of a buffered file
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            data = data if file.read(1) == b"\n" else b"\n" + data
        while data:  # the disk may take a part and refuse the rest, loudly
            data = data[file.write(data) :]


def read_lines(path: Path, **shape: "type | UnionType") -> Iterator[dict[str, Any]]:
    """The JSON lines of ``path``; a torn line (its writer was killed) is skipped, a missing file is empty.

    ``shape`` names what a line must have, and as what: ``step=int``; others are skipped as well.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for value in objects(text.split("\n")):  # splitlines() would also cut at U+2028, which JSON strings may hold
        if all(isinstance(value.get(name), kind) for name, kind in shape.items()):
            yield value


def objects(lines: Iterable[str | bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects among these lines; what is none is skipped."""
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def as_number(value: object) -> float | None:
    """A JSON number as a float; None for anything else, and for what no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def text_or(value: Any, default: str = "") -> str:
    """Return a JSON string, or the default for any other value."""
    return value if isinstance(value, str) else default


def whole_or_none(value: Any) -> int | None:
    """Return a JSON integer; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def count_or_none(value: Any) -> int | None:
    """Return a finite JSON number as an integer; None for any other value."""
    number = finite_or_none(value)
    return None if number is None else int(number)


def finite_or_none(value: Any) -> float | None:
    """Return a finite JSON number; None for any other value."""
    number = as_number(value)
    return number if number is not None and math.isfinite(number) else None


def age_seconds(path: Path) -> float:
    """Seconds since a file (or link) was last written, by comparison with a new file in its folder: clocks differ.

    Raises FileNotFoundError where it is not there.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.now.") as now:
        return max(os.fstat(now.fileno()).st_mtime - path.lstat().st_mtime, 0.0)


def yaml_loader() -> Any:
    """PyYAML's safe loader: the fast one where it was built, which reads the same values ten times faster."""
    import yaml  # not needed for --help

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def text_sha256(text: str) -> str:
    """Return a hash that tells whether a file has changed since it was written."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file's content, or None if there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
