"""Allow one controller per sweep: a lease with its holder's process and a counter that the holder
keeps moving.

On the holder's machine its process is looked for. On other machines the counter is watched, because
their clocks differ.
"""

import contextlib
import math
import os
import socket
import sys
import threading
import time
import uuid
from pathlib import Path

from grporecipe.errors import LeaseLostError, UserError
from grporecipe.files import Json, read_json, write_json
from grporecipe.terminal import say
from grposweep.process import birth, exists, is_hidden, pid_namespace

HEARTBEAT_SECONDS = 1.0
# After so long without a move, a holder on another machine counts as dead. NFS shows a file's
# changes within acdirmax (nfs(5): 60 s), and a busy server holds up a write for seconds. Taking
# over a live controller trains its trials twice.
PATIENCE_SECONDS = 60.0
# of watching, after which the user is told why; a live holder moves within HEARTBEAT_SECONDS
NOTICE_SECONDS = 2.0


class Lease:
    """A context manager that holds the lease and keeps its counter moving from a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owner = uuid.uuid4().hex
        self._counter = 0
        self._stop = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._refresh, daemon=True, name="lease")

    def __enter__(self) -> "Lease":
        """Take the lease if it is free or its holder is dead.

        Raises UserError if a live controller holds it.
        """
        holder = read_json(self._path)
        if holder is not None and is_held(self._path):
            where = f"process {holder.get('pid')} on {holder.get('host')}"
            raise UserError(
                f"{self._path.parent} is being swept by another controller ({where}), and two "
                "would overwrite each other. Watch it there, stop it first (Ctrl-C, or kill -9 if "
                "it hangs: nothing is lost), or give this sweep another name=..."
            )
        self._write()
        # if two take it at once, the later write wins; the other one notices here
        time.sleep(0.05)
        self.check()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        # read-only by now: the next controller sees that this process is gone
        with contextlib.suppress(OSError):
            if not self._lost and self._holder() == self._owner:
                self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise LeaseLostError if another controller holds the lease; called before every
        change.
        """
        self._lost = self._lost or self._holder() != self._owner
        if not self._lost:
            return
        sweep = self._path.parent
        if not sweep.is_dir():
            raise LeaseLostError(
                f"{sweep} is gone: it was renamed or removed while its sweep ran. Put it back, "
                "and run the same command again."
            )
        if not self._path.exists():
            raise LeaseLostError(
                f"{self._path} was removed while its sweep ran. Run the same command again to "
                "continue."
            )
        raise LeaseLostError(
            f"{sweep} was taken over by another controller; this one leaves it alone."
        )

    def _holder(self) -> str | None:
        content = read_json(self._path)
        return None if content is None else str(content.get("owner"))

    def _refresh(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            try:
                if self._holder() != self._owner:
                    self._lost = True
                    return
                self._counter += 1
                self._write()
            except OSError:
                # writes that matter report a full disk
                continue

    def _write(self) -> None:
        content = {
            "owner": self._owner,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "birth": birth(os.getpid()),
            "namespace": pid_namespace(),
            "counter": self._counter,
        }
        write_json(self._path, content)


def _process_lives(holder: Json) -> bool | None:
    """Return whether a holder's process lives; None if this process cannot see that.

    Containers may share a host name, and /proc may hide other users' processes (proc(5), hidepid).
    """
    pid = holder.get("pid")
    born = holder.get("birth")
    if (
        holder.get("host") != socket.gethostname()
        or holder.get("namespace", pid_namespace()) != pid_namespace()
    ):
        return None
    if not exists(pid):
        return False
    return None if born is None or is_hidden(holder["pid"]) else birth(holder["pid"]) == born


def is_held(path: Path) -> bool:
    """Return whether a lease's holder is alive: on this machine by its process, otherwise by
    watching its counter.
    """
    holder = read_json(path)
    if holder is None:
        return False
    lives = _process_lives(holder)
    # a suspended or stalled holder moves no counter, and lives
    if lives is not None:
        return lives
    until = time.monotonic() + PATIENCE_SECONDS
    notice_at = time.monotonic() + NOTICE_SECONDS
    while time.monotonic() < until:
        time.sleep(0.2)
        if time.monotonic() > notice_at:
            notice_at = math.inf
            say(
                f"process {holder.get('pid')} on {holder.get('host')} held this sweep last; "
                f"watching {path} for a sign of life, for up to {PATIENCE_SECONDS:.0f} s",
                sys.stderr,
            )
        now = read_json(path)
        if now is None:
            # it was released in the meantime
            return False
        if now.get("counter") != holder.get("counter") or now.get("owner") != holder.get("owner"):
            return True
    return False
