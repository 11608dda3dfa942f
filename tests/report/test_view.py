"""A sweep read from its folder alone: while it runs, after it died, on another machine, with
damaged files.
"""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grposweep.report.status import status_screen
from grposweep.report.sweeps_list import sweeps_table
from grposweep.report.trial_view import State, TrialView, read_trial
from grposweep.report.view import SweepReader, read_sweep
from grposweep.storage.folders import TrialFolder
from grposweep.storage.results import TrialResult, TrialStatus
from in_process import Sweep
from made import Made, make_sweep
from support import Printed, edit, lines, on_terminal, trials, unwrap, update

FAKE = ("trainer=fake", "schedule.budget_completions=64", "search.effort=1")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every state that a trial can be in."""
    return make_sweep(
        tmp_path_factory.mktemp("read") / "s", Made(trials=12, running=2, queued=1, replicates=1)
    )


def test_every_trial_has_its_state(swept: Path) -> None:
    """One failed, one stopped early, two under way, one waits, the rest and three replicates
    finished.
    """
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


def test_a_curve_has_a_point_an_evaluation(swept: Path) -> None:
    """Ten and the one before training, with their standard errors; the training reward at every
    step.
    """
    trial = read_sweep(swept).trial(0)
    assert [point.step for point in trial.curve("eval_reward")] == list(range(0, 101, 10))
    assert {point.error for point in trial.curve("eval_reward")} == {0.012}
    assert len(trial.curve("reward")) == 100


def test_a_trial_costs_its_seconds_on_all_its_devices(swept: Path) -> None:
    """A hundred steps of three seconds on four devices."""
    trial = read_sweep(swept).trial(0)
    assert trial.seconds == pytest.approx(300)
    assert trial.gpu_hours == pytest.approx(4 * 300 / 3600)


def test_torn_last_lines_and_half_written_results_are_no_obstacle(
    swept: Path, tmp_path: Path
) -> None:
    """It is read while a writer is at work, or after its disk was full."""
    copy = Path(shutil.copytree(swept, tmp_path / "copy"))
    trial = copy / "trials" / swept.joinpath("trials", "0000-000000").name
    with (trial / "metrics.jsonl").open("a") as file:
        file.write('{"step": 101, "eval_rew')
    (trial / "result.json").write_text('{"status": "fini')
    (trial / "trial.json").write_text("")
    (copy / "outlook.json").write_text("[1, 2")
    (copy / "invalid.jsonl").write_text('{"point": 3}\nnonsense\n')
    view = read_sweep(copy)
    assert view.trial(0).state is State.QUEUED
    assert len(view.trial(0).curve("eval_reward")) == 11
    assert (view.progress.target, view.invalid) == (None, [])


def test_an_attempt_here_ended_with_its_controller_and_a_job_continues(
    swept: Path, tmp_path: Path
) -> None:
    """The lease is free: a local attempt cannot be under way, a Slurm job can."""
    copy = Path(shutil.copytree(swept, tmp_path / "copy"))
    trial = next((copy / "trials").glob("0009-*"))
    edit(trial / "attempts.jsonl", '"job_id": "7009"', '"job_id": "local-7009"')
    view = read_sweep(copy)
    assert (view.trial(9).state, view.trial(10).state) == (State.STOPPED, State.RUNNING)
    unfinished = on_terminal(status_screen(view), columns=160)
    assert "starts over with the sweep, because it has no checkpoint" in unfinished
    edit(copy / "sweep.yaml", "    fork: null\n", "    fork: a1b2\n")
    assert "starts over" not in on_terminal(status_screen(read_sweep(copy)), columns=160)
    edit(copy / "sweep.yaml", "    fork: a1b2\n", "    fork: null\n")
    for step, says in ((10, "from step 10"), (11, "from step 10, because checkpoint-11 cannot be")):
        checkpoint = trial / f"checkpoints/checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        if step == 10:
            (checkpoint / "fake.json").touch()
        shown = on_terminal(status_screen(read_sweep(copy)), columns=160)
        assert f"resumes with the sweep {says}" in shown


def test_the_last_line_of_metrics_may_be_ahead_of_the_heartbeat(
    swept: Path, tmp_path: Path
) -> None:
    """The heartbeat is written once a second, so that of a killed attempt is older. The step of a
    resume may be behind it.
    """
    copy = Path(shutil.copytree(swept, tmp_path / "copy"))
    trial = next((copy / "trials").glob("0009-*"))
    beat = json.loads((trial / "heartbeat").read_text())
    steps = []
    for logged in (beat["step"] + 3, 1):
        with (trial / "metrics.jsonl").open("a") as file:
            file.write(f'\n{{"step": {logged}, "kind": "train"}}\n{{"step": 99')
        steps.append(read_sweep(copy).trial(9).step)
    assert steps == [beat["step"] + 3, beat["step"]]


def test_a_trial_that_the_search_has_paused_is_told_from_one_that_was_stopped(
    swept: Path, tmp_path: Path
) -> None:
    """Both have a checkpoint; only its control file says who continues with it."""
    copy = Path(shutil.copytree(swept, tmp_path / "copy"))
    for name in ("0000", "0001"):
        trial = next((copy / "trials").glob(f"{name}-*"))
        (trial / "result.json").write_text(
            json.dumps({"status": "stopped", "attempt": 0, "step": 40})
        )
    next((copy / "trials").glob("0000-*")).joinpath("control.json").write_text(
        '{"action": "pause"}'
    )
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
    assert {
        view.trial(7).number,
        view.trial(name).number,
        view.trial(view.trials[7].experiment[:8]).number,
    } == {7}
    with pytest.raises(UserError, match=r"no such trial\. Name one by its number .* or best\.$"):
        view.trial("99")


def test_best_names_the_winner_in_every_command(swept: Path, tmp_path: Path) -> None:
    """As 'grposweep best' does; none before a trial has finished."""
    view = read_sweep(swept)
    assert view.trial("best") is view.best
    with pytest.raises(
        UserError,
        match=r"no finished trial yet, so none is the best\. Name one by its number [^.]*\)\.$",
    ):
        read_sweep(make_sweep(tmp_path / "young", Made(trials=1, running=1))).trial("best")


def test_a_reader_reads_only_trials_whose_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third look on. A running trial is read at every look, for its cost grows."""
    sweep = make_sweep(tmp_path / "s", Made(trials=6, running=1, queued=1))
    view = read_sweep(sweep)
    running, queued = (
        next(t for t in view.trials if t.state is state) for state in (State.RUNNING, State.QUEUED)
    )
    read: list[int] = []

    def counted(folder: TrialFolder, controller_lives: bool) -> TrialView:
        read.append(folder.number)
        return read_trial(folder, controller_lives)

    monkeypatch.setattr("grposweep.report.view.read_trial", counted)
    reader = SweepReader(sweep)
    assert reader.read().count(*State) == reader.read().count(*State) == 6
    read.clear()
    assert reader.read().trial(queued.number).state is State.QUEUED
    assert read == [running.number]
    TrialResult(TrialStatus.FINISHED, attempt=0, objective=0.9).write(queued.path)
    assert reader.read().trial(queued.number).objective == 0.9
    assert sorted(read[1:]) == sorted([running.number, queued.number])
    (running.path / "attempts.jsonl").open("a").write(
        json.dumps({"attempt": 0, "event": "ended", "code": 0}) + "\n"
    )
    TrialResult(TrialStatus.FINISHED, attempt=0, objective=0.8).write(running.path)
    assert reader.read().count(State.RUNNING) == 0
    read.clear()
    assert reader.read().trial(running.number).objective == 0.8
    assert read == []


