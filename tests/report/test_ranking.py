"""Which point is the best: by its mean over seeds, and of raced leaders by fresh seeds alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grporecipe.files import write_json
from grposweep.report._ranking import RankedPoint, rank_points, replication_ranking
from grposweep.report.trial_view import State, TrialView
from grposweep.search.replication import Replication
from grposweep.storage.results import TrialResult, TrialStatus


def trial(number: int, lr: float, value: float | None, **attributes: Any) -> TrialView:
    """One that has ended, finished where it has a value."""
    state = State.FAILED if value is None else State.FINISHED
    result = TrialResult(TrialStatus(state.value), objective=value, objective_se=0.01)
    return TrialView(
        Path(f"{number:04d}-abc"),
        number,
        "abc",
        {"lr": lr},
        attributes,
        state,
        result,
        1,
        1,
        1.0,
        1.0,
    )


def fresh(number: int, of: int, lr: float, seed: int, value: float | None) -> TrialView:
    """A replicate of a leader."""
    return trial(number, lr, value, role="confirm", of=of, seed=seed)


def raced(trials: list[TrialView], seeds: int = 3) -> list[RankedPoint]:
    """The ranking where the two best run again on seeds 1000, 2000, ..."""
    fresh_seeds = tuple(1000 * (index + 1) for index in range(seeds))
    return rank_points(
        trials,
        "maximize",
        replication_ranking(trials, "maximize", Replication(fresh_seeds, leaders=2)),
    )


def test_without_replicates_the_best_value_is_the_best() -> None:
    """Or the least, where less is better."""
    trials = [trial(0, 1e-4, 0.5), trial(1, 1e-3, 0.7), trial(2, 1e-2, None)]
    assert [place.first.number for place in rank_points(trials, "maximize")] == [1, 0]
    assert [place.first.number for place in rank_points(trials, "minimize")] == [0, 1]


def test_a_lucky_leader_falls_behind_on_fresh_seeds() -> None:
    """It was 0.9 where it was chosen, and is beaten where it was not; those that never raced come
    last.
    """
    race = [fresh(10 + i, 0, 1e-4, 1000 * (i + 1), 0.60 + 0.001 * i) for i in range(3)]
    race += [fresh(20 + i, 1, 1e-3, 1000 * (i + 1), 0.70 + 0.001 * i) for i in range(3)]
    found = raced([trial(0, 1e-4, 0.9), trial(1, 1e-3, 0.8), trial(2, 1e-2, 0.79), *race])
    assert [(place.first.number, place.fate) for place in found] == [
        (1, "best on fresh seeds"),
        (0, "worse on 3 fresh seeds"),
        (2, ""),
    ]
    assert found[0].value == pytest.approx(0.701)


def test_leaders_that_cannot_be_told_apart_are_tied() -> None:
    """Their three seeds differ more than they do. Of five requested seeds these would say nothing
    yet.
    """
    race = [trial(0, 1e-4, 0.9), trial(1, 1e-3, 0.8)]
    for i, (first, second) in enumerate(((0.6, 0.8), (0.8, 0.6), (0.7, 0.71))):
        race.append(fresh(10 + i, 0, 1e-4, 1000 * (i + 1), first))
        race.append(fresh(20 + i, 1, 1e-3, 1000 * (i + 1), second))
    assert [(place.first.number, place.fate) for place in raced(race)] == [
        (1, "best on fresh seeds"),
        (0, "tied with the best"),
    ]
    assert {place.fate for place in raced(race, seeds=5)} == {"still in the race"}


def test_a_leader_that_fails_on_a_fresh_seed_is_out() -> None:
    """A point that does not always train is no winner."""
    race = [
        fresh(10, 0, 1e-4, 1000, None),
        fresh(11, 0, 1e-4, 2000, 0.9),
        fresh(20, 1, 1e-3, 1000, 0.5),
        fresh(21, 1, 1e-3, 2000, 0.5),
    ]
    found = raced([trial(0, 1e-4, 0.9), trial(1, 1e-3, 0.8), *race])
    assert [(place.first.number, place.fate) for place in found][1] == (
        0,
        "not finished on a fresh seed",
    )


def test_where_nothing_was_chosen_all_seeds_count() -> None:
    """One factor at a time: every point runs on every seed."""
    trials = [
        trial(0, 1e-4, 0.9),
        fresh(1, 0, 1e-4, 1000, 0.7),
        trial(2, 1e-3, 0.85),
        fresh(3, 2, 1e-3, 1000, 0.85),
    ]
    found = rank_points(trials, "maximize")
    assert [(place.first.number, round(place.value, 6)) for place in found] == [(2, 0.85), (0, 0.8)]


def test_a_parameter_named_seed_groups_its_points() -> None:
    """A grid over seeds is one point a learning rate."""
    trials = [trial(i, 1e-4, value) for i, value in enumerate((0.5, 0.6, 0.7))]
    trials = [replace(t, point={"lr": 1e-4, "seed": t.number}) for t in trials]
    (place,) = rank_points(trials, "maximize")
    assert (place.source, place.value) == ("seeds", pytest.approx(0.6))
    assert place.half == pytest.approx(4.302653 * 0.1 / 3**0.5)


def test_repeats_of_one_seed_are_one_seed() -> None:
    """A second run of the same seed is no evidence about other seeds; the interval stays that over
    prompts.
    """
    (found,) = rank_points([trial(0, 1e-3, 0.7), trial(1, 1e-3, 0.7)], "maximize")
    assert (found.over, len(found.trials)) == ("prompts", 2)
    assert found.half == pytest.approx(1.959964 * 0.01)


def test_a_point_that_nothing_chose_stands_under_its_own_trial() -> None:
    """A control and its repeat on another seed, which ended higher, are the trial that the others
    are compared with.
    """
    (found,) = rank_points([trial(0, 1e-3, 0.7), fresh(4, 0, 1e-3, 1000, 0.8)], "maximize")
    assert (found.first.number, found.value) == (0, pytest.approx(0.75))


def test_the_best_of_many_has_a_wider_interval() -> None:
    """Its value was chosen because it is the largest, so the interval holds for all points
    together.
    """
    found = rank_points([trial(n, 10.0**-n, 0.5 + n / 100) for n in range(10)], "maximize")[0]
    assert found.half == pytest.approx(2.807 * 0.01, rel=1e-3)
    assert "95 % over prompts, best of 10" in found.text
    # as a row of a table
    assert found.own.text.startswith("0.5900 ± 0.0196 (95 % over prompts)")


def read_files(folder: Path, number: int, content: str) -> TrialView:
    """A trial of one point that has read a reward file with this content."""
    found = replace(
        trial(number, 1e-3, 0.5 + number / 10), path=folder / "trials" / f"{number:04d}-abc"
    )
    found.path.mkdir(parents=True)
    (folder / "inputs.json").touch()
    write_json(found.path / "provenance.json", {"files": {"rewards.py": content}})
    return found


def test_trials_with_other_files_are_never_averaged(tmp_path: Path) -> None:
    """The same point with another reward is another point."""
    trials = [
        replace(read_files(tmp_path, n, content), attributes={"seed": n})
        for n, content in enumerate("aab")
    ]
    found = rank_points(trials, "maximize")
    assert [[t.number for t in point.counted] for point in found] == [[2], [0, 1]]
    assert all("other contents of reward or data files" in point.text for point in found)
