"""Write for people: short names and counts, control characters escaped, and streams that may be
closed, fail or be ASCII.
"""

import codecs
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO, cast

# half of what lint takes to start
if TYPE_CHECKING:
    from rich.console import Console

# a sweep's log has it too
logger = logging.getLogger("grposweep.terminal")
# Unicode's own control characters are direction overrides, line and paragraph separators, and
# surrogates.
_STEERING = {
    code: repr(chr(code))[1:-1]
    for code in (
        *range(9),
        *range(11, 32),
        *range(127, 160),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    )
}


# how a stream that is not of Unicode writes a character that it lacks
NEAREST = "grposweep-nearest"
_NEAREST = {"±": "+-", "─": "-", "━": "-", "│": "|", "└": "`", "█": "#", "…": "...", "\u2800": " "}
# the dots of a curve
_NEAREST |= {chr(code): "*" for code in range(0x2801, 0x2900)}


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for the characters that a stream lacks."""
    assert isinstance(error, UnicodeEncodeError)
    lacked = error.object[error.start : error.end]
    return "".join(
        _NEAREST.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacked
    ), error.end


def open_streams() -> None:
    """Give this process three standard streams that take any text.

    A stream that was closed (``>&-``) leads to nothing: the next file to be opened would otherwise
    take its place.
    """
    codecs.register_error(NEAREST, _nearest)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # takes the lowest free number, which is this one
            os.open(os.devnull, os.O_RDWR)
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - a descriptor
        elif (
            mode == "w"
            and isinstance(stream, TextIOWrapper)
            and not stream.encoding.lower().startswith("utf")
        ):
            stream.reconfigure(errors=NEAREST)


def printable(text: str) -> str:
    """Return the text with control characters escaped. Line ends and tabs stay."""
    if text.isprintable():
        return text
    return text.translate(_STEERING)


def one_line(text: str) -> str:
    """Return the text as one line: line ends and tabs are escaped as well."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def comment(*lines: str) -> str:
    """Return lines as comments of a file. A line break of a value would end its comment, so it is
    escaped.
    """
    return "".join(f"# {one_line(line)}\n" for line in lines)


def say(text: str, out: TextIO | None = None) -> None:
    """Print a line that may hold text from files, to ``out`` or standard output."""
    print(printable(text), file=out or sys.stdout, flush=True)


def write_data(text: str) -> None:
    """Write a file's content to standard output, unchanged unless that is a terminal."""
    if sys.stdout.isatty():
        text = printable(text)
    sys.stdout.write(text)


class Screen:
    """A stream that is given up when it fails: the terminal or reader closed it, or the disk is
    full.

    Output is not part of the work, so the work continues without it.
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
        logger.warning(
            "%s cannot be written (%s): nothing more is shown there", name, error.strerror
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def redraws(console: "Console") -> bool:
    """Return whether lines can be replaced: on a terminal with a cursor, not in a file that
    FORCE_COLOR colours.
    """
    return console.is_terminal and not console.is_dumb_terminal and console.file.isatty()


def discard(stream: TextIO) -> None:
    """Send further output of a stream to nothing: Python flushes it once more at exit, and other
    streams may share it.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)


def keep_screens() -> None:
    """Let this process continue if a standard stream fails or was closed before."""
    wrap_streams(Screen)


def wrap_streams(wrapper: type) -> None:
    """Put both standard streams, which are opened first, into wrappers of this type, once."""
    open_streams()
    if not isinstance(sys.stdout, wrapper):
        sys.stdout = cast(TextIO, wrapper(sys.stdout))
        sys.stderr = cast(TextIO, wrapper(sys.stderr))


def short(point: Mapping[str, Any]) -> str:
    """Return a short form of a point: the last word of each parameter, with its label. Two
    parameters of one last word have their whole names.
    """
    names = short_names(point)
    words = (f"{names[name]}={label_text(label)}" for name, label in point.items())
    return " ".join(words) or "as configured"


def short_names(parameters: Iterable[str]) -> dict[str, str]:
    """Map each parameter to its last word, or to its whole name if two parameters share that
    word.
    """
    last = {name: name.rsplit(".", 1)[-1] for name in parameters}
    counts = Counter(last.values())
    for name, word in last.items():
        if counts[word] > 1:
            last[name] = name
    return last


def label_text(label: Any) -> str:
    """Return a label as tables show it."""
    if isinstance(label, float):
        return f"{label:.3g}"
    return str(label)


def first_of(names: Sequence[object], most: int) -> str:
    """Return the first of these, and how many follow: a, b and 3 more."""
    shown = ", ".join(map(str, names[:most]))
    if len(names) > most:
        shown += f" and {len(names) - most:,} more"
    return shown


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 trial, 2 trials, 2 processes."""
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x")) else "s"
    return f"{number:,} {noun}{ending}"


class Progress:
    """A line on a terminal that says how far a long run is. It is on stderr, and cleared before
    anything else is written.
    """

    # seconds
    AFTER, EVERY = 2.0, 0.5

    def __init__(self, err: TextIO) -> None:
        self._err, self._files, self._is_shown = err, 0, False
        self._next = inf
        if err.isatty():
            self._next = monotonic() + self.AFTER

    def step(self, path: object) -> None:
        """Count a file."""
        self._files += 1
        if monotonic() >= self._next:
            self._next = monotonic() + self.EVERY
            self._is_shown = True
            self._err.write(
                f"\r\x1b[K{self._files} files: "
                f"{one_line(str(path)).encode('ascii', 'replace').decode()[:60]}"
            )
            self._err.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._is_shown:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._is_shown = False
