"""Every process that a program has started, whoever its parent is by now: found by a mark in its environment, and ended.

Launchers put their ranks into sessions of their own, and Ray's processes leave their parents, so neither process groups
nor parents reach them all. Run as a script this module is a guard: it ends them when the process that holds its standard
input ends, in whatever way.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "GRPOSWEEP_PROGRAM"  # the variable; its value is an attempt's own


def marked(mark: str) -> list[int]:
    """The processes of this user, zombies apart, whose environment holds the mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # gone by now, or another user's
            continue
    return found


def end_marked(mark: str, seconds: float = 10.0) -> None:
    """Kill them until none is left: one may have been starting another."""
    until = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < until:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def start_guard(mark: str) -> "subprocess.Popen[bytes]":
    """A process that outlives this one just long enough to end whatever is marked; closing its input ends it."""
    command = [sys.executable, "-I", __file__, mark]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # until its other end is closed
    end_marked(sys.argv[1])
