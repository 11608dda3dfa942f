"""completions.jsonl: what is kept of each evaluation, and how much."""

from pathlib import Path

import pytest

from grposweep.storage import completions as module
from grposweep.storage.completions import (
    EVALUATION_BYTES,
    TRIAL_BYTES,
    KeptCompletion,
    PromptRewards,
    append_prompt_rewards,
    best_step,
    keep_completions,
    read_completions,
    read_prompt_rewards,
    rewind_completions,
)
from support import lines


def evaluation(
    step: int, value: float = 0.5, text: str = "4", count: int = 2
) -> list[KeptCompletion]:
    """Completions of one evaluation."""
    return [
        KeptCompletion(step, 0, value, n, "2+2=", text, 1.0, {"exact": 1.0}, n == 1)
        for n in range(count)
    ]


def test_a_kept_completion_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With its rewards, whether it was cut off, and characters of any kind."""
    written = evaluation(3, text="‮\x1b[31m </script> \u2028 42")
    keep_completions(tmp_path, written)
    assert read_completions(tmp_path) == {3: written}


def test_an_evaluation_that_happens_again_replaces_the_earlier_one(tmp_path: Path) -> None:
    """After a resume: nothing is there twice, and what lies after the checkpoint is gone."""
    for step in (0, 2, 4):
        keep_completions(tmp_path, evaluation(step))
        append_prompt_rewards(tmp_path, step, PromptRewards("a", (0.5,)))
    rewind_completions(tmp_path, 2)
    assert [line["step"] for line in lines(tmp_path / "prompt_rewards.jsonl")] == [0, 2]
    assert list(read_completions(tmp_path)) == [0, 2]
    keep_completions(tmp_path, evaluation(2, text="5"))
    assert [
        [kept.completion for kept in group] for group in read_completions(tmp_path).values()
    ] == [
        ["4"] * 2,
        ["5"] * 2,
    ]


@pytest.mark.parametrize(
    "text", ["long " * 100_000, "長" * 100_000], ids=["words", "characters of three bytes"]
)
def test_one_evaluation_is_bounded(tmp_path: Path, text: str) -> None:
    """Long texts keep their beginning and their end."""
    keep_completions(tmp_path, evaluation(0, text=text + "the end", count=8))
    assert (tmp_path / "completions.jsonl").stat().st_size <= EVALUATION_BYTES
    kept = read_completions(tmp_path)[0][0].completion
    assert kept.startswith(text[:10])
    assert kept.endswith("the end")
    assert "characters ..." in kept


def test_a_trial_is_bounded_and_keeps_its_first_last_and_best_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in the middle go, evenly."""
    monkeypatch.setattr(module, "TRIAL_BYTES", 3_000)
    for step in range(40):
        keep_completions(tmp_path, evaluation(step, value=0.9 if step == 13 else 0.5))
    found = list(read_completions(tmp_path))
    assert (tmp_path / "completions.jsonl").stat().st_size <= 3_000 < TRIAL_BYTES
    assert {0, 13, 39} <= set(found)
    assert len(found) >= 5
    assert best_step(read_completions(tmp_path)) == 13


def test_a_damaged_line_or_a_foreign_file_costs_nothing(tmp_path: Path) -> None:
    """A torn line is skipped, a huge file is not read."""
    keep_completions(tmp_path, evaluation(1))
    path = tmp_path / "completions.jsonl"
    path.write_text(
        path.read_text() + '{"step": 2, "completion": 7, "rewards": 3}\n{"step": 3, "compl'
    )
    assert list(read_completions(tmp_path)) == [1, 2]
    path.write_text("x" * (5 * TRIAL_BYTES))
    assert read_completions(tmp_path) == {}


def test_the_best_evaluation_may_have_a_single_completion() -> None:
    """The earliest of equal ones, the lowest where the objective is minimized, and none without a
    value.
    """
    found = {
        step: evaluation(step, value, count=1) for step, value in ((1, 0.2), (3, 0.7), (5, 0.7))
    }
    assert (best_step(found), best_step(found, maximize=False), best_step({})) == (3, 1, None)


def test_the_values_of_families_have_the_mean_of_the_prompts_and_the_spread_of_the_families(
    tmp_path: Path,
) -> None:
    """Families of one size have their means. Damaged numbers are no families."""
    append_prompt_rewards(
        tmp_path, 2, PromptRewards("a", (0.0, 0.2, 1.0, 0.8), (0, 0, 1, 1), (0, 1, 1, 1))
    )
    found = read_prompt_rewards(tmp_path, [2])
    assert (found.by_family, found.alike) == (pytest.approx((0.1, 0.9)), (0, 1, 1, 1))
    uneven = PromptRewards("a", (0.0, 0.0, 0.9), (5, 5, 9)).by_family
    assert uneven == pytest.approx((-0.1, 0.7))
    assert PromptRewards.parse(
        {"means": [0.5, 1.0], "families": [0, "x"], "alike": [1]}
    ).by_family == (0.5, 1.0)


def test_rewards_by_prompt_are_the_mean_of_the_evaluations_asked_for(tmp_path: Path) -> None:
    """A step that a resumed trial repeats counts once; other prompts in between, or a step without
    any, say nothing.
    """
    for step, prompts, means in (
        (2, "a", (0.0, 1.0)),
        (2, "a", (0.5, 1.0)),
        (4, "a", (1.0, 0.0)),
        (6, "b", (1.0, 1.0)),
    ):
        append_prompt_rewards(tmp_path, step, PromptRewards(prompts, means))
    assert read_prompt_rewards(tmp_path, [2, 4]) == PromptRewards("a", (0.75, 0.5))
    assert (
        read_prompt_rewards(tmp_path, [4, 6])
        == read_prompt_rewards(tmp_path, [4, 8])
        == PromptRewards()
    )
    with (tmp_path / "prompt_rewards.jsonl").open("a") as file:
        file.write('{"step": 8, "prompts": "a", "means": [NaN, "x"]}\n{"step": 8, "mea')
    assert read_prompt_rewards(tmp_path, [8]) == PromptRewards()
