"""Start processes that never outlive their controller, and find groups of processes by a mark.

`ForkServer` forks from a server that has imported what training needs, `SpawnedProcesses` starts
new interpreters. Both give a process the same arguments, environment, log file and its own session
(a Ctrl-C in the terminal reaches the controller only), and end it when its parent dies.

External programs start processes in new sessions, and Ray's processes leave their parents. So
neither process groups nor parents reach all of them; a mark in their environment does. Run as a
script, this module is their guard. It kills them when the process that holds its standard input
ends, or (``--of PID``) when a process ends.
"""

import contextlib
import ctypes
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

# the folder on sys.path that holds the packages
SOURCE = Path(__file__).resolve().parents[2]
OWN_PACKAGES = ("grporecipe", "grposweep")
# of a checkout, with conf/, sweeps/ and src/
PROJECT = SOURCE.parent
# a wheel carries a copy
CONF = PROJECT / "conf" if (PROJECT / "conf").is_dir() else Path(__file__).parents[1] / "conf"
CONFIG_DIR, CONFIG_NAME, CONFIG_PATH = (
    ("--config-dir", "-cd"),
    ("--config-name", "-cn"),
    ("--config-path", "-cp"),
)
# of Hydra, each followed by its value
CONFIG_FLAGS = (*CONFIG_DIR, *CONFIG_NAME, *CONFIG_PATH)
logger = logging.getLogger(__name__)
# from linux/prctl.h
_PR_SET_PDEATHSIG = 1
# A shutdown, systemd and the end of an allocation send them to all processes at once.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Slurm sends them to all processes of a step.
STEP_SIGNALS = (*STOP_SIGNALS, signal.SIGUSR1, signal.SIGUSR2)
KERNEL_COUNTERS = Path("/proc/vmstat")


def run_command() -> list[str]:
    """Return the command that runs an experiment or a sweep, without its overrides."""
    script = PROJECT / "src" / "run.py"
    return [str(script)] if script.is_file() else ["-m", "grposweep", "run"]


def die_with(parent: int) -> None:
    """Have Linux kill this process when ``parent`` dies. On other systems only the end of its input
    ends it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # the parent died before the call above
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class SpawnedProcesses:
    """Starts and watches ``python -m grposweep.train <arguments>``, a new interpreter for each
    process: 4-13 s of imports, and nothing shared.
    """

    def __init__(self, code: Path = SOURCE) -> None:
        """``code`` is the folder whose grposweep the processes run."""
        self._code = code
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, arguments: list[str], environment: Mapping[str, str], log: Path | None) -> int:
        """Start one process and return its pid. Its output goes to ``log`` (None: this
        terminal).
        """
        output = None if log is None else _open_log(log)
        # A recorded copy of older code would never unblock them.
        numbers = STOP_SIGNALS if self._code == SOURCE else ()
        with signals_blocked(*numbers):
            process = subprocess.Popen(
                [sys.executable, *python_flags(self._code), "-m", "grposweep.train", *arguments],
                env={**inherited(self._code), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )
        if output is not None:
            output.close()
        self._running[process.pid] = process
        return process.pid

    def poll(self, pid: int, timeout: float = 0.0) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs; wait up to
        ``timeout`` seconds.
        """
        process = self._running[pid]
        try:
            return process.wait(timeout) if timeout > 0 else process.poll()
        except subprocess.TimeoutExpired:
            return None

    def lost(self, pid: int) -> bool:  # noqa: ARG002 - they have no server
        """Return whether a process ended only because the server that it was forked from died."""
        return False

    def close(self) -> None:
        """Kill the processes that still run."""
        for process in self._running.values():
            if process.poll() is None:
                end_session(process.pid)
                process.wait()


