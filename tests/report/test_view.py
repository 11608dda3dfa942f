"""A sweep read from its folder alone: while it runs, after it died, on another machine, with damaged files."""

import json
import shutil
from pathlib import Path

import pytest

from grposweep.errors import UserError
from grposweep.report.trial_view import State
from grposweep.report.view import read_sweep
from made import Made, make_sweep


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every state that a trial can be in."""
    return make_sweep(tmp_path_factory.mktemp("read") / "s", Made(trials=12, running=2, queued=1, replicates=1))


def test_every_trial_has_its_state(swept: Path) -> None:
    """One failed, one stopped early, two under way, one waits, the rest and three replicates finished."""
    view = read_sweep(swept)
    counted = {state.value: view.count(state) for state in State if view.count(state)}
    assert counted == {"queued": 1, "running": 2, "finished": 10, "pruned": 1, "failed": 1}
    assert view.trial(5).failure_class == "gpu_memory"
    assert "5 % chance" in view.trial(3).reason


def test_reading_changes_nothing(swept: Path) -> None:
    """Not a byte, not a date."""
    before = {path: path.stat().st_mtime_ns for path in swept.rglob("*")}
    view = read_sweep(swept)
    _ = view.best, view.invalid, [trial.curve("reward") for trial in view.trials]
    assert {path: path.stat().st_mtime_ns for path in swept.rglob("*")} == before


def test_the_best_trial_is_the_searchs_own_whose_point_held_on_other_seeds(swept: Path) -> None:
    """Not a replicate on a lucky seed, and not the luckiest trial of the search."""
    view = read_sweep(swept)
    confirmed = {repr(trial.point): trial.objective or 0.0 for trial in view.trials if trial.role == "confirm"}
    assert view.best is not None
    assert view.best.role == "search"
    assert confirmed[repr(view.best.point)] == max(confirmed.values())


def test_a_curve_has_a_point_an_evaluation(swept: Path) -> None:
    """Ten and the one before training, with their standard errors; the training reward at every step."""
    trial = read_sweep(swept).trial(0)
    assert [point.step for point in trial.curve("eval_reward")] == list(range(0, 101, 10))
    assert {point.error for point in trial.curve("eval_reward")} == {0.012}
    assert len(trial.curve("reward")) == 100


def test_a_trial_costs_its_seconds_on_all_its_devices(swept: Path) -> None:
    """A hundred steps of three seconds on four devices."""
    trial = read_sweep(swept).trial(0)
    assert trial.seconds == pytest.approx(300)
    assert trial.gpu_hours == pytest.approx(4 * 300 / 3600)


def test_torn_last_lines_and_half_written_results_are_no_obstacle(swept: Path, tmp_path: Path) -> None:
    """Somebody looks while a writer is at work, or after its disk was full."""
    copy = Path(shutil.copytree(swept, tmp_path / "copy"))
    trial = copy / "trials" / swept.joinpath("trials", "0000-000000").name
    with (trial / "metrics.jsonl").open("a") as file:
        file.write('{"v": 1, "step": 101, "eval_rew')
    (trial / "result.json").write_text('{"status": "fini')
    (trial / "trial.json").write_text("")
    (copy / "outlook.json").write_text("[1, 2")
    (copy / "invalid.jsonl").write_text('{"point": 3}\nnonsense\n')
    view = read_sweep(copy)
    assert view.trial(0).state is State.QUEUED
    assert len(view.trial(0).curve("eval_reward")) == 11
    assert (view.progress.target, view.invalid) == (None, [])


def test_an_attempt_here_ended_with_its_controller_and_a_job_goes_on(swept: Path, tmp_path: Path) -> None:
    """Nobody holds the lease: a local attempt cannot be under way, a Slurm job can."""
    copy = Path(shutil.copytree(swept, tmp_path / "copy"))
    trial = next((copy / "trials").glob("0009-*"))
    text = (trial / "attempts.jsonl").read_text()
    (trial / "attempts.jsonl").write_text(text.replace('"job_id": "7009"', '"job_id": "local-7009"'))
    view = read_sweep(copy)
    assert (view.trial(9).state, view.trial(10).state) == (State.STOPPED, State.RUNNING)


def test_a_trial_that_the_search_has_paused_is_told_from_one_that_was_stopped(swept: Path, tmp_path: Path) -> None:
    """Both have a checkpoint; only its control file says who goes on with it."""
    copy = Path(shutil.copytree(swept, tmp_path / "copy"))
    for name in ("0000", "0001"):
        trial = next((copy / "trials").glob(f"{name}-*"))
        (trial / "result.json").write_text(json.dumps({"v": 1, "status": "stopped", "attempt": 0, "step": 40}))
    next((copy / "trials").glob("0000-*")).joinpath("control.json").write_text('{"v": 1, "action": "pause"}')
    view = read_sweep(copy)
    assert (view.trial(0).state, view.trial(1).state) == (State.PAUSED, State.STOPPED)


def test_invalid_points_are_counted_by_rule_with_an_example_and_its_fixes(swept: Path) -> None:
    """As the sweep's own table has them."""
    (rule,) = read_sweep(swept).invalid
    assert (rule.code, rule.count, rule.fixes) == ("GB101", 4, ["cluster.processes=3"])
    assert rule.point == {"batch": "small", "batch.num_generations": 12}


def test_a_trial_is_named_by_number_folder_or_the_head_of_its_id(swept: Path) -> None:
    """And by nothing else."""
    view = read_sweep(swept)
    name = view.trials[7].name
    assert {view.trial(7).number, view.trial(name).number, view.trial(view.trials[7].experiment[:8]).number} == {7}
    with pytest.raises(UserError, match=r"no such trial\. Name one by its number .* or best\.$"):
        view.trial("99")


def test_best_names_the_winner_wherever_a_trial_is_named(swept: Path, tmp_path: Path) -> None:
    """As 'grposweep best' does; nobody before a trial has finished."""
    view = read_sweep(swept)
    assert view.trial("best") is view.best
    with pytest.raises(
        UserError, match=r"no finished trial yet, so none is the best\. Name one by its number [^.]*\)\.$"
    ):
        read_sweep(make_sweep(tmp_path / "young", Made(trials=1, running=1))).trial("best")