def test_a_trial_with_a_row_is_not_read_again(
    sweep_here: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller writes the row when the trial has ended; what it tells is what the files
    tell.
    """
    folder = sweep_here("name=s", *FAKE, "lr=1e-3,2e-3")
    found = read_sweep(folder).trials
    with monkeypatch.context() as patched:
        patched.setattr(
            "grposweep.report.view.read_trial", lambda *_: pytest.fail("a trial was read")
        )
        assert read_sweep(folder).trials == found
    (folder / "summary.jsonl").unlink()
    assert read_sweep(folder).trials == found


@pytest.mark.slow
def test_a_row_of_other_files_does_not_count(sweep_here: Sweep) -> None:
    """A file that was replaced by another of the same size and date, too."""
    folder = sweep_here("name=s", *FAKE, "lr=1e-3,2e-3,3e-3,4e-3,5e-3")
    edit(folder / "summary.jsonl", '"state": "finished"', '"state": "failed"')
    counts = [read_sweep(folder).count(State.FAILED)]
    for trial, name in zip(
        trials(folder),
        ("result.json", "attempts.jsonl", "runs.jsonl", "trial.json", "heartbeat"),
        strict=True,
    ):
        shutil.copy2(trial / name, trial / "copy")
        (trial / "copy").replace(trial / name)
        counts.append(read_sweep(folder).count(State.FAILED))
    assert counts == [5, 4, 3, 2, 1, 0]


def test_a_controller_that_ends_completes_the_summary(sweep_here: Sweep) -> None:
    """Rows of an earlier controller that was killed."""
    folder = sweep_here("name=s", *FAKE, "lr=1e-3,2e-3")
    rows = folder / "summary.jsonl"
    rows.write_text(rows.read_text().splitlines(keepends=True)[0] + '{"trial": "0001-')
    sweep_here("name=s", *FAKE, "lr=1e-3,2e-3")
    whole = [row for row in rows.read_text().splitlines() if row.endswith("}")]
    assert len({json.loads(row)["trial"] for row in whole}) == 2


def test_a_reader_finds_trials_that_start_later(tmp_path: Path) -> None:
    """And sees the same as one that has just been made."""
    sweep = make_sweep(tmp_path / "s", Made(trials=3))
    reader = SweepReader(sweep)
    assert len(reader.read().trials) == 3
    folder = shutil.copytree(
        sweep / "trials" / reader.read().trials[0].name, sweep / "trials" / "0009-abcdef"
    )
    assert [trial.name for trial in reader.read().trials] == [
        trial.name for trial in read_sweep(sweep).trials
    ]
    assert reader.read().trials[-1].path == folder


def test_seeds_that_a_later_command_asked_for_count(tmp_path: Path) -> None:
    """sweep.yaml says what the first command asked for; outlook.json what the last one did."""
    sweep = make_sweep(tmp_path / "s", Made(trials=6, replicates=1))
    assert read_sweep(sweep).replication is not None
    update(sweep / "outlook.json", seeds=0, leaders=0)
    assert read_sweep(sweep).replication is None


@pytest.mark.slow
def test_a_dry_run_is_neither_queued_nor_running(sweep_here: Sweep) -> None:
    """Nothing was launched, and ``status`` and ``list`` say so; the same sweep on another launcher
    is as any other.
    """
    words = ("trainer=fake", "name=s", "schedule.budget_completions=512")
    folder = sweep_here(*words, "lr=1e-3,2e-3", "cluster=dry_run")
    view = read_sweep(folder)
    shown = on_terminal(status_screen(view), sweeps_table([view]))
    assert view.progress_text == "dry run: nothing was launched"
    assert "2 written, none launched" in shown
    assert "running" not in shown
    assert read_sweep(sweep_here(*words, "lr=1e-3,2e-3")).progress_text == "done"


def test_failures_that_are_alike_are_printed_once_and_shown_whole(
    sweep_here: Sweep, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """A sweep that is done is not said to have no finished trial "yet"."""
    words = ("trainer=fake", "name=s", "schedule.budget_completions=512")
    monkeypatch.setenv("COLUMNS", "300")
    folder = sweep_here(*words, "trainer.args.crash_at=1", "lr=1e-3,2e-3")
    said = printed()
    view = read_sweep(folder)
    assert said.count(view.trials[0].reason) == 1
    assert "trial 1 failed: as trial 0 did" in said
    monkeypatch.delenv("COLUMNS")
    text = unwrap(on_terminal(status_screen(view), columns=40))
    assert f"trials 0, 1: crashed: {view.trials[0].reason}" in text
    assert "no trial has finished spent" in text
    with pytest.raises(UserError, match="no finished trial, so none"):
        view.trial("best")


@pytest.mark.slow
def test_a_failed_trial_is_not_counted_as_finished(sweep_here: Sweep, printed: Printed) -> None:
    """The last lines of a run, and ``status``, count the same."""
    words = ("trainer=fake", "name=s", "batch=small", "search.parallel=1")
    folder = sweep_here(
        *words,
        "trainer.args.crash_above_lr=5e-3",
        "trainer.args.step_seconds=0.01",
        "search.effort=0.5",
        "lr=1e-3,3e-3,1e-2",
    )
    assert read_sweep(folder).count(State.FAILED) == 1
    said = printed()
    assert "\n1 failed: trial " in said
    assert "\n1 finished, 1 paused, 1 failed: " in said


@pytest.mark.slow
def test_out_of_memory_in_several_trials_is_one_line_with_their_numbers(tmp_path: Path) -> None:
    """On the status screen; amounts may differ."""
    message = "out of GPU memory: 2.3 of its 9.9 GiB in use, 24 GiB held by process 1218, not ours"
    view = read_sweep(make_sweep(tmp_path / "s", Made(trials=60, message=message)))
    failed = [trial for trial in view.trials if trial.state is State.FAILED]
    result = failed[1].result
    assert result.failure is not None
    other = replace(result.failure, message=message.replace("2.3", "2.7"))
    replace(result, failure=other).write(failed[1].path)
    numbers = ", ".join(str(trial.number) for trial in failed)
    shown = on_terminal(status_screen(read_sweep(view.path)), columns=200)
    assert f"\n  trials {numbers}: {message} " in shown


def test_a_long_name_of_a_sweep_stays_on_one_line_of_the_list(
    tmp_path: Path,
) -> None:
    """In 80 columns; it is copied from there. The value of the best trial may fold."""
    view = read_sweep(
        make_sweep(tmp_path / "tiny-arithmetic-run-28b196", Made(trials=6, running=1))
    )
    assert "tiny-arithmetic-run-28b196 " in on_terminal(sweeps_table([view]))


def test_huge_values_of_a_file_are_no_values(tmp_path: Path) -> None:
    """Their squares are no numbers, and statistics square them."""
    path = make_sweep(tmp_path / "s", Made(trials=6, replicates=1))
    for number, folder in enumerate(trials(path)):
        update(folder / "result.json", objective=(-1) ** number * 1e308)
    view = read_sweep(path)
    assert [trial.value for trial in view.trials] == [None] * len(view.trials)
    assert on_terminal(status_screen(view))


def test_of_very_many_steps_some_are_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All evaluations, evenly spread steps, and the last one, in the file's order."""
    monkeypatch.setattr("grposweep.report.trial_view.MOST_STEPS", 100)
    path = make_sweep(tmp_path / "s", Made(trials=1, steps=1000, evaluations=10))
    (folder,) = trials(path)
    all_lines = lines(folder / "metrics.jsonl")
    held = read_sweep(path).trials[0].lines
    steps = [line["step"] for line in held if line["kind"] == "train"]
    assert 100 <= len(steps) <= 200
    assert steps[-1] == max(line["step"] for line in all_lines if line["kind"] == "train")
    assert len({later - step for step, later in pairwise(steps[:-1])}) == 1
    assert [line for line in held if line["kind"] == "eval"] == [
        line for line in all_lines if line["kind"] == "eval"
    ]
    assert [all_lines.index(line) for line in held] == sorted(
        all_lines.index(line) for line in held
    )
