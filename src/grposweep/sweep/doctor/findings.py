"""Findings of the doctor, and checks of single files."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from grposweep.files import write_text


@dataclass(frozen=True)
class Finding:
    """``what`` is wrong; ``remedy`` describes the automatic repair, or the manual one if there is none."""

    what: str
    remedy: str
    repair: Callable[[], object] | None = None

    def __str__(self) -> str:
        """Both, as they are shown."""
        return f"{self.what}: {self.remedy}"


def scrap_path(path: Path) -> Path:
    """Where the unreadable parts of a file are kept."""
    return path.with_name(f"{path.name}.damaged")


def set_aside(path: Path) -> None:
    """Rename an unreadable file."""
    path.rename(scrap_path(path))


def check_json(path: Path, name: str, remedy: str) -> Finding | None:
    """A file that should hold one JSON object, and does not; it is set aside. A missing one is fine."""
    try:
        if not path.exists() or isinstance(json.loads(path.read_bytes()), dict):
            return None
    except ValueError:
        pass
    return Finding(f"{name} is damaged", f"set it aside as {scrap_path(path).name}; {remedy}", partial(set_aside, path))


def torn_lines(path: Path) -> list[bytes]:
    """The lines of a file of JSON lines that hold no object."""
    return [line for line in _lines(path) if not _is_object(line)]


def drop_torn_lines(path: Path) -> None:
    """Move unreadable lines into a file of their own next to it."""
    lines = _lines(path)
    with scrap_path(path).open("ab") as file:
        file.writelines(line + b"\n" for line in lines if not _is_object(line))
    write_text(path, "".join(line.decode() + "\n" for line in lines if _is_object(line)))


def _lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().split(b"\n") if line] if path.exists() else []


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
