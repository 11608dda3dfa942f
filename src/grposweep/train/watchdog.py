"""Every rank's own watchdog: one that shows no sign of life for too long says where it stands, and ends.

The interpreter's faulthandler has a thread for this that needs no lock of the interpreter's, so a rank that hangs in a
collective or in CUDA is ended too. A process that is stopped as a whole cannot notice; its controller does.
"""

import faulthandler

STDERR = 2  # the descriptor: sys.stderr may be something else by now


def feed(minutes: float | None) -> None:
    """This rank lives; it ends with code 1, and every thread's stack in its log, unless fed again in time."""
    if minutes is not None:
        faulthandler.dump_traceback_later(minutes * 60, exit=True, file=STDERR)


def release() -> None:
    """Nothing is watched any more."""
    faulthandler.cancel_dump_traceback_later()
