"""The terminal's tables at a given width."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from grposweep.report._leaderboard import effects_table, leaderboard
from grposweep.report.export import show_best
from grposweep.report.html_page import render_report
from grposweep.report.space_summary import (
    SpaceSummary,
    disk_report,
    invalid_table,
    print_space_summary,
)
from grposweep.report.tables import build_console, build_table
from grposweep.report.view import InvalidPoints, read_sweep
from grposweep.schema import Experiment
from made import Made, make_comparison, make_sweep
from support import Printed, on_terminal, unwrap, update, write_lines

WHY = "it does not divide the 32 completions of a rollout " * 3
LONG = InvalidPoints("GB101", 8, {"batch": "small"}, WHY, ["a_key=1"])


@pytest.mark.parametrize("columns", [80, 120])
def test_what_is_piped_is_as_wide_as_columns_says(
    monkeypatch: pytest.MonkeyPatch, printed: Printed, columns: int
) -> None:
    """The longest line reaches the width and does not pass it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    build_console().print(invalid_table([LONG], 8, 12))
    assert columns - 5 <= max(len(line) for line in printed().splitlines()) <= columns


def test_text_from_files_cannot_steer_the_terminal() -> None:
    """Escape sequences are shown, markup is text, in lines and in tables."""
    table = build_table(["trial"], [["\x1b]0;title\x07"], ["[bold]x[/]"]])
    shown = on_terminal(table, "\x1b[2J[link=https://evil.example]here[/link] :bomb:")
    assert "\x1b" not in shown
    assert "\\x1b]0;" in shown
    assert "[bold]x[/]" in shown
    assert "\\x1b[2J[link=https://evil.example]here[/link] :bomb:" in shown


def test_a_value_that_is_invalid_is_in_the_table_of_effects_with_its_reason(
    tmp_path: Path,
) -> None:
    """It was not trained; the user who asked for it looks for it there."""
    sweep = make_comparison(tmp_path / "s", [{"lr": 1e-2}])
    problem = {
        "code": "GL104",
        "message": "generation.temperature=0: sampling needs a temperature above 0",
        "fixes": [],
    }
    line = {"point": {"generation.temperature": 0}, "problems": [problem]}
    write_lines(sweep / "invalid.jsonl", [line])
    view = read_sweep(sweep)
    assert view.comparison is not None
    shown = on_terminal(effects_table(view, view.comparison), columns=100)
    assert re.search(r"generation.temperature +0 +GL104 +invalid", shown)
    assert "GL104: generation.temperature=0: sampling needs" in shown


def test_the_disk_line_counts_checkpoints_of_paused_trials(tmp_path: Path) -> None:
    """If they alone are too large, it says how to do without them."""
    assert "needed (up to 4 KiB for checkpoints of paused trials), " in disk_report(
        1024, tmp_path, 4096
    )
    assert "not enough: set search.effort=1 (no trial is paused)" in disk_report(
        1024, tmp_path, 2**60
    )


@pytest.mark.parametrize(
    ("there", "left", "said"),
    [
        (
            20,
            21,
            "held out: 20 of task.eval_prompts=256 prompts (at most half of the data); 21 "
            "prompts to train on",
        ),
        (256, 344, "held out: 256 prompts (task.eval_prompts); 344 prompts to train on"),
        (256, 512, ""),
    ],
)
def test_the_start_says_if_few_prompts_are_held_out_or_left_to_train_on(
    tmp_path: Path, printed: Printed, there: int, left: int, said: str
) -> None:
    """Fewer than the default of 256, or more than a third of the data."""
    summary = SpaceSummary(1, 0, 0, 1, "", is_local=True)
    prepared = {"one": {"train_prompts": left, "distinct_prompts": left, "eval_prompts": there}}
    print_space_summary(build_console(), summary, Experiment(), [], prepared, tmp_path)
    (*found,) = (line for line in printed().splitlines() if line.startswith("held out"))
    assert " ".join(found) == said


def test_the_start_of_a_sweep_says_which_differences_can_be_chance(
    tmp_path: Path, printed: Printed
) -> None:
    """The 95 % interval of two equal points that answer half of the prompts."""
    summary = SpaceSummary(4, 0, 0, 1, "grid", is_local=True)
    prepared = {"one": {"eval_prompts": 64}}
    print_space_summary(build_console(), summary, Experiment(), [], prepared, tmp_path)
    said = unwrap(printed())
    assert (
        "differences below 0.17 can be chance with 64 held-out prompts; 256 (task.eval_prompts)"
        in said
    )


def test_the_start_of_a_sweep_says_what_to_keep_for_a_fork(
    tmp_path: Path, printed: Printed
) -> None:
    """With its size: two checkpoints of each trial, and two of the running one. Nothing is kept of
    a single run either way.
    """
    summary = SpaceSummary(4, 0, 0, 1, "grid", is_local=True)
    prepared = {"one": {"model": {"parameters": 100_000_000}}}
    print_space_summary(build_console(), summary, Experiment(), [], prepared, tmp_path)
    assert "keep all: trainer.keep=all (about 11 GiB)" in printed()
    print_space_summary(
        build_console(), replace(summary, sampler=""), Experiment(), [], prepared, tmp_path
    )
    assert "keep all" not in printed()


def test_the_interval_of_a_trial_is_the_same_on_every_screen(
    tmp_path: Path, printed: Printed
) -> None:
    """Leaderboard, best and the page: Student's t over the prompts, which is wider than the normal
    distribution's.
    """
    sweep = make_sweep(tmp_path / "s", Made(trials=1))
    (result,) = sweep.glob("trials/*/result.json")
    update(result, evaluated=[100], objective_se=0.01)
    line = {"step": 100, "prompts": "a", "means": [0.5, 0.6, 0.7]}
    write_lines(result.parent / "prompt_rewards.jsonl", [line])
    view = read_sweep(sweep)
    build_console().print(leaderboard(view))
    show_best(view, None, None)
    assert printed().count(" ± 0.0430") == 2
    assert '"half":0.043' in render_report(view)
