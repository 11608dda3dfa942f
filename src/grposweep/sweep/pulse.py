"""Whether an attempt still moves: its heartbeat is watched for change, by this machine's clock alone."""

import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Pulse:
    """One attempt's heartbeat as a controller sees it."""

    heartbeat: Path
    seen: tuple[int, int] | None = None
    since: float = field(default_factory=time.monotonic)
    """When it last moved, or when the attempt began."""

    def look(self, waits: bool) -> None:
        """Look once; an attempt that waits to run cannot move."""
        try:
            stat = self.heartbeat.stat()
            now: tuple[int, int] | None = (stat.st_mtime_ns, stat.st_ino)
        except OSError:
            now = None
        if now != self.seen or waits:
            self.seen, self.since = now, time.monotonic()

    @property
    def still_seconds(self) -> float:
        """For how long it has not moved."""
        return time.monotonic() - self.since
