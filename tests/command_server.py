"""The tests' commands as forks of one process that has imported them: a command costs its work, not
seconds of imports.

Each xdist worker has a server of its own, started when first needed. A fork has its own arguments,
environment, folder and streams, and nothing of the test's process. A sweep's warm server is a fork,
too; with torch and TRL it is one of a second server, which imports them when it is first needed: a
fork with torch takes five times as long as one without. Programs named ``python``
and ``grposweep`` in ``shims()`` hand what a shell starts to the server. What has to be a new
interpreter is started as one (the fixture ``start_interpreter``);
``GRPOSWEEP_TEST_SPAWN=1`` runs whole commands so.
"""

import atexit
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

SOURCE = Path(__file__).resolve().parents[1] / "src"
# the variable with the server's address
ADDRESS = "GRPOSWEEP_TEST_SERVER"
# follows it: the server that has imported torch and TRL
TRAINS = "-trains"
SPAWN = "GRPOSWEEP_TEST_SPAWN"
# bytes of a request
MOST = 1 << 20
# input, output and error stream
Files = Sequence[int]


def request(
    address: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    files: Files,
    folder: Path,
) -> socket.socket:
    """Ask for ``python <arguments>``; the connection first says its pid and then its exit code, a
    line each.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect("\0" + address)
    asked = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
    socket.send_fds(connection, [json.dumps(asked).encode() + b"\n"], list(files))
    return connection


def run_forked(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    files: Sequence[Path],
    timeout: float,
) -> int:
    """Run ``python <arguments>`` with these files as input, output and error stream; its exit code.

    Raises subprocess.TimeoutExpired after ``timeout`` seconds, when the command has been killed.
    """
    import subprocess

    modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_TRUNC] * 2)
    with ExitStack() as stack:
        numbers = [os.open(path, mode) for path, mode in zip(files, modes, strict=True)]
        for number in numbers:
            stack.callback(os.close, number)
        if SPAWN in os.environ:
            streams = dict(zip(("stdin", "stdout", "stderr"), numbers, strict=True))
            command = [sys.executable, *arguments]
            return subprocess.run(
                command, cwd=folder, env=environment, timeout=timeout, check=False, **streams
            ).returncode
        connection = stack.enter_context(
            request(_start_server(), arguments, environment, numbers, folder)
        )
        answer = stack.enter_context(connection.makefile())
        pid = int(answer.readline())
        connection.settimeout(timeout)
        try:
            return int(answer.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(arguments), timeout) from None


def start_forked(arguments: Sequence[str], environment: Mapping[str, str]) -> Callable[[], int]:
    """Start ``python <arguments>``, a training, here with this process's output; what waits for its
    exit code.
    """
    address = _start_server() + TRAINS
    with Path(os.devnull).open() as nothing:
        connection = request(address, arguments, environment, (nothing.fileno(), 1, 2), Path.cwd())

    def wait() -> int:
        with connection, connection.makefile() as answer:
            answer.readline()
            return int(answer.readline())

    return wait


def shims(folder: Path) -> str:
    """Programs for a shell, ``python`` and ``grposweep``; the folder that begins the PATH."""
    if SPAWN in os.environ:
        return str(Path(sys.executable).parent)
    _start_server()
    folder.mkdir(exist_ok=True)
    for name, first in (("python", ""), ("grposweep", " -m grposweep")):
        (folder / name).write_text(
            f'#!/bin/sh\nexec {sys.executable} -SEI {__file__}{first} "$@"\n'
        )
        (folder / name).chmod(0o755)
    return f"{folder}:{Path(sys.executable).parent}"


def _start_server() -> str:
    """Start this process's server, if it has none yet. Return its address. It ends with its standard
    input.
    """
    import subprocess

    from support import environment

    address = f"grposweep-test-{os.getpid()}"
    if os.environ.get(ADDRESS) == address:
        return address
    os.environ[ADDRESS] = address
    process = subprocess.Popen(
        [sys.executable, __file__, "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(PYTHONPATH=str(SOURCE)),
    )
    assert process.stdout is not None
    # it listens
    process.stdout.readline()
    atexit.register(process.wait)
    # first; a fork of a test may still hold the other end of its input
    atexit.register(process.kill)
    return address


def serve() -> None:
    """Fork for each connection until the standard input ends. The first training makes a second
    server, for trainings.
    """
    import select

    from grposweep.process import die_with

    _import_all()
    commands, trainings = _listen(""), _listen(TRAINS)
    listening = [commands, trainings]
    print("listening", flush=True)
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        ready, _, _ = select.select([0, *listening], [], [])
        if 0 in ready:
            return
        if ready[0] is trainings and commands in listening:
            server = os.getpid()
            listening = [commands]
            if os.fork() == 0:
                die_with(server)
                listening = [trainings]
                _import_trl()
            continue
        connection, _ = ready[0].accept()
        if os.fork() == 0:
            for one in (commands, trainings):
                one.close()
            _answer(connection)
        connection.close()


def _listen(suffix: str) -> socket.socket:
    """Listen at the server's address with this suffix."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("\0" + os.environ[ADDRESS] + suffix)
    listening.listen()
    return listening


