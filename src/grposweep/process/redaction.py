"""Redact secrets in text that is written down, and refuse configurations that contain secrets.

A configuration is copied to config.yaml, job scripts, W&B and provenance, and is shared. Secrets
belong in the environment, which jobs and trainers inherit and grposweep does not record.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from threading import Thread
from typing import IO, Any, TextIO

from grporecipe.errors import UserError
from grporecipe.files import Config
from grporecipe.redaction import SHOWN, is_secret, redact
from grporecipe.terminal import wrap_streams
from grposweep.process import STEP_SIGNALS, python_flags, signals_blocked

_BEGIN, _END = (re.compile(rf"-----{word} [A-Z ]*PRIVATE KEY-----") for word in ("BEGIN", "END"))
# in a line of a key; a logger may put its own words before
_OF_KEY = r"[\w+/=]{16,}"
# characters; a key's lines have 64, and names in a log are shorter
WHOLE_LINE = 40
_KEY_HEADER = r"Proc-Type: |DEK-Info: "
# its last line may be shorter
_LAST_OF_KEY = r"(?:[A-Za-z0-9+/=]{4})+"


class StreamRedactor:
    """Redact a text that comes in parts. A private key may be spread over many of them."""

    def __init__(self) -> None:
        self._in_key = False

    def __call__(self, text: str) -> str:
        """Return the next part with everything redacted that looks like a secret."""
        if self._in_key:
            text = "".join(map(self._redact_key, text.splitlines(keepends=True)))
        *_, begins = [-1, *(match.start() for match in _BEGIN.finditer(text))]
        self._in_key = self._in_key or (begins >= 0 and _END.search(text, begins) is None)
        return redact(text)

    def _redact_key(self, line: str) -> str:
        """Return a line inside a key without what belongs to the key."""
        if not self._in_key or not line.strip():
            return line
        if ends := _END.search(line):
            self._in_key = False
            return SHOWN + line[ends.end() :]
        if re.fullmatch(_LAST_OF_KEY, line.strip()):
            return line.replace(line.strip(), SHOWN)
        longest = max(map(len, re.findall(_OF_KEY, line)), default=0)
        if longest and longest >= min(WHOLE_LINE, len(line.strip()) / 2):
            return re.sub(_OF_KEY, SHOWN, line)
        # otherwise it was cut off
        self._in_key = re.match(_KEY_HEADER, line) is not None
        return line


def refuse_secrets(content: Config, where: str = "") -> None:
    """Raise UserError if a configuration holds a secret; ``where`` names the file that it is
    from.
    """
    for key, value in _leaves(content, ""):
        if is_secret(key, value) or redact(value) != value:
            raise UserError(
                f"{where}{key} holds what looks like a secret, and would be written into every "
                "trial's folder. Leave it out and set it in the environment of the shell that "
                "starts the sweep (jobs inherit it), or refer to a file: export HF_TOKEN=$(cat "
                "~/.hf_token)."
            )


def _leaves(content: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield dotted keys with the strings below them."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _leaves(value, key)
    elif isinstance(content, str):
        yield key, content


class _Guarded:
    """A text stream that redacts what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._redact = stream, StreamRedactor()

    def write(self, text: str) -> int:
        self._stream.write(self._redact(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """Redact secrets of the environment in everything that Python writes to standard output and
    standard error from now on.
    """
    wrap_streams(_Guarded)


# bytes; a longer line is split
CHUNK = 1 << 16
# seconds to wait for the output of an ended program: its children may keep it open
LAST_WORDS = 5.0


class RedactedProgram(subprocess.Popen[bytes]):
    """A program whose output and errors go to ``output`` line by line, with secrets redacted."""

    def __init__(self, command: list[str], output: int, **settings: Any) -> None:
        super().__init__(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **settings)
        # a pipe
        assert self.stdout is not None
        self._copier = Thread(
            target=_copy_redacted, args=(self.stdout, os.dup(output)), daemon=True
        )
        self._copier.start()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the program has ended and its output is copied."""
        code = super().wait(timeout)
        self._copier.join(LAST_WORDS)
        return code

    def poll(self) -> int | None:
        """Return the exit code once the output is copied; None before that."""
        return None if super().poll() is None else self.wait()


def redact_own_output() -> None:
    """Redact what this process writes from now on, and what it writes as another program (exec).

    Another process does it. It ignores the signals of a Slurm step: a program's last lines come
    after them.
    """
    with signals_blocked(*STEP_SIGNALS):
        command = [sys.executable, *python_flags(), "-m", "grposweep.process.redaction"]
        redactor = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    # a pipe
    assert redactor.stdin is not None
    for output in (1, 2):
        os.dup2(redactor.stdin.fileno(), output)


def _copy_redacted(source: IO[bytes], target: int) -> None:
    rest = b""
    redactor = StreamRedactor()
    while chunk := os.read(source.fileno(), CHUNK):
        rest += chunk
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
        if not end and len(rest) >= CHUNK:
            end = len(rest)
        whole = rest[:end]
        rest = rest[end:]
        _write_redacted(target, whole, redactor)
    _write_redacted(target, rest, redactor)
    os.close(target)


def _write_redacted(target: int, data: bytes, redactor: StreamRedactor) -> None:
    data = redactor(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    try:
        while data:
            data = data[os.write(target, data) :]
    except OSError:
        # the disk is full: the program continues without these lines
        return


if __name__ == "__main__":
    _copy_redacted(sys.stdin.buffer, 1)
