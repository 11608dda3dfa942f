"""A PostgreSQL of a test's own: Debian's programs, a folder of its own, on loopback, gone with the
test.
"""

import getpass
import os
import shutil
import socket
import subprocess
from pathlib import Path

# PostgreSQL refuses to be root
NOBODY = "nobody" if os.geteuid() == 0 else None


def find(program: str) -> str | None:
    """Where Debian puts it, by version, or on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    return str(found[-1]) if found else shutil.which(program)


class Postgres:
    """One server; ``start`` after ``stop`` has the same data and the same address."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder / "data", free_port()
        self.folder.mkdir()
        if NOBODY:
            shutil.chown(self.folder, NOBODY)
            # pytest's own folders are for their owner alone
            for parent in self.folder.parents:
                if parent.stat().st_uid == os.geteuid() and str(parent).startswith("/tmp/"):
                    parent.chmod(parent.stat().st_mode | 0o011)
        self._run(
            "initdb", "--pgdata", str(self.folder), "--auth=trust", "--username=team", "--no-sync"
        )

    @property
    def url(self) -> str:
        """As SQLAlchemy takes it."""
        return f"postgresql://team@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Until it answers."""
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        )
        log = self.folder / "log"
        self._run(
            "pg_ctl",
            "--pgdata",
            str(self.folder),
            "--wait",
            "--log",
            str(log),
            "--options",
            options,
            "start",
        )

    def stop(self) -> None:
        """At once, as a machine that goes away."""
        self._run("pg_ctl", "--pgdata", str(self.folder), "--wait", "--mode", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        path = find(program)
        assert path is not None, program
        subprocess.run(
            [path, *arguments],
            user=NOBODY,
            cwd="/",
            check=True,
            timeout=300,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "HOME": "/", "USER": NOBODY or getpass.getuser()},
        )


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