def _reap(*_: object) -> None:
    """Wait for the forks that have ended, so that the server's CPU time has theirs in it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> NoReturn:
    """Fork the command, say its pid and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, _, _ = socket.recv_fds(connection, MOST, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(MOST)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(data), files)
    connection.sendall(f"{pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(f"{code}\n".encode())
    os._exit(0)


def _import_all() -> None:
    """What commands import sooner or later; Hydra's parsers are warm after one composition."""
    import importlib
    import pkgutil
    from itertools import product

    from hydra.types import RunMode

    import grporecipe
    import grposweep
    import hydra_plugins.grposweep.sweeper  # noqa: F401
    from grposweep.config.compose import open_session
    from grposweep.launchers.local import TRAINING

    for package in (grporecipe, grposweep):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            others = {"train", "inside", "ms_swift_plugin", "__main__"}
            if others.isdisjoint(module.name.split(".")):
                importlib.import_module(module.name)
    # Newer releases of Typer import the last one, and pydantic with it, when they read arguments:
    # half of a short command.
    _import_some([*TRAINING, "typer._adapters"])
    with open_session() as session:
        for trainer, mode in product(("trainer=fake", "trainer=command"), RunMode):
            session.loader.load_configuration("config", [trainer, "lr=1e-3"], mode)
    _share()


def _import_trl() -> None:
    """What trainings import."""
    from grposweep.launchers.local import TRL

    # as in the warm server: torch reads it when it is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _import_some(TRL)
    _share()


def _import_some(names: Sequence[str]) -> None:
    """Import those of these modules that are installed."""
    import importlib
    from importlib.util import find_spec

    for name in names:
        if find_spec(name) is not None:
            importlib.import_module(name)


def _share() -> None:
    """Let the forks' collector leave these pages shared."""
    import gc

    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _become(asked: dict[str, Any], files: Files) -> NoReturn:
    """Run the command in this fork, and end it as an interpreter ends."""
    import threading

    from grposweep import process

    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the rest of this process
        address = os.environ[ADDRESS]
        process.subprocess = _subprocess(lambda: address)  # type: ignore[attr-defined]
        # ignored by what was started in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["folder"])
        _run(asked["arguments"])
        code = 0
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the end of an interpreter does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(arguments: list[str]) -> None:
    import runpy

    if arguments[0] == "-P":
        # a warm server
        os.setsid()
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()  # noqa: PTH109 - as the interpreter does, links unresolved
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _exit_code(code: object) -> int:
    """As the interpreter takes it: nothing is 0, a number itself, a text a message and 1."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


class _Fork:
    """A fork of the command server, as its user sees a ``Popen``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int(self._line())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises subprocess.TimeoutExpired when it still runs after ``timeout``
        seconds.
        """
        import subprocess

        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a fork of the command server", timeout or 0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        import select

        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = int(self._line())
            self._connection.close()
        return self.returncode

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            # no more than this line, so that ``select`` sees the next one
            line += self._connection.recv(1)
        return line


class _Served(_Fork):
    """A warm server that is a fork of the command server."""

    def __init__(self, connection: socket.socket, its_input: int, its_output: int) -> None:
        super().__init__(connection)
        self.stdin, self.stdout = os.fdopen(its_input, "wb"), os.fdopen(its_output, "rb")


class Started(_Fork):
    """A command that a test interrupts or kills; its output goes to a file."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path):
        from tempfile import TemporaryFile

        self._output = TemporaryFile("r+")  # noqa: SIM115 - read when it has ended
        address = _start_server()
        with Path(os.devnull).open() as nothing:
            files = (nothing.fileno(), *[self._output.fileno()] * 2)
            super().__init__(request(address, arguments, environment, files, folder))

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """All that it printed, when it has ended."""
        self.wait(timeout)
        self._output.seek(0)
        return self._output.read(), None


def _subprocess(address: Callable[[], str]) -> Any:
    """The module ``subprocess`` for ``grposweep.process``: a warm server is a fork of the command
    server at this address, or of the one for trainings.
    """
    import subprocess
    from types import SimpleNamespace

    from grposweep.launchers.local import TRAINING, TRL

    known = {*TRAINING, *TRL}

    def popen(command: list[str], **options: Any) -> Any:
        is_served = (
            command[1:4] == ["-P", "-m", "grposweep.train.warm_server"]
            and known.issuperset(command[4:])
            and SPAWN not in os.environ
            and options["env"]["PYTHONPATH"].split(":")[0] == str(SOURCE)
        )
        if not is_served:
            return subprocess.Popen(command, **options)
        (its_input, ours), (theirs, its_output) = os.pipe(), os.pipe()
        files = (its_input, its_output, 2)
        suffix = "" if set(TRAINING).issuperset(command[4:]) else TRAINS
        connection = request(
            address() + suffix, [command[1], *command[3:]], options["env"], files, Path.cwd()
        )
        os.close(its_input)
        os.close(its_output)
        return _Served(connection, ours, theirs)

    return SimpleNamespace(**{**vars(subprocess), "Popen": popen})


def share_warm_server(monkeypatch: Any) -> None:
    """Let this test's ``ForkServer`` be a fork of the command server: a quarter of a second of
    imports less a sweep.
    """
    from grposweep import process

    monkeypatch.setattr(process, "subprocess", _subprocess(_start_server))


def hand_over(arguments: list[str]) -> NoReturn:
    """Be the shim of a command: the server runs what is grposweep's, a new interpreter everything
    else.
    """
    ours = arguments[:2] == ["-m", "grposweep"] or (
        arguments and arguments[0].endswith("src/run.py")
    )
    if not ours:
        os.execv(sys.executable, [sys.executable, *arguments])
    with (
        request(os.environ[ADDRESS], arguments, os.environ, (0, 1, 2), Path.cwd()) as connection,
        connection.makefile() as answer,
    ):
        answer.readline()
        os._exit(int(answer.readline()) & 0xFF)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        hand_over(sys.argv[1:])
