"""Sweeps whose leaders are evaluated again on fresh seeds, with the fake trainer and its noise."""

from pathlib import Path

import optuna
import pytest

from support import Ended, grposweep, run_in, study, trials

RACED = (
    "trainer=fake",
    "name=s",
    "trainer.args.noise=0.05",
    "schedule.budget_completions=null",
    "schedule.max_steps=4",
    "trainer.keep=best",
    "search.seeds=3",
    "search.leaders=2",
    "-m",
    "lr=1e-5,1e-4,1e-3,2e-3",
)


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One such sweep."""
    return run_in(tmp_path_factory.mktemp("raced"), *RACED)


def replicates(sweep: Path) -> list[optuna.trial.FrozenTrial]:
    """Its trials on fresh seeds."""
    return [trial for trial in study(sweep).trials if trial.user_attrs.get("role") == "confirm"]


@pytest.mark.slow
def test_leaders_run_again_on_seeds_that_the_search_did_not_see(raced: Ended) -> None:
    """The two best learning rates, on the same three seeds each."""
    assert raced.code == 0, raced.err
    found = replicates(raced.sweep)
    assert {trial.params["lr"] for trial in found} == {1e-3, 2e-3}
    assert sorted(trial.user_attrs["seed"] for trial in found) == [
        1000,
        1000,
        2000,
        2000,
        3000,
        3000,
    ]
    assert all("seed: 1000" in (f / "config.yaml").read_text() for f in trials(raced.sweep)[4:6])


def test_the_end_names_the_winner_with_its_interval(raced: Ended) -> None:
    """The model that stays is the winner's."""
    assert "on fresh seeds ± 95 %" in raced.out
    (line,) = [
        line for line in raced.out.splitlines() if line.startswith("on 3 fresh seeds: trial ")
    ]
    winner = int(line.split("trial ")[1].split(",")[0])
    assert "± " in line
    assert [path.parent.name[:4] for path in raced.sweep.glob("trials/*/model")] == [
        f"{winner:04d}"
    ]


@pytest.mark.slow
def test_seeds_of_a_later_command_leave_the_winner_a_model(tmp_path: Path) -> None:
    """The first command kept its own best model alone; the winner's repeat has one."""
    first = run_in(
        tmp_path, *(word for word in RACED if "seeds" not in word), "trainer.args.noise=0.5"
    )
    (kept,) = first.sweep.glob("trials/*/model")
    ended = run_in(tmp_path, *RACED, "trainer.args.noise=0.5", "search.leaders=4")
    winner = int(ended.out.split("on 3 fresh seeds: trial ")[1].split(",")[0])
    assert winner != int(kept.parent.name[:4])
    (model,) = first.sweep.glob("trials/*/model")
    assert f"of: {winner}" in (model.parent / "trial.json").read_text().replace('"', "")
    assert f"its model is in {model} (trained on seed 1000)" in ended.out.replace("\n", "")


@pytest.mark.slow
def test_a_study_made_again_knows_its_replicates(raced: Ended, here: Path) -> None:
    """Their role is in trial.json, so nothing is lost with the journal."""
    before = [(trial.number, trial.value, trial.user_attrs) for trial in study(raced.sweep).trials]
    (raced.sweep / "study.journal").unlink()
    again = run_in(raced.sweep.parent.parent, *RACED)
    assert [
        (trial.number, trial.value, trial.user_attrs) for trial in study(again.sweep).trials
    ] == before
    assert "damaged" not in grposweep(here, "status", str(raced.sweep)).out
