"""What is written to the terminal: text that cannot steer it, and streams whose other end may go away."""

import logging
import os
import sys
from typing import Any, TextIO, cast

logger = logging.getLogger(__name__)
_STEERING = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
# Unicode's own: direction overrides, line and paragraph separators, and half characters, which no stream takes.
_STEERING |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)}
_STEERING |= {code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)}


def printable(text: str) -> str:
    """Return a text whose control characters are shown as escapes instead of sent. Line ends and tabs stay."""
    return text if text.isprintable() else text.translate(_STEERING)


def say(text: str, out: TextIO | None = None) -> None:
    """Print a line that may hold text from files; ``out`` is standard output unless it is given."""
    print(printable(text), file=out or sys.stdout, flush=True)


def write_data(text: str) -> None:
    """Write a file's content to standard output: exact, unless that is a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


class Screen:
    """A stream that is given up when it fails: its terminal was closed, its reader ended, or its file's disk is full.

    What is shown is no part of the work, so the work continues without it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        discard(self._stream)
        name = self._stream.name.strip("<>")
        logger.warning("%s cannot be written (%s): nothing more is shown there", name, error.strerror)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def discard(stream: TextIO) -> None:
    """Send what is still written to a stream to nothing: Python flushes once more at its end, and others may share it."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def keep_screens() -> None:
    """From now on a standard stream that fails does not end this process."""
    if not isinstance(sys.stdout, Screen):
        sys.stdout, sys.stderr = cast(TextIO, Screen(sys.stdout)), cast(TextIO, Screen(sys.stderr))
