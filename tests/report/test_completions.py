"""Kept completions on every screen: a degenerate winner is told, and no text of a model moves the
cursor or runs a script.
"""

from pathlib import Path
from typing import Any

import pytest

from grporecipe.files import append_line
from grposweep.report._advice import advise
from grposweep.report._completions import Signs
from grposweep.report.html_page import page_data, render_report
from grposweep.report.view import read_sweep
from grposweep.storage.completions import KeptCompletion, keep_completions
from made import Made, best_of, make_sweep
from support import unwrap

from .conftest import Commands

HEALTHY = {
    "samples": 64,
    "template_share": 0.05,
    "distinct_ngrams": 0.9,
    "similarity_across": 0.1,
    "marker_share": 0.9,
}
HOSTILE = "Great!\x1b[31m\x07‮ </script><script>alert(1)</script>"


def sampled(sweep: Path, number: int, text: str = HOSTILE, **now: Any) -> Path:
    """Give a trial the completions and metrics of two evaluations, before training and at its
    end.
    """
    trial = next((sweep / "trials").glob(f"{number:04d}-*"))
    for step, said, values in ((0, "let me think", HEALTHY), (100, text, HEALTHY | now)):
        kept = [
            KeptCompletion(
                step, 0, 0.5, n, f"What is {n}?", said, 0.7, {"a": 0.7}, n == 1, step > 0
            )
            for n in range(4)
        ]
        keep_completions(trial, kept)
        append_line(trial / "metrics.jsonl", {"kind": "eval", "step": step, **values})
    return trial


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Its best trial is one template."""
    path = make_sweep(tmp_path / "outputs/s", Made(trials=5))
    sampled(path, best_of(path).number, template_share=20 / 64)
    return path


@pytest.mark.parametrize("command", ["status", "show", "best"])
def test_a_degenerate_winner_is_told_with_its_text_and_the_starts(
    commands: Commands, sweep: Path, command: str
) -> None:
    """What a terminal would obey is shown as it is written."""
    text = commands(command, *(["best"] if command == "show" else [])).out
    assert "20 of 64 samples are one template (3 of 64 before training)" in unwrap(text)
    assert "let me think" in text
    assert "\\x1b[31m\\x07\\u202e" in text
    assert not {"\x1b", "\x07", "‮"} & set(text)


def test_show_prints_three_completions_with_reward_and_whether_they_were_cut_off(
    commands: Commands, sweep: Path
) -> None:
    """Prompt, start and now."""
    text = commands("show", str(best_of(sweep).number)).out
    assert text.count("prompt   What is") == 3
    joined = unwrap(text)
    assert joined.count("[reward 0.7, cut off]") == 2
    assert "one template 0.312 (0.05), distinct triples 0.9 (0.9)" in joined


def test_the_page_holds_both_evaluations_and_nothing_of_them_as_code(sweep: Path) -> None:
    """The leaderboard's note and a notice name the sign; the script element ends where it
    should.
    """
    view = read_sweep(sweep)
    data = page_data(view)["completions"]
    assert [[e["step"] for e in trial["evaluations"]] for trial in data] == [[0, 100]]
    text = render_report(view)
    assert "<script>alert" not in text
    assert 'id="doubt"' in text
    assert text.count("20 of 64 samples are one template") >= 3


def test_the_reports_advice_is_the_best_point_without_a_sign_of_a_gamed_reward(sweep: Path) -> None:
    """The first sentence names both, and the command repeats the sound one."""
    view = read_sweep(sweep)
    found = advise(view)
    assert found is not None
    assert found.sentence.startswith("Read its completions before you use ")
    assert "Without such a sign: Use " in found.sentence
    assert [step.command for step in found.uses] == [view.leaderboard[1].first.command]


def test_a_page_without_completions_has_no_section_of_them(tmp_path: Path) -> None:
    """Sweeps of other programs."""
    text = render_report(read_sweep(make_sweep(tmp_path / "s", Made(trials=5))))
    assert 'id="completions"' not in text
    assert 'id="doubt"' not in text


def test_compare_shows_where_two_trials_answer_differently(commands: Commands, sweep: Path) -> None:
    """The same prompt, both answers."""
    other = next(
        trial.number for trial in read_sweep(sweep).ranked if trial.number != best_of(sweep).number
    )
    sampled(sweep, other, text="4")
    text = commands("compare", f"s/{best_of(sweep).number}", f"s/{other}").out
    assert "prompt What is 0?" in text
    assert "4  [reward 0.7]" in text


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({}, ""),
        ({"template_share": 0.2}, ""),
        ({"template_share": 0.3}, "19 of 64 samples are one template (3 of 64 before training)"),
        ({"distinct_ngrams": 0.3}, "30% of their word triples are distinct (90% before training)"),
        ({"similarity_across": 0.8}, "share 80% of their word triples (10% before training)"),
        ({"foreign_script_share": 0.5}, "32 of 64 samples are in another script"),
        ({"marker_share": 0.1}, "format is lost"),
        (
            {"eval_completions/mean_length": 90.0, "eval_completions/clipped_ratio": 1.0},
            "9.0 times as long",
        ),
        ({"eval_completions/mean_length": 90.0, "eval_completions/clipped_ratio": 0.2}, ""),
    ],
)
def test_each_sign_of_a_degenerate_policy_is_measured_against_the_start(
    now: dict[str, float], said: str
) -> None:
    """And none is found in a healthy policy, or in one that thinks longer."""
    start = HEALTHY | {
        "foreign_script_share": 0.0,
        "eval_completions/mean_length": 10.0,
        "eval_completions/clipped_ratio": 0.1,
    }
    found = Signs(start | now, start).texts
    assert len(found) == bool(said)
    assert said in "".join(found)
