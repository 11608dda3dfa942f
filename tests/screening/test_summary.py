"""A screen recommends a filter and a group size, and reports problems with rewards and data."""

from pathlib import Path

import pytest
from rich.console import Console

from grporecipe.files import read_lines
from grposweep.screening.signal import Share
from grposweep.screening.summary import Screen, findings, missed_answers, recommend
from grposweep.screening.text import as_json, print_screen, refill_line, write_kept
from grposweep.storage.screens import ScreenRequest, read_samples

from .made import make_prompt, make_screen, mixed


def texts(screen: Screen) -> str:
    """All findings."""
    return "\n".join(finding.text for finding in findings(screen, 4))


def test_prompts_without_a_signal_are_found_and_filtered(tmp_path: Path) -> None:
    """Two thirds are dead: the filter leaves the other third, whose groups nearly all carry a signal."""
    screen = make_screen(tmp_path / "k-16", mixed())
    assert screen.share(8).mean == pytest.approx(1 / 3, abs=0.02)
    advice = recommend(screen, 8, [4, 8, 16], prompts_per_step=4)
    assert advice.kept == 80
    assert advice.share.mean > 0.95
    assert screen.signal_shares(advice.bounds)[8] == pytest.approx(screen.share(8, screen.kept(advice.bounds)).mean)


def test_the_smallest_group_that_nearly_reaches_the_largest_is_advised(tmp_path: Path) -> None:
    """At p = 0.5 a group of 4 has a signal in 7 of 8 cases, at p = 0.1 one of 32 is needed."""
    half = make_screen(tmp_path / "k-16", mixed())
    assert recommend(half, 8, [2, 4, 8, 16], 4).group in (4, 8)
    hard = [make_prompt(i, [1.0] * (1 + i % 2) + [0.0] * (15 - i % 2)) for i in range(100)]
    assert recommend(make_screen(tmp_path / "h-16", hard), 8, [2, 4, 8, 16, 32], 4).group >= 16


def test_a_filter_leaves_enough_prompts_and_none_is_advised_if_most_groups_carry_a_signal(tmp_path: Path) -> None:
    """With 50 prompts per step, 80 prompts are too few; healthy prompts stay as they are."""
    assert recommend(make_screen(tmp_path / "k-16", mixed()), 8, [8], prompts_per_step=50).bounds is None
    alive = [make_prompt(i, [0.0, 1.0] * 8) for i in range(30)]
    assert recommend(make_screen(tmp_path / "a-16", alive), 8, [8], 4).bounds is None


def test_a_constant_reward_and_two_that_cancel_are_named(tmp_path: Path) -> None:
    """Reward b is always 0; a and c move in opposite directions."""
    prompts = [make_prompt(i, [0.0, 1.0, 0.5, 0.2], [0.0] * 4, [1.0, 0.0, 0.4, 0.9]) for i in range(20)]
    found = texts(make_screen(tmp_path / "k-4", prompts, weights=(1.0, 1.0, 1.0)))
    assert "The reward b is 0 for every completion" in found
    assert "The rewards a and c cancel" in found
    assert "a and b cancel" not in found


def test_answers_that_the_reward_misses_are_shown_with_examples(tmp_path: Path) -> None:
    """A completion contains the answer and earns nothing."""
    screen = make_screen(tmp_path / "k-4", [make_prompt(i, [0.0, 0.0, 0.0, 1.0], mentions=True) for i in range(20)])
    share, examples = missed_answers(screen)
    assert share == 0.75
    assert examples[0].example == "1="
    solved = make_screen(tmp_path / "s-4", [make_prompt(i, [1.0] * 4, mentions=True) for i in range(20)])
    assert missed_answers(solved)[0] == 0


def test_truncation_duplicates_and_rewards_that_cannot_judge_are_reported(tmp_path: Path) -> None:
    """Each has a line."""
    prompts = [make_prompt(i, [0.0, None, 1.0, 1.0], truncated=True) for i in range(10)]
    found = texts(make_screen(tmp_path / "k-4", prompts, duplicates=3, conflicts=1))
    assert "100% of the completions reach 4 tokens" in found
    assert "3 training prompts occur before, 1 of them with another answer" in found
    assert "10 rewards are None" in found


def test_graded_rewards_are_counted_and_all_equal_ones_carry_no_signal(tmp_path: Path) -> None:
    """Half of the prompts have rewards that differ; a constant penalty is no pass."""
    graded = [make_prompt(i, [0.1, 0.7, 0.3, 0.9] if i % 2 else [0.4] * 4) for i in range(20)]
    assert make_screen(tmp_path / "g-4", graded).share(2).mean == pytest.approx(0.5)
    for value in (-1.0, 0.0, 1.0):
        screen = make_screen(tmp_path / f"c{value}-4", [make_prompt(i, [value] * 4) for i in range(60)])
        assert screen.share(8).mean < 0.05
        assert (screen.rates.means.mean() > 0.9) == (value > 0)


def test_damaged_and_repeated_lines_are_read_once(tmp_path: Path) -> None:
    """A killed attempt leaves half a line, and its portion is sampled again."""
    make_screen(tmp_path, [make_prompt(0, [0.0, 1.0]), make_prompt(1, [1.0, 1.0]), make_prompt(0, [0.0, 1.0])])
    with (tmp_path / "rollouts.jsonl").open("a") as file:
        file.write('{"v": 1, "prompt": 2, "rewards": [[1.0')
    assert [prompt.prompt for prompt in read_samples(tmp_path)] == [0, 1]
    assert ScreenRequest.read(tmp_path / "nowhere") is None


def test_it_fits_one_screen_of_80_columns_and_writes_what_it_keeps(tmp_path: Path) -> None:
    """The advice is the last line, and kept.jsonl is a data set for any trainer."""
    screen = make_screen(tmp_path / "k-16", mixed())
    advice = recommend(screen, 8, [4, 8, 16], 4)
    console = Console(width=80, record=True, quiet=False, file=(tmp_path / "out").open("w"))
    print_screen(console, screen, advice, 8, {4: 8.0, 8: 4.0, 16: 2.0}, 4)
    lines = console.export_text().rstrip().split("\n")
    assert len(lines) <= 40
    assert "task.keep_between=[" in lines[-2]
    assert write_kept(screen, advice) == 80
    kept = list(read_lines(tmp_path / "k-16" / "kept.jsonl"))
    assert len(kept) == 80
    assert {"prompt", "answer", "pass_rate", "prompt_id"} <= kept[0].keys()
    assert as_json(screen, advice, 8, {8: 4.0}, 4)["advice"]["kept"] == 80


def test_dynamic_sampling_is_said_to_need_what_the_groups_without_a_signal_cost() -> None:
    """A quarter with a signal is four times the prompts, by the interval of the share; nothing if most have one."""
    assert "4.0 times the prompts of a step (3.3 to 5.0)" in refill_line(Share(0.25, 0.2, 0.3))
    assert refill_line(Share(0.85, 0.8, 0.9)) == ""
    assert refill_line(Share(0.0, 0.0, 0.1)) == ""
