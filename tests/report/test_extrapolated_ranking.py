"""``grposweep best --extrapolated``: trials by what twice their completions would give."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from made import Made, make_sweep
from support import Ended

LEVEL = (0.6, 0.69, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7)
RISING = (0.3, 0.36, 0.41, 0.46, 0.51, 0.56, 0.61, 0.66)
LATE = (0.5, 0.58, 0.6, 0.6, 0.66, 0.72, 0.78, 0.84)
FALLEN = (0.5, 0.7, 0.75, 0.8, 0.6, 0.5, 0.45, 0.4)


def make(path: Path, *curves: Sequence[float]) -> None:
    """A finished sweep whose trials have these evaluations after the start at 0.3."""
    sweep = make_sweep(path / "outputs" / "s", Made(trials=len(curves), parameters={"batch": ["small"]}))
    for curve, folder in zip(curves, sorted((sweep / "trials").iterdir()), strict=True):
        lines = [
            {"kind": "eval", "step": n, "completions": 64 * n, "eval_reward": value, "eval_reward_se": 0.005}
            for n, value in enumerate([0.3, *curve])
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        result = {"v": 1, "status": "finished", "objective": curve[-1], "objective_se": 0.005, "attempt": 0}
        (folder / "result.json").write_text(json.dumps(result))


def test_a_trial_that_still_rises_is_ranked_before_the_best_that_has_levelled_off(
    commands: Callable[..., Ended], tmp_path: Path
) -> None:
    """A fallen curve and one of few evaluations have no place, and the reasons are given."""
    make(tmp_path, LEVEL, RISING, FALLEN, LEVEL[:3])
    said = commands("best", "--extrapolated").out
    rows = [line.split()[:2] for line in said.splitlines() if " lr=" in line]
    assert rows == [["1", "1"], ["2", "0"], ["*", "3"], ["*", "2"]]
    assert "* trial 2: not extrapolated, it has fallen from its best evaluation" in said
    assert "* trial 3: not extrapolated, fewer than 4 evaluations" in said
    assert max(map(len, said.splitlines())) <= 80
    assert commands("best").out.startswith("trial 0 of s")


def test_trials_whose_intervals_overlap_are_named(commands: Callable[..., Ended], tmp_path: Path) -> None:
    """Two trials that level off at the same value."""
    make(tmp_path, LEVEL, tuple(value - 0.001 for value in LEVEL), tuple(value - 0.3 for value in LEVEL))
    lines = [line.strip() for line in commands("best", "--extrapolated").out.splitlines()]
    assert "the interval overlaps that of trial 0: 1" in lines


def test_the_exported_trial_is_the_first_of_the_extrapolated_ranking(
    commands: Callable[..., Ended], tmp_path: Path
) -> None:
    """With --as it is printed."""
    make(tmp_path, LEVEL, RISING)
    assert "# trial 1 of s" in commands("best", "--extrapolated", "--as", "command").out
    assert "# trial 0 of s" in commands("best", "--as", "command").out


def test_a_sweep_without_a_curve_to_extrapolate_is_one_message(commands: Callable[..., Ended], tmp_path: Path) -> None:
    """With what to set."""
    make(tmp_path, LEVEL[:3], FALLEN)
    refused = commands("best", "--extrapolated")
    assert refused.code == 2
    assert "no trial of s can be extrapolated (fewer than 4 evaluations; it has fallen" in refused.err
    assert "schedule.evaluations=8" in refused.err


def test_intervals_say_how_many_finished_trials_they_were_checked_with(
    commands: Callable[..., Ended], tmp_path: Path
) -> None:
    """Twelve trials that rise a second time, which their first half does not show; and one that has no other."""
    make(tmp_path, *(tuple(value + n / 1000 for value in LATE) for n in range(12)))
    said = " ".join(commands("best", "--extrapolated").out.split())
    assert "times as wide as by this curve alone, by 12 finished trials cut at half." in said
    make(tmp_path / "one", RISING)
    assert "90 % intervals, by this curve alone" in commands("show", "0", "--outputs", tmp_path / "one/outputs").out
