"""A sweep does not depend on its screen: a closed terminal, a full disk under its output."""

import math
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from grporecipe.terminal import Screen, printable
from grposweep.cli._run import command
from grposweep.sweep import _interrupts as interrupts
from grposweep.sweep._interrupts import SignalCounter, counting_interrupts
from support import RUN, environment, read, trials, wait_for

FAKE = ("trainer=fake", "name=s", "trainer.args.step_seconds=0.02", "-m", "lr=1e-3,2e-3")
Shown = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def shown(here: Path) -> Iterator[Shown]:
    """A sweep with its output here or there; it ends with the test at the latest."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**streams: Any) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(RUN), *FAKE]
        process = subprocess.Popen(
            command, cwd=here, env=environment(TERM="xterm"), start_new_session=True, **streams
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def check_finished(sweep: Path) -> str:
    """Both trials have their results; returns the log."""
    assert [read(trial / "result.json")["status"] for trial in trials(sweep)] == ["finished"] * 2
    return (sweep / "controller.log").read_text()


@pytest.mark.slow
def test_a_sweep_continues_when_its_terminal_is_closed(shown: Shown, here: Path) -> None:
    """The kernel hangs up and every write fails: the display is given up, nothing else."""
    ours, theirs = pty.openpty()
    process = shown(stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    sweep = here / "outputs" / "s"
    wait_for(lambda: os.read(ours, 1 << 16) and list(sweep.glob("trials/*/heartbeat")))
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=300) == 0
    log = check_finished(sweep)
    assert "the terminal went away (SIGHUP)" in log
    assert "stdout cannot be written (Input/output error): nothing more is shown there" in log


@pytest.mark.slow
def test_a_sweep_continues_when_the_disk_under_its_output_is_full(shown: Shown, here: Path) -> None:
    """Its own folder is on another one."""
    with Path("/dev/full").open("w") as full:
        process = shown(stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, b"")
    assert "stdout cannot be written (No space left on device)" in check_finished(
        here / "outputs" / "s"
    )


def test_a_stream_that_failed_once_is_silent(tmp_path: Path) -> None:
    """What it still holds goes to nothing as well, also at the end of Python."""
    with Path("/dev/full").open("w") as stream:
        screen = Screen(stream)
        assert screen.write("line\n") == 5
        screen.flush()
        screen.write("more\n")
        screen.flush()


def test_a_hangup_is_no_request_to_stop() -> None:
    """Ctrl-C and SIGTERM are."""
    with counting_interrupts() as counted:
        signal.raise_signal(signal.SIGHUP)
        assert counted.count == 0
        signal.raise_signal(signal.SIGTERM)
        assert counted.count == 1


class Once(Event):
    """Is set by the first wait, which says that nothing ended meanwhile."""

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - no wait at all
        self.set()
        return False


@pytest.mark.parametrize(
    ("number", "taken", "answers"),
    [
        (signal.SIGINT, 0.0, 1),
        (signal.SIGTERM, 0.0, 1),
        (signal.SIGINT, math.inf, 0),
    ],
)
def test_a_request_that_the_main_thread_does_not_take_is_answered(
    number: int, taken: float, answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a disk, and Python runs handlers between calls only; what it takes, the
    controller answers.
    """
    said: list[str] = []
    monkeypatch.setattr(interrupts, "say", lambda text, _out: said.append(text))
    inner, outer = socket.socketpair()
    with outer:
        outer.send(bytes([number]))
        interrupts._answer(inner, SignalCounter(taken=taken), Once())
    assert [f"kill -9 {os.getpid()} ends it now" in line for line in said] == [True] * answers


def test_control_characters_are_shown_and_not_sent() -> None:
    """Colours, titles, cursors, bells, text that runs backwards; line ends and tabs stay."""
    text = printable("a\x1b[31mb\x9b2Jc\rd\x07\u202ee\ud800\n\tü")
    assert text == "a\\x1b[31mb\\x9b2Jc\\rd\\x07\\u202ee\\ud800\n\tü"


def test_interrupts_are_counted_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A login node limits processes and threads."""
    monkeypatch.setattr(interrupts.threading.Thread, "start", _refuse)
    with counting_interrupts() as counted:
        signal.raise_signal(signal.SIGTERM)
        assert counted.count == 1


def test_a_sweep_for_which_no_thread_can_be_started_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lease needs one. Other errors keep their traceback."""
    monkeypatch.setattr(sys, "argv", ["run.py"])
    with pytest.raises(SystemExit) as end:
        command(_refuse)
    assert (end.value.code, capsys.readouterr().err.count("\n")) == (2, 1)
    with pytest.raises(RuntimeError, match="a bug"):
        command(lambda: _refuse(why="a bug"))


def _refuse(*_arguments: object, why: str = "can't start new thread") -> None:
    raise RuntimeError(why)
