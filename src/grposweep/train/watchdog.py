"""Every rank's own watchdog: one that shows no sign of life for too long says where it stands, and ends.

The interpreter's faulthandler has a thread for this that needs no lock of the interpreter's, so a rank that hangs in a
collective or in CUDA is ended too. A process that is stopped as a whole cannot notice; its controller does.
"""

import faulthandler
import math
import time

STDERR = 2  # the descriptor: sys.stderr may be something else by now
SPARED = 0.05  # of the time allowed: as long after one feeding the next are not passed on, each of which starts a thread anew

_fed = -math.inf  # seconds of the monotonic clock; as the thread itself, one a process


def feed(minutes: float | None) -> None:
    """This rank lives; it ends with code 1, and every thread's stack in its log, unless fed again in time.

    It may end a twentieth of that time early.
    """
    global _fed
    if minutes is None or time.monotonic() - _fed < SPARED * minutes * 60:
        return
    faulthandler.dump_traceback_later(minutes * 60, exit=True, file=STDERR)
    _fed = time.monotonic()


def release() -> None:
    """Nothing is watched any more."""
    global _fed
    faulthandler.cancel_dump_traceback_later()
    _fed = -math.inf
