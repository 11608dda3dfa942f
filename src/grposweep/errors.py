"""How processes of grposweep end: exit codes, and the errors that decide them.

Bad input has one message: what is set, why it cannot work, and what to set instead.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a process of grposweep ends; a negative code is the signal that ended it."""

    FINISHED = 0
    """Success; for a sweep, at least one trial finished."""
    FAILED = 1
    """An attempt crashed; a sweep has no finished trial or stopped itself; a check found problems."""
    BAD_INPUT = 2
    """What the user set cannot work."""
    STOPPED = 3
    """An attempt stopped when asked; it resumes from its last checkpoint."""
    SERVER_ENDED = 4
    """A job's script reports that its vLLM server ended early."""
    DISK_FULL = 5
    """An attempt had no room to record why it ended."""
    INTERRUPTED = 130
    """Ctrl-C, or a controller that was told to stop."""
    BROKEN_PIPE = 141
    """The reader of the output closed it."""


class UserError(Exception):
    """The user's input cannot work; printed as it is, without a traceback, exit code 2."""


class BadSettings(UserError):
    """A project's settings that cannot be read: refused in a folder too, where no file would be judged as it asks."""


class NotARecipe(UserError):
    """A file that is no GRPO recipe of a framework that grposweep reads: refused where it is named, skipped in a folder."""


class LeaseLostError(Exception):
    """Another controller has taken this sweep over; this one stops without touching anything."""


class ProgramFailed(Exception):
    """An external program that ran a trial failed: its exit code (negative: the signal), and its own error line if any."""

    def __init__(self, code: int, last_lines: list[str], error: str = "") -> None:
        self.kind = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.last_lines = last_lines
        super().__init__(f"the program ended with {self.kind}" + (f": {error}" if error else ""))