class ForkServer(SpawnedProcesses):
    """A server that has imported torch and trl once and forks for each process: 0.02 s instead of
    seconds.

    It exchanges JSON lines over standard input and output. When its input ends, it and its children
    end. What its imports write goes to the log of the first process that it starts. If it was
    killed, or cannot fork because an import has started CUDA, this class starts a new interpreter
    for each further process and reports that once. The standard library's forkserver would import
    run.py into every child and cannot report how each attempt ended.
    """

    def __init__(
        self, preload: list[str], code: Path = SOURCE, environment: Mapping[str, str] | None = None
    ) -> None:
        """``preload`` are modules that the server imports before the first fork. It starts at the
        first use.

        ``code`` is the folder whose grposweep it runs, ``environment`` has further variables for
        these imports.
        """
        super().__init__(code)
        self._preload = preload
        self._environment = environment or {}
        # process ids
        self._forked: set[int] = set()
        self._ended: dict[int, int] = {}
        self._buffer = b""
        # of what its imports write
        self._log: Path | None = None
        # whether further processes are no longer forked
        self._spawns = False

    @cached_property
    def _server(self) -> "subprocess.Popen[bytes]":
        errors = contextlib.nullcontext() if self._log is None else _open_log(self._log)
        with errors as stream, signals_blocked(*STOP_SIGNALS):
            return subprocess.Popen(
                [
                    sys.executable,
                    *python_flags(self._code),
                    "-m",
                    "grposweep.train.warm_server",
                    *self._preload,
                ],
                env={**inherited(self._code), **self._environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )

    def start(self, arguments: list[str], environment: Mapping[str, str], log: Path | None) -> int:
        if self._spawns:
            pid = super().start(arguments, environment, log)
            # the system reused the id
            self._forked.discard(pid)
            return pid
        self._log = self._log or log
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "log": None if log is None else str(log),
        }
        # opened above
        assert self._server.stdin is not None
        # the end of the server is noticed below
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.write((json.dumps(request) + "\n").encode())
            self._server.stdin.flush()
        problem = ""
        while not problem:
            has_ended = self._server.poll() is not None
            timeout = 0.0 if has_ended else 60.0
            for event in self._events(timeout):
                if "started" in event:
                    self._forked.add(int(event["started"]))
                    return int(event["started"])
                if "refused" in event:
                    raise OSError(event["refused"], os.strerror(event["refused"]))
                problem = event.get("cannot_fork", problem)
            if has_ended and not problem:
                problem = f"its server ended with code {self._server.returncode}"
        self._spawns = True
        print(
            f"cluster.warm: {problem}, so no trial can be forked from a warm process. Each starts "
            "its own and takes some seconds longer. Set cluster.warm=false to do so without "
            "this message.",
            file=sys.stderr,
        )
        return self.start(arguments, environment, log)

    def poll(self, pid: int, timeout: float = 0.0) -> int | None:
        if self._spawns and pid not in self._forked:
            return super().poll(pid, timeout)
        if pid not in self._ended:
            self._events(timeout)
        if pid not in self._ended and self._server.poll() is not None:
            # its children died with it
            return -signal.SIGKILL
        return self._ended.get(pid)

    def lost(self, pid: int) -> bool:
        is_forked = not self._spawns or pid in self._forked
        return is_forked and pid not in self._ended and self._server.poll() is not None

    def close(self) -> None:
        super().close()
        if "_server" not in self.__dict__:
            # never needed
            return
        # both were opened above
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        # the server was killed and still holds the last request
        with contextlib.suppress(BrokenPipeError):
            self._server.stdin.close()
        try:
            self._server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            end_session(self._server.pid)
            self._server.wait()
        self._server.stdout.close()

    def _events(self, timeout: float) -> list[dict[str, Any]]:
        """Return the server's events within ``timeout`` seconds. Ends are kept until the system
        reuses the process id.
        """
        # opened above
        assert self._server.stdout is not None
        readable, _, _ = select.select([self._server.stdout], [], [], timeout)
        if readable:
            self._buffer += os.read(self._server.stdout.fileno(), 65536)
        *lines, self._buffer = self._buffer.split(b"\n")
        events = list(chain.from_iterable(map(self._read, lines)))
        for event in events:
            if "started" in event:
                self._ended.pop(event["started"], None)
            if "ended" in event:
                self._ended[event["ended"]] = event["code"]
        return events

    def _read(self, line: bytes) -> list[dict[str, Any]]:
        """Return the event in a line. Anything else was written by a library before the server took
        its stream, and is logged.
        """
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(event := json.loads(line), dict):
                return [event]
        if line.strip():
            logger.info(
                "the warm server (process %d) wrote: %s",
                self._server.pid,
                line.decode(errors="replace"),
            )
        return []


