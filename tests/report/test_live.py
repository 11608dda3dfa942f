"""The live display, drawn from a sweep's folder."""

from pathlib import Path

from grposweep.report.run_output import LiveDisplay, live_screen
from grposweep.report.tables import build_console
from grposweep.report.view import read_sweep
from made import Made, make_sweep
from support import Printed, on_terminal


def drawn(sweep: Path, notice: str = "") -> str:
    """The screen as text, 120 columns wide."""
    return on_terminal(live_screen(read_sweep(sweep), 75.0, notice), columns=120)


def test_the_display_shows_counts_the_best_and_a_line_a_running_trial(tmp_path: Path) -> None:
    """What runs has its step and reward, what waits the reason."""
    text = drawn(
        make_sweep(tmp_path / "s", Made(trials=12, running=2, queued=1)), "the disk is full"
    )
    head = text.splitlines()[0]
    assert head.startswith("7/16 done")
    assert "2 running, 1 waiting" in head
    assert "1 failed" in head
    assert "1 stopped early" in head
    assert "4 invalid" in head
    assert "1:15 elapsed" in head
    assert "best so far: 0." in text
    assert "of 50 GPU hours" in text
    assert text.count("60/100") == 2
    assert "(Priority)" in text
    assert text.rstrip().endswith("the disk is full")


def test_before_a_trial_has_finished_nothing_is_best_and_the_end_unknown(tmp_path: Path) -> None:
    """A sweep that has just begun."""
    text = drawn(make_sweep(tmp_path / "s", Made(trials=1, queued=1)))
    assert "no trial has finished yet" in text
    assert "time left unknown yet" in text


def test_without_a_terminal_only_lasting_lines_are_printed(
    tmp_path: Path, printed: Printed
) -> None:
    """A log file has no use for a display."""
    with LiveDisplay(build_console(80)) as display:
        assert not display.is_live
        display.show(read_sweep(make_sweep(tmp_path / "s", Made(trials=1))))
        display.say("trial 0 eval_reward 0.5 [lr=1e-3]")
    assert printed() == "trial 0 eval_reward 0.5 [lr=1e-3]\n"
