"""After any damage to the journal, the study is rebuilt from the trial folders as it was."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from grposweep.config.compose import open_session
from grposweep.search.parse import parse_space, split_tokens
from grposweep.search.space import Space
from grposweep.storage.folders import SweepFolder
from grposweep.sweep.resume import GONE, open_study
from support import Ended, read, trials

from .conftest import GRID

Run = Callable[..., Ended]
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


def state(study: optuna.Study) -> list[tuple[Any, ...]]:
    """All that is known of each trial, but the times."""
    return [
        (t.number, t.state, t.value, t.params, t.distributions, t.user_attrs, t.intermediate_values)
        for t in study.trials
    ]


def load(sweep: Path) -> list[tuple[Any, ...]]:
    """The study on disk as any Optuna user opens it."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(sweep / "study.journal")))
    return state(optuna.load_study(study_name=None, storage=storage))


def reopen(sweep: Path, arguments: tuple[str, ...]) -> list[str]:
    """Open the study as the sweep's command does; what that took."""
    return open_study(SweepFolder(sweep), space_of(arguments), "maximize", "eval_reward")[1]


def test_a_deleted_journal_comes_back_whole(sweep: Path) -> None:
    """Numbers, params, distributions, values, states, evaluations and attributes; invalid points among them."""
    before = load(sweep)
    assert sorted(trial[1].name for trial in before) == ["COMPLETE"] * 2 + ["FAIL"] * 2 + ["PRUNED"] * 4
    (sweep / "study.journal").unlink()
    assert reopen(sweep, GRID) == ["8 trials that the study lacked were taken from the trial folders"]
    assert load(sweep) == before
    assert reopen(sweep, GRID) == []


def test_a_journal_cut_after_any_line_comes_back_whole(sweep: Path) -> None:
    """Trials that had ended without its knowing are told; those of which nothing is known are added."""
    before = load(sweep)
    lines = (sweep / "study.journal").read_bytes().splitlines(keepends=True)
    for count in range(len(lines)):
        (sweep / "study.journal").write_bytes(b"".join(lines[:count]))
        assert reopen(sweep, GRID)
        assert load(sweep) == before


def test_a_journal_that_contradicts_the_folders_is_made_again(sweep: Path) -> None:
    """A tipped byte may leave a readable record of another trial: folders cannot be wrong about which trial they are."""
    before, journal = load(sweep), sweep / "study.journal"
    number = trials(sweep)[0].name.split("-")[0]
    experiment = before[int(number)][5]["experiment"]
    journal.write_bytes(journal.read_bytes().replace(experiment.encode(), b"f" * len(experiment)))
    assert "ffffff by the study" in reopen(sweep, GRID)[0]
    assert load(sweep) == before
    assert (sweep / "study.journal.damaged").exists()


def test_a_deleted_folder_leaves_its_number_taken(sweep: Path) -> None:
    """Every other trial keeps its own; without the journal nothing is known of it but that it was."""
    before = load(sweep)
    shutil.rmtree(trials(sweep)[1])
    assert reopen(sweep, GRID) == []
    assert load(sweep) == before
    (sweep / "study.journal").unlink()
    reopen(sweep, GRID)
    after = load(sweep)
    (gone,) = [index for index, trial in enumerate(after) if trial[5].get("problems") == [GONE]]
    assert after[:gone] + after[gone + 1 :] == before[:gone] + before[gone + 1 :]


@pytest.mark.parametrize(
    "damaged", ["", "null", "{", '{"v": 1}', '{"point": {"lr": 7.0}, "attributes": {"experiment": "x"}}']
)
def test_a_damaged_record_is_no_record(sweep: Path, damaged: str) -> None:
    """The number stays taken; nothing is guessed."""
    (trials(sweep)[0] / "trial.json").write_text(damaged)
    (sweep / "study.journal").unlink()
    reopen(sweep, GRID)
    assert [trial[5].get("problems") for trial in load(sweep)].count([GONE]) == 1


def test_a_trial_that_was_written_twice_comes_back_as_the_attempted_one(sweep: Path) -> None:
    """Another version of the code may have given it another id."""
    before = load(sweep)
    twin = trials(sweep)[-1].with_name(trials(sweep)[-1].name.split("-")[0] + "-000000")
    twin.mkdir()
    (twin / "trial.json").write_text('{"point": {"lr": 0.001}, "attributes": {"experiment": "000000"}}')
    (sweep / "study.journal").unlink()
    reopen(sweep, GRID)
    assert load(sweep) == before


def test_every_trial_folder_records_its_point_and_attributes(sweep: Path) -> None:
    """What the study cannot be made again without."""
    for folder in trials(sweep):
        record = read(folder / "trial.json")
        assert load(sweep)[record["number"]][3] == record["point"]
        assert load(sweep)[record["number"]][5] == record["attributes"]


@pytest.mark.slow
def test_an_adaptive_sweep_without_its_journal_asks_the_same_points(run: Run) -> None:
    """Six trials, the journal gone, six more: as if nothing had happened."""
    undisturbed = run(*TPE, "search.trials=12").sweep
    before = load(undisturbed)
    shutil.rmtree(undisturbed)
    half = run(*TPE, "search.trials=6").sweep
    (half / "study.journal").unlink()
    ended = run(*TPE, "search.trials=12")
    assert "6 trials that the study lacked" in ended.out
    assert load(half) == before


@pytest.mark.slow
def test_a_finished_sweeps_command_only_repairs_its_journal(run: Run) -> None:
    """No trial runs again."""
    sweep = run(*GRID).sweep
    before, attempts = load(sweep), [(folder / "attempts.jsonl").read_text() for folder in trials(sweep)]
    (sweep / "study.journal").unlink()
    assert run(*GRID).code == 0
    assert load(sweep) == before
    assert [(folder / "attempts.jsonl").read_text() for folder in trials(sweep)] == attempts
