"""The commands of the tests as forks of one process that has imported them: a command costs its work, not 1 s of imports.

Each xdist worker has a server of its own, started when first needed. A fork has its own arguments, environment, folder and
output, and nothing of the test's process. ``GRPOSWEEP_TEST_SPAWN=1`` starts a new interpreter for each command instead.
"""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

SOURCE = Path(__file__).resolve().parents[1] / "src"
_lock = threading.Lock()


def run_forked(
    arguments: list[str], folder: Path, environment: dict[str, str], files: Sequence[Path], timeout: float
) -> int:
    """Run ``python <arguments>`` with these files as input, output and error stream; its exit code.

    Raises subprocess.TimeoutExpired after ``timeout`` seconds, when the command has been killed.
    """
    request = {
        "arguments": arguments, "folder": str(folder), "environment": environment, "files": [str(path) for path in files]
    }  # fmt: skip
    with _lock:
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        pid, late = int(server.stdout.readline()), threading.Event()

        def kill() -> None:
            late.set()
            os.kill(pid, signal.SIGKILL)

        timer = threading.Timer(timeout, kill)
        timer.start()
        code = int(server.stdout.readline())
        timer.cancel()
    if late.is_set():
        raise subprocess.TimeoutExpired(arguments, timeout)
    return code


@cache
def _server() -> "subprocess.Popen[str]":
    from support import environment

    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment(PYTHONPATH=str(SOURCE)),
    )  # fmt: skip
    atexit.register(process.communicate)
    return process


def serve() -> None:
    """Answer each request with the pid of its fork, then with its exit code, until the input ends."""
    _import_all()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _import_all() -> None:
    """What commands import sooner or later, but for training; Hydra's parsers are warm after one composition."""
    import gc
    import importlib
    import pkgutil

    import grposweep
    import hydra_plugins.grposweep.sweeper  # noqa: F401
    from grposweep.config.compose import open_session

    for module in pkgutil.walk_packages(grposweep.__path__, "grposweep."):
        if (
            not module.name.startswith("grposweep.train")
            and "plugin" not in module.name
            and "__main__" not in module.name
        ):
            importlib.import_module(module.name)
    with open_session() as session:
        session.compose(["trainer=fake", "lr=1e-3"])
    assert "torch" not in sys.modules
    gc.freeze()  # the forks' collector leaves these pages shared


def _become(request: dict[str, Any]) -> NoReturn:
    """Run the command in this fork, and end it as an interpreter ends."""
    code = 1
    try:
        for number, path in enumerate(request["files"]):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the rest of this process
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        _run(request["arguments"])
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
    if arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], os.getcwd()  # noqa: PTH109 - as the interpreter does, without links resolved
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _exit_code(code: object) -> int:
    """As the interpreter takes it: nothing is 0, a number itself, a text a message and 1."""
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    serve()
