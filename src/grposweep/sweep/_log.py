"""The controller's log: every decision with its reason, in ``controller.log`` and, if asked for, on
the terminal.

Modules log to ``logging.getLogger(__name__)``. ``trial`` and ``attempt`` are passed as
``extra=about(trial, attempt)``.
"""

import logging
import logging.handlers
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from grporecipe.files import Json, set_aside
from grporecipe.redaction import redact
from grposweep.storage import paths

# then the file is rotated
FILE_BYTES = 2_000_000
# rotated files kept
BACKUPS = 3
_FORMAT = "%(asctime)s %(levelname)-7s trial=%(trial)s attempt=%(attempt)s %(message)s"
_UNKNOWN = {"trial": "-", "attempt": "-"}


def about(trial: int, attempt: int | None = None) -> Json:
    """Return the ``extra`` of a log call: which trial and attempt it is about."""
    return {"trial": trial, "attempt": "-" if attempt is None else attempt}


class _Formatter(logging.Formatter):
    """One line per record, in UTC, secrets redacted."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record)).replace("\n", "\\n")


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log file that never stops the sweep: a line that cannot be written (a full disk) is
    dropped.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""


class _Terminal(logging.Handler):
    """Prints log lines above the live display."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), style="dim", soft_wrap=True)


@contextmanager
def controller_log(sweep: Path, console: Console, verbose: bool) -> Iterator[None]:
    """Log to ``controller.log`` in the sweep's folder; ``verbose`` shows the lines on the terminal
    as well.
    """
    logger = logging.getLogger("grposweep")
    path = sweep / paths.CONTROLLER_LOG
    # opening a pipe would wait for a reader forever
    if os.path.lexists(path) and not path.is_file():
        set_aside(path)
    # delay: the file is opened by the first line, whose failure is then that line's.
    file = _LogFile(path, maxBytes=FILE_BYTES, backupCount=BACKUPS, encoding="utf-8", delay=True)
    handlers: list[logging.Handler] = [file]
    if verbose:
        handlers.append(_Terminal(console))
    level = logger.level
    propagate = logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for handler in handlers:
        handler.setFormatter(_Formatter(_FORMAT, defaults=_UNKNOWN))
        logger.addHandler(handler)
    try:
        yield
    except Exception as error:
        logger.error("the controller ends: %s: %s", type(error).__name__, error)
        raise
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            # the last lines do not fit on the disk
            with suppress(OSError):
                handler.close()
        logger.setLevel(level)
        logger.propagate = propagate
