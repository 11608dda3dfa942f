"""Every call by which a controller changes the world outside itself, numbered; it can be made to
die at any of them.

Opens for writing, writes, renames, removals and folders below a sweep, and all requests to its
launcher. A write counts three times: before it, with half of it on disk, after it.
"""

import builtins
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = (
    "replace",
    "rename",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "truncate",
    "chmod",
    "link",
    "symlink",
)
AUDITED = {
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
    "os.link",
    "os.symlink",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Calls:
    """The calls of this process, in order; it kills itself at the one numbered ``fatal``."""

    def __init__(self, below: Path, fatal: int | None = None) -> None:
        self.below = str(below)
        self.fatal = fatal
        self.made: list[str] = []
        # attempts are forks of this one, and make calls of their own
        self._process = os.getpid()
        # changes of files that Python's own audit saw; as many must have been numbered
        self.audited = 0

    def at(self, what: str) -> None:
        """A moment at which the controller may die."""
        if os.getpid() == self._process:
            self.made.append(what)
            if self._is_fatal(len(self.made) - 1):
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call with a moment before it and one after it."""

        def made(*arguments: Any, **named: Any) -> Any:
            self.at(f"before {what}")
            value = call(*arguments, **named)
            self.at(f"after {what}")
            return value

        return made

    def install(self) -> None:
        """Number this process's own changes of files from now on."""
        sys.addaudithook(self._audit)
        for name in CHANGES:
            setattr(os, name, self._changing(name, getattr(os, name)))
        os.open = self._opening(
            os.open, lambda _path, flags=0, *_rest, **_named: bool(flags & WRITING)
        )
        io.open = builtins.open = self._opening(io.open, _writes, self._written)  # type: ignore[assignment]

    @property
    def numbered(self) -> int:
        """How many changes of files were numbered that an audit sees as well."""
        return sum(
            what.startswith("before ") and what.split()[1] in (*CHANGES, "open")
            for what in self.made
        )

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in AUDITED or os.getpid() != self._process or isinstance(arguments[0], int):
            return
        if event == "open" and not (arguments[2] & WRITING):
            return
        folder = arguments[1] if event in ("os.remove", "os.rmdir") and arguments[1] != -1 else None
        self.audited += self._place(arguments[0], folder) is not None

    def half(self) -> bool:
        """Whether the moment to come is the fatal one: then half of a write is to be on disk."""
        return os.getpid() == self._process and self._is_fatal(len(self.made))

    def _is_fatal(self, number: int) -> bool:
        return self.fatal is not None and number == self.fatal

    def _changing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Any, *arguments: Any, **named: Any) -> Any:
            place = self._place(path, named.get("dir_fd"))
            made = call if place is None else self.around(f"{name} {place}", call)
            return made(path, *arguments, **named)

        return changed

    def _opening(
        self,
        call: Callable[..., Any],
        writes: Callable[..., bool],
        wrap: Callable[[Any, str], Any] | None = None,
    ) -> Callable[..., Any]:
        def opened(path: Any, *arguments: Any, **named: Any) -> Any:
            place = (
                self._place(path, named.get("dir_fd"))
                if writes(path, *arguments, **named)
                else None
            )
            if place is None or os.getpid() != self._process:
                return call(path, *arguments, **named)
            made = call if isinstance(path, int) else self.around(f"open {place}", call)
            file = made(path, *arguments, **named)
            return wrap(file, place) if wrap else file

        return opened

    def _written(self, file: Any, place: str) -> Any:
        return _Written(file, place, self)

    def _place(self, path: Any, folder: int | None) -> str | None:
        """A path below the sweep, as people would name it; None for any other."""
        if isinstance(path, int):
            text = _opened(path)
        else:
            text = os.fsdecode(path)
            text = str(Path(_opened(folder) if folder is not None else Path.cwd(), text))
        return (
            text.removeprefix(self.below).lstrip("/") or "."
            if text.startswith(self.below)
            else None
        )


class _Written:
    """A file whose writes reach the disk at once, and count."""

    def __init__(self, file: Any, place: str, calls: Calls) -> None:
        self._file, self._place, self._calls = file, place, calls

    def write(self, data: Any) -> int:
        self._calls.at(f"before write {self._place}")
        if self._calls.half():
            self._file.write(data[: len(data) // 2])
            self._file.flush()
        self._calls.at(f"half-way write {self._place}")
        written = int(self._file.write(data))
        self._file.flush()
        self._calls.at(f"after write {self._place}")
        return written

    def truncate(self, *arguments: int) -> int:
        return int(self._calls.around(f"shorten {self._place}", self._file.truncate)(*arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Written":
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)


def _opened(handle: int) -> str:
    """The path behind a file descriptor."""
    return str(Path(f"/proc/self/fd/{handle}").readlink())


def _writes(_path: Any, mode: str = "r", *_rest: Any, **_named: Any) -> bool:
    return any(letter in mode for letter in "wax+")
