"""The controller's log: each decision with its reason, in the sweep's folder and on request on the
terminal.
"""

import logging
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from grposweep.sweep._log import controller_log
from support import Run, trials, wait_for

FAKE = ("trainer=fake", "name=s")
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (?:INFO|WARNING|ERROR) +trial=(?:\d+"
    r"|-) attempt=(?:\d+|-) \S.*"
)


def log_of(sweep: Path) -> list[str]:
    """The lines of a sweep's log, each of which has time, level, trial and attempt."""
    found = (sweep / "controller.log").read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in found), found
    return [line.split(maxsplit=2)[2] for line in found]


def test_each_decision_is_in_the_log_with_its_reason_and_not_on_the_screen(run: Run) -> None:
    """Starts, ends, a failure with its next step, and an early stop."""
    ended = run(
        *FAKE,
        "search.stopping=asha",
        "trainer.args.crash_above_lr=5e-3",
        "trainer.args.step_seconds=0.05",
        "schedule=steps",
        "schedule.max_steps=40",
        "-m",
        "lr=1e-2,1e-3,1e-5",
    )
    found = log_of(ended.sweep)
    assert "trial=0 attempt=- new trial: lr=0.01" in found
    assert any(re.fullmatch(r"trial=0 attempt=0 started as local-\d+", line) for line in found)
    failed = (
        "trial=0 attempt=0 failed (crashed): trainer.args.crash_above_lr=0.005: this crash "
        "is staged; next: fail"
    )
    assert failed in found
    assert any(line.startswith("trial=1 attempt=0 finished: eval_reward 0.") for line in found)
    assert any(
        "trial=2 attempt=0 prune asked at step" in line and "asha at evaluation" in line
        for line in found
    )
    assert any(line.startswith("trial=2 attempt=0 stopped early: asha") for line in found)
    assert found[0].startswith("trial=- attempt=- controller ")
    assert found[-1] == "trial=- attempt=- the controller ends: finished, exit code 0"
    assert "new trial" not in ended.out + ended.err


@pytest.mark.slow
def test_the_flag_shows_the_log_on_the_terminal_and_makes_no_other_sweep(run: Run) -> None:
    """``-v`` and ``verbose=true`` are the same; a secret is in neither place."""
    assert run(*FAKE, "-m", "lr=1e-3,1e-4", "search.trials=1").code == 0
    shown = run(*FAKE, "-v", "-m", "lr=1e-3,1e-4")
    assert "trial=1 attempt=- new trial: lr=0.0001" in shown.out
    assert "1 of them recorded already" in shown.out
    again = run(*FAKE, "verbose=true", "-m", "lr=1e-3,1e-4")
    assert "takes the lease, resumed" in again.out
    assert len(trials(again.sweep)) == 2


@pytest.mark.slow
def test_an_interrupt_and_the_resume_after_it_are_in_the_log(
    run: Run, start: Callable, here: Path
) -> None:
    """Ctrl-C, the stop at a boundary, and the second controller."""
    slow = (
        *FAKE,
        "trainer.args.step_seconds=0.02",
        "schedule=steps",
        "schedule.max_steps=60",
        "lr=1e-3",
    )
    process = start(*slow)
    wait_for(lambda: len(list(here.glob("outputs/s/trials/*/heartbeat"))) == 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert run(*slow).code == 0
    found = "\n".join(log_of(here / "outputs" / "s"))
    order = (
        "interrupted: 1 attempts",
        "trial=0 attempt=0 stopped at a rollout boundary",
        "exit code 130",
        "takes the lease, resumed",
        "trial=0 attempt=1 started",
        "trial=0 attempt=1 finished",
    )
    places = [found.index(text) for text in order]
    assert places == sorted(places)


@pytest.mark.slow
def test_a_secret_is_redacted_in_the_log(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node or a message may hold one."""
    # what the failure's message holds
    monkeypatch.setenv("HF_TOKEN", "crash_at=2: this crash")
    ended = run(*FAKE, "trainer.args.crash_at=2", "lr=1e-3")
    line = next(line for line in log_of(ended.sweep) if "failed" in line)
    assert "***" in line
    assert "this crash" not in line


@pytest.mark.slow
def test_a_log_that_cannot_be_written_does_not_stop_the_sweep(run: Run) -> None:
    """A folder stands in its place: every line fails, as on a full disk."""
    first = run(*FAKE, "lr=1e-3")
    (first.sweep / "controller.log").unlink()
    (first.sweep / "controller.log").mkdir()
    again = run(*FAKE, "lr=1e-3", "force=true")
    assert again.code == 0, again.err
    assert len(trials(again.sweep)) == 2
    assert "Traceback" not in again.err + again.out


def test_a_pipe_in_place_of_the_log_is_set_aside(tmp_path: Path) -> None:
    """Opening it would wait for a reader."""
    os.mkfifo(tmp_path / "controller.log")
    with controller_log(tmp_path, Console(quiet=True), verbose=False):
        logging.getLogger("grposweep").info("hello")
    assert "hello" in (tmp_path / "controller.log").read_text()
    assert (tmp_path / "controller.log.damaged").is_fifo()
