"""Exit codes: what commands, attempts and preparation promise to whoever started them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a process of grposweep ends; a negative code is the signal that ended it."""

    FINISHED = 0
    FAILED = 1
    """An attempt crashed; a sweep has no finished trial or stopped itself; a check found problems."""
    BAD_INPUT = 2
    """What the user set cannot work."""
    STOPPED = 3
    """An attempt stopped when asked; it goes on from its last checkpoint."""
    SERVER_ENDED = 4
    """A job's script reports that its vLLM server ended."""
    DISK_FULL = 5
    """An attempt had no room to record why it ended."""
    INTERRUPTED = 130
    """Ctrl-C, or a controller that was told to let go."""
    BROKEN_PIPE = 141
    """The reader of the output went away."""
