"""``search.on_end`` from outside: once at the end, told how it ended, and without a say in anything
else.
"""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support import Run, read, trials, wait_for

pytestmark = pytest.mark.slow
FAKE = ("trainer=fake", "name=s", "schedule.budget_completions=512")
TELL = (
    "search.on_end='echo "
    '"$GRPOSWEEP_STATUS|$GRPOSWEEP_BEST_TRIAL|$GRPOSWEEP_OBJECTIVE|$GRPOSWEEP_SWEEP" >> told\'',
)


def test_it_is_told_the_folder_the_status_and_the_best_trial(run: Run, here: Path) -> None:
    """Through its environment; the folder's name has a space and arrives whole."""
    ended = run(*FAKE, *TELL, "-m", "lr=1e-4,1e-3")
    best = trials(ended.sweep)[1]
    objective = read(best / "result.json")["objective"]
    assert (here / "told").read_text() == f"finished|{best.name}|{objective!r}|{ended.sweep}\n"


def test_a_sweep_that_has_ended_before_does_not_tell_it_again(run: Run, here: Path) -> None:
    """Looking at the recorded result is no end; extending the sweep is one."""
    run(*FAKE, *TELL, "-m", "lr=1e-4,1e-3,1e-2", "search.trials=2")
    run(*FAKE, *TELL, "-m", "lr=1e-4,1e-3,1e-2", "search.trials=2")
    assert len((here / "told").read_text().splitlines()) == 1
    run(*FAKE, *TELL, "-m", "lr=1e-4,1e-3,1e-2")
    assert len((here / "told").read_text().splitlines()) == 2


def test_its_failure_is_one_line_and_changes_nothing(run: Run) -> None:
    """Not the exit code, not the results."""
    ended = run(*FAKE, "search.on_end='exit 7'")
    assert ended.code == 0
    assert "search.on_end failed with exit code 7" in ended.out + ended.err
    assert read(trials(ended.sweep)[0] / "result.json")["status"] == "finished"


def test_a_sweep_without_a_result_says_failed(run: Run, here: Path) -> None:
    """And names no best trial."""
    ended = run(*FAKE, *TELL, "trainer.args.crash_at=1")
    assert ended.code == 1
    assert (here / "told").read_text().startswith("failed|||")


def test_an_interrupted_sweep_does_not_run_it(start: Callable, here: Path) -> None:
    """A terminal is there, and the sweep continues later."""
    process = start(
        *FAKE[:2],
        *TELL,
        "trainer.args.step_seconds=0.05",
        "schedule=steps",
        "schedule.max_steps=400",
    )
    wait_for(lambda: list(here.glob("outputs/s/trials/*/heartbeat")))
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    assert not (here / "told").exists()
