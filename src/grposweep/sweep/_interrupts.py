"""Count requests to stop a sweep (Ctrl-C, SIGTERM), and answer them even while a call of the file
system does not return.
"""

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from grporecipe.terminal import say

# between two looks for requests that the kernel keeps for the main thread
LOOK_SECONDS = 1.0
# after which a request that the main thread has not taken is answered
ANSWER_SECONDS = 2.0
# by which this module's thread may hear of a request later than the main thread takes it
LATE_SECONDS = 0.5
REQUESTS = (signal.SIGINT, signal.SIGTERM)
logger = logging.getLogger(__name__)


@dataclass
class SignalCounter:
    """Counts requests to stop the controller."""

    count: int = 0
    # when the main thread took the last one, by time.monotonic()
    taken: float = 0.0

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.taken = time.monotonic()


@contextmanager
def counting_interrupts() -> Iterator[SignalCounter]:
    """Count Ctrl-C and SIGTERM instead of raising, so that no operation is interrupted half-way.

    A closed terminal (SIGHUP) is no request to stop.
    """
    interrupts = SignalCounter()
    before = {number: signal.signal(number, interrupts) for number in REQUESTS}
    hangup = "the terminal went away (SIGHUP): the sweep continues; kill -TERM %d stops it"
    before[signal.SIGHUP] = signal.signal(
        signal.SIGHUP, lambda *_: logger.warning(hangup, os.getpid())
    )
    inner, outer = socket.socketpair()
    outer.setblocking(False)
    wakeup = signal.set_wakeup_fd(outer.fileno(), warn_on_full_buffer=False)
    closed = threading.Event()
    thread = threading.Thread(
        target=_answer, args=(inner, interrupts, closed), daemon=True, name="interrupts"
    )
    # no thread can be started (`ulimit -u`): requests are counted without an answer
    with suppress(RuntimeError):
        thread.start()
    try:
        yield interrupts
    finally:
        signal.set_wakeup_fd(wakeup)
        closed.set()
        outer.close()
        if thread.ident is not None:
            thread.join()
        inner.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _answer(signals: socket.socket, interrupts: SignalCounter, closed: threading.Event) -> None:
    """Say why nothing happens if the main thread does not take a request: Python runs handlers
    between its calls only.
    """
    while not closed.is_set():
        if not select.select([signals], [], [], LOOK_SECONDS)[0]:
            # The kernel keeps a signal for the main thread even if that waits for a disk and takes
            # none. Linux looks again at what is pending when a mask changes; then this thread takes
            # it.
            signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)
            continue
        came = time.monotonic()
        requests = set(signals.recv(64)) & set(REQUESTS)
        if requests and not closed.wait(ANSWER_SECONDS) and interrupts.taken < came - LATE_SECONDS:
            say(
                f"process {os.getpid()} waits for a call that does not return (does the file "
                f"system answer?). It stops as soon as the call returns; kill -9 {os.getpid()} "
                "ends it now. Nothing is lost: the same command continues.",
                sys.stderr,
            )
