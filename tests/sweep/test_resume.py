"""The study is built from the trial folders. Damage to the journal, its copy, changes nothing."""

import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest

from grposweep.config.compose import open_session
from grposweep.search.mirror import JournalMirror
from grposweep.search.parse import parse_space, split_tokens
from grposweep.search.space import Space
from grposweep.search.study import SweepStudy
from grposweep.storage.folders import SweepFolder
from grposweep.sweep._resume import GONE, open_study
from support import Run, study, trials

from .conftest import GRID

# Without early stopping: when a running trial hears that it is to pause is a matter of time.
TPE = (
    "trainer=fake",
    "name=s",
    "search.stopping=none",
    "-m",
    "lr=tag(log,interval(1e-5,3e-3))",
    "kl=none,low",
    "search.sampler=tpe",
)


def space_of(arguments: tuple[str, ...]) -> Space:
    """The space that a command line spans."""
    tokens = split_tokens(word for word in arguments if word != "-m")
    with open_session() as session:
        return parse_space(tokens, {}, session.loader)[0]


def state(study: optuna.Study | SweepStudy) -> list[tuple[Any, ...]]:
    """All that is known of each trial, but the times."""
    return [
        (t.number, t.state, t.value, t.params, t.distributions, t.user_attrs, t.intermediate_values)
        for t in study.trials
    ]


def load(sweep: Path) -> list[tuple[Any, ...]]:
    """The study on disk as any Optuna user opens it."""
    return state(study(sweep))


def reopen(sweep: Path, arguments: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """All trials of the study as the sweep's command builds it."""
    return state(open_study(SweepFolder(sweep), space_of(arguments), "maximize", "eval_reward"))


def test_the_study_has_all_that_the_journal_shows(sweep: Path) -> None:
    """Numbers, params, distributions, values, states, evaluations and attributes; invalid points
    among them.
    """
    shown = load(sweep)
    assert (
        sorted(trial[1].name for trial in shown) == ["COMPLETE"] * 2 + ["FAIL"] * 2 + ["PRUNED"] * 4
    )
    (sweep / "study.journal").unlink()
    assert reopen(sweep, GRID) == shown


def test_a_journal_is_rewritten_at_each_start(sweep: Path) -> None:
    """Damage, or another program's lines, cannot matter; a folder in its place is a note."""
    shown = load(sweep)
    journal = sweep / "study.journal"
    journal.write_text("{")
    study = open_study(SweepFolder(sweep), space_of(GRID), "maximize", "eval_reward")
    mirror = JournalMirror(journal, "maximize")
    mirror.show(study.trials)
    assert (mirror.close(), load(sweep)) == (True, shown)
    journal.unlink()
    journal.mkdir()
    broken = JournalMirror(journal, "maximize")
    broken.show(study.trials)
    assert not broken.close()
    assert "study.journal is behind" in broken.problem


def test_a_deleted_folder_leaves_its_number_taken(sweep: Path) -> None:
    """Every other trial keeps its own; nothing is known of it but that it was."""
    before = load(sweep)
    shutil.rmtree(trials(sweep)[1])
    after = reopen(sweep, GRID)
    (gone,) = [index for index, trial in enumerate(after) if trial[5].get("problems") == [GONE]]
    assert after[:gone] + after[gone + 1 :] == before[:gone] + before[gone + 1 :]


def test_a_folder_without_a_record_is_no_trial(sweep: Path) -> None:
    """A controller died on its first file, so the next one gives the number again."""
    before = reopen(sweep, GRID)
    (sweep / "trials" / "0009-abcdef").mkdir()
    assert reopen(sweep, GRID) == before


@pytest.mark.parametrize(
    "damaged",
    ["", "null", "{", '{"a": 1}', '{"point": {"lr": 7.0}, "attributes": {"experiment": "x"}}'],
)
def test_a_damaged_record_is_read_from_its_copy(sweep: Path, damaged: str) -> None:
    """In provenance.json. Without one the number stays taken, and nothing is guessed."""
    before = reopen(sweep, GRID)
    (trials(sweep)[0] / "trial.json").write_text(damaged)
    assert reopen(sweep, GRID) == before
    (trials(sweep)[0] / "provenance.json").write_text("{}")
    assert [trial[5].get("problems") for trial in reopen(sweep, GRID)].count([GONE]) == 1


def test_a_trial_that_was_written_twice_comes_back_as_the_attempted_one(sweep: Path) -> None:
    """Another version of the code may have given it another id."""
    before = load(sweep)
    twin = trials(sweep)[-1].with_name(trials(sweep)[-1].name.split("-")[0] + "-000000")
    twin.mkdir()
    (twin / "trial.json").write_text(
        '{"point": {"lr": 0.001}, "attributes": {"experiment": "000000"}}'
    )
    assert reopen(sweep, GRID) == before


@pytest.mark.slow
def test_an_adaptive_sweep_without_its_journal_asks_the_same_points(run: Run) -> None:
    """Six trials, the journal gone, six more: as if nothing had happened."""
    undisturbed = run(*TPE, "search.trials=12").sweep
    before = load(undisturbed)
    shutil.rmtree(undisturbed)
    half = run(*TPE, "search.trials=6").sweep
    (half / "study.journal").unlink()
    ended = run(*TPE, "search.trials=12")
    assert ended.code == 0, ended.err
    assert load(half) == before


@pytest.mark.slow
def test_a_finished_sweeps_command_only_writes_its_journal(run: Run) -> None:
    """No trial runs again."""
    sweep = run(*GRID).sweep
    before = load(sweep)
    attempts = [(folder / "attempts.jsonl").read_text() for folder in trials(sweep)]
    (sweep / "study.journal").unlink()
    assert run(*GRID).code == 0
    assert load(sweep) == before
    assert [(folder / "attempts.jsonl").read_text() for folder in trials(sweep)] == attempts
