"""The warm server: imports what training needs once, then forks a process for each request.

Requests come as JSON lines on standard input, ``{"arguments", "environment", "log"}``; answers go
to what was standard output at the start, ``{"started": pid}`` and ``{"ended": pid, "code": code}``.
What imports print goes to the error stream instead. When its input ends, it kills its children and
ends. Signals that ask for a stop are for its children: it ignores them. If it must not fork, its
only answer is ``{"cannot_fork": why}``. If the system starts no process now, it answers
``{"refused": errno}``. Forking is safe because nothing here starts threads, runs an OpenMP region
or touches CUDA before the fork.
"""

import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from functools import partial
from typing import NoReturn

from grporecipe.errors import packages_first
from grporecipe.files import Json, parse_json
from grposweep.process import STOP_SIGNALS, die_with, end_session, signals_blocked

# of `_say`: writes one answer
Say = partial[None]


def serve(preload: list[str]) -> None:
    """Answer requests until standard input ends."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    say = partial(_say, os.dup(1))
    packages_first()
    # before the first import: transformers prints a line at WANDB_MODE=offline
    os.dup2(2, 1)
    # read once, when torch is imported; a rank sets its own number later
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # TRL imports MLflow, which would start a thread
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # If an import made the CUDA runtime look for GPUs, the children could not use CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for name in preload:
        importlib.import_module(name)
    if uses_cuda():
        say({"cannot_fork": "a package that training imports starts CUDA (bitsandbytes does)"})
        return
    # a fork would write it once more
    sys.stdout.flush()
    # the children's collector then leaves these pages shared
    gc.freeze()
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    # a handler must exist for the wake-up byte to be written
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(children, say)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                children |= _fork(parse_json(line), say, close=(wake, waker, *say.args))
    for pid in children:
        end_session(pid)


def uses_cuda() -> bool:
    """Return whether this process has started CUDA. A process that is forked from it cannot use a
    GPU.
    """
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _fork(request: Json, say: Say, close: tuple[int, ...]) -> set[int]:
    """Start one child, and report it. If none can be started now, the others continue: they would
    end with this process.
    """
    server = os.getpid()
    # A signal that comes before the child can answer it waits until then.
    with signals_blocked(*STOP_SIGNALS):
        try:
            pid = os.fork()
        except OSError as error:
            say({"refused": error.errno or 0})
            return set()
        if pid == 0:
            _child(request, close, server)
    say({"started": pid})
    return {pid}


def _child(request: Json, close: tuple[int, ...], server: int) -> NoReturn:
    """Become ``python -m grposweep.train <arguments>``: own session, own output, nothing of the
    server's left open.
    """
    code = 1
    try:
        os.setsid()
        die_with(server)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in close:
            os.close(descriptor)
        _redirect(request["log"])
        os.environ.update(request["environment"])
        from grposweep.train.__main__ import run

        code = run(request["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - the fork must end here in any case: the server's loop is on its stack
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: str | None) -> None:
    """Close the input. Send output to the log file, or to the error stream."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if log is not None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644), 2)
    os.dup2(2, 1)


def _reap(children: set[int], say: Say) -> None:
    """Report how children ended."""
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(answers: int, event: dict[str, int | str]) -> None:
    """Write one answer as a line of its own: a library may have left one unfinished."""
    os.write(answers, b"\n" + json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    serve(sys.argv[1:])