def _open_log(path: Path) -> BinaryIO:
    """Open a log to append to it. A link, which may lead to a file of the user, raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    return os.fdopen(handle, "ab")


def python_flags(code: Path = SOURCE) -> tuple[str, ...]:
    """Return the flag that keeps the working directory off the import path, where an h2.py would
    stand in for the package.

    It is a flag, because the user's own programs would inherit PYTHONSAFEPATH. A recorded copy of
    older code, which does not add the user's folders to the path itself, gets none.
    """
    inputs = code / "grposweep" / "storage" / "inputs.py"
    if code == SOURCE or (inputs.is_file() and b"def search_path(" in inputs.read_bytes()):
        return ("-P",)
    return ()


def inherited(code: Path = SOURCE) -> dict[str, str]:
    """Return this process's environment with the grposweep in ``code`` importable, and no place in
    a surrounding job.
    """
    # this module also runs as a script without the package
    from grposweep.process.variables import is_of_a_job

    # An empty part, as in PYTHONPATH=$PYTHONPATH:more, would be the working directory.
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    kept = {name: value for name, value in os.environ.items() if not is_of_a_job(name)}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join((str(code), *given)),
        "TOKENIZERS_PARALLELISM": "false",
    }


def kills_for_memory() -> int:
    """Return how many processes the kernel has killed since its start because memory ran out; 0 if
    it does not say.
    """
    try:
        counters = dict(
            line.split() for line in KERNEL_COUNTERS.read_text(encoding="utf-8").splitlines()
        )
        return int(counters.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0


def exists(pid: object) -> bool:
    """Return whether a process with this id exists on this machine, for any user; False if it is
    not an id.
    """
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def birth(pid: object) -> int | None:
    """Return when a process of this machine started, in clock ticks since boot (proc(5)); None if
    it is dead or unknown.

    A pid is given to other processes later; pid and birth together are not.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        # no such process, or a system without /proc
        return None


def is_hidden(pid: object) -> bool:
    """Return whether nothing can be read about a process, which may be alive."""
    try:
        Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    return False


def pid_namespace() -> str | None:
    """Return the name of the space that this process's ids belong to (a container has its own);
    None without /proc.

    The first one of every machine has the same name, so the machine's boot is part of it: cloned
    machines share a host name.
    """
    try:
        return (
            f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} "
            f"{Path('/proc/self/ns/pid').readlink()}"
        )
    except OSError:
        return None


def end_session(pid: int) -> None:
    """Kill a process and the rest of its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# the environment variable; each attempt has its own value
MARK = "GRPOSWEEP_PROGRAM"
# begins the name of a folder whose name ends in a mark
MARKED_FOLDER = "grposweep-ask-"


def marked(mark: str) -> list[int]:
    """Return this user's running processes whose environment holds the mark, without zombies.

    A program may choose the variables of those that it starts, so a folder on its PATH with the
    mark in its name counts too.
    """
    wanted = (f"{MARK}={mark}\0".encode(), f"{MARKED_FOLDER}{mark}".encode())
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            variables = (entry / "environ").read_bytes() + b"\0"
            if any(text in variables for text in wanted):
                pids.append(int(entry.name))
        except OSError:
            # it has ended, or belongs to another user
            continue
    return pids


def kill_group(mark: str, seconds: float = 10.0) -> None:
    """Kill all processes with the mark until none is left, because one may have been starting
    another.
    """
    until = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < until:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def start_guard(mark: str, *folders: Path) -> "subprocess.Popen[bytes]":
    """Start a process that kills all marked ones and removes folders when this process ends or
    closes its input.
    """
    return _run_guard([mark, *map(str, folders)], subprocess.PIPE)


def end_children_with(pid: int) -> dict[str, str]:
    """Start a process that kills the marked ones when process ``pid`` ends. Return the variables
    that mark them.

    The kernel signals only one process at its parent's death, not its children, such as the engines
    of a vLLM server.
    """
    if sys.platform != "linux":
        return {}
    mark = os.urandom(16).hex()
    _run_guard(["--of", str(pid), mark], subprocess.DEVNULL)
    # without it setproctitle, which vLLM uses, overwrites the mark
    return {MARK: mark, "SPT_NOENV": "1"}


def _run_guard(arguments: list[str], stdin: int) -> "subprocess.Popen[bytes]":
    """Run this module as a script."""
    command = [sys.executable, "-I", __file__, *arguments]
    with signals_blocked(*STEP_SIGNALS):
        return subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.DEVNULL, start_new_session=True
        )


def _wait_for_end(pid: int) -> None:
    """Return when a process has ended or is a zombie."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        # an old kernel or a sandbox forbids it; then a zombie counts as running
        while exists(pid):
            time.sleep(1.0)
        return
    select.select([ended], [], [])


@contextlib.contextmanager
def signals_blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Block signals in the processes that are started in this block. Here they are delivered after
    it.

    Slurm sends a step's signals to all of its processes, and most of them end a process that does
    not handle them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == "--of":
        _wait_for_end(int(arguments[1]))
        arguments = arguments[2:]
    else:
        # until the other end is closed
        sys.stdin.buffer.read()
    kill_group(arguments[0])
    for folder in arguments[1:]:
        shutil.rmtree(folder, ignore_errors=True)
