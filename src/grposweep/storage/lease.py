"""Allow one controller per sweep: a lease whose holder keeps moving a counter, because clocks of machines differ."""

import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType

from grposweep.errors import LeaseLostError, UserError
from grposweep.files import read_json, write_json
from grposweep.process import exists

BEAT_SECONDS = 1.0
PATIENCE_SECONDS = 6.0  # after so long without a move, a holder on another machine counts as dead


class Lease:
    """A context manager that holds the lease and keeps its counter moving from a thread."""

    def __init__(self, path: Path, elsewhere: str = "name=...") -> None:
        """``elsewhere`` is the setting that puts a sweep into another folder."""
        self._path, self._elsewhere = path, elsewhere
        self._owner = uuid.uuid4().hex
        self._counter = 0
        self._stop = threading.Event()
        self._lost = False
        self._thread = threading.Thread(target=self._beat, daemon=True, name="lease")

    def __enter__(self) -> "Lease":
        """Take the lease if it is free or its holder is dead.

        Raises UserError if a live controller holds it.
        """
        found = read_json(self._path)
        if found is not None and is_held(self._path):
            where = f"process {found.get('pid')} on {found.get('host')}"
            raise UserError(
                f"{self._path.parent} is being swept by another controller ({where}), and two would overwrite each "
                f"other. Watch it there, stop it with Ctrl-C first, or give this sweep another {self._elsewhere}"
            )
        self._write()
        time.sleep(0.05)  # if two take it at once, the later write wins; the other one notices here
        self.check()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self._lost and self._holder() == self._owner:
            self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise LeaseLostError if another controller holds the lease; called before every change."""
        self._lost = self._lost or self._holder() != self._owner
        if not self._lost:
            return
        sweep = self._path.parent
        if not sweep.is_dir():
            raise LeaseLostError(
                f"{sweep} is gone: it was renamed or removed while its sweep ran. Put it back, and run the same command again."
            )
        if not self._path.exists():
            raise LeaseLostError(
                f"{self._path} was removed while its sweep ran. Run the same command again to continue."
            )
        raise LeaseLostError(f"{sweep} was taken over by another controller; this one leaves it alone.")

    def _holder(self) -> str | None:
        found = read_json(self._path)
        return None if found is None else str(found.get("owner"))

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            if self._holder() != self._owner:
                self._lost = True
                return
            self._counter += 1
            try:
                self._write()
            except OSError:
                continue  # writes that matter report a full disk

    def _write(self) -> None:
        content = {
            "owner": self._owner, "host": socket.gethostname(), "pid": os.getpid(), "counter": self._counter,
        }  # fmt: skip
        write_json(self._path, content)


def is_held(path: Path) -> bool:
    """Return whether a lease's holder is alive: on this machine by its pid, otherwise by watching its counter for seconds."""
    found = read_json(path)
    if found is None:
        return False
    if found.get("host") == socket.gethostname() and not exists(found.get("pid")):
        return False
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        time.sleep(0.2)
        now = read_json(path)
        if now is None:
            return False  # it was released in the meantime
        if now.get("counter") != found.get("counter") or now.get("owner") != found.get("owner"):
            return True
    return False
