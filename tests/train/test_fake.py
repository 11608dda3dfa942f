"""The life of an attempt, shown on the fake trainer, which shares it with the real one."""

import contextlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grporecipe.errors import ExitCode
from grporecipe.files import append_line, read_json
from grposweep.storage.results import FailureReport, TrialResult, TrialStatus
from grposweep.train.run import run_attempt
from support import PROJECT, environment, wait_for

from .conftest import MakeTrial, control, metrics_of, result_of

SOURCE = {"PYTHONPATH": str(PROJECT / "src")}


def test_a_finished_trial_has_its_objective_in_result_json(make_fake: MakeTrial) -> None:
    """The mean of the last evaluations, and the start before any training."""
    folder = make_fake("search.last=2")
    assert run_attempt(folder) == ExitCode.FINISHED
    result = result_of(folder)
    evaluations = [line for line in metrics_of(folder) if line["kind"] == "eval"]
    assert [line["step"] for line in evaluations] == [0, 2, 4]
    assert result["objective"] == pytest.approx(
        sum(line["eval_reward"] for line in evaluations[1:]) / 2
    )
    assert (result["status"], result["start"], result["completions"]) == ("finished", 0.2, 32)


def test_the_best_learning_rate_wins(make_fake: MakeTrial) -> None:
    """A search on the fake trainer has something to find."""
    rates = ("1e-4", "1e-3", "1e-2")
    folders = [make_fake(f"lr={lr}", name=f"000{i}-x") for i, lr in enumerate(rates)]
    assert [run_attempt(folder) for folder in folders] == [0, 0, 0]
    low, best, high = (result_of(folder)["objective"] for folder in folders)
    assert best > max(low, high)


def test_a_fake_trial_imports_nothing_heavy(make_fake: MakeTrial) -> None:
    """Tests of searches start hundreds of them: no torch, and none of the packages that only the
    controller needs.
    """
    folder = make_fake()
    code = (
        "import sys; from grposweep.train.__main__ import main; code = main(sys.argv[1:]); "
        "print(code, sorted({'torch', 'transformers', 'trl', 'optuna', 'scipy', 'rich', "
        "'wandb'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    ended = subprocess.run(
        command, env=environment(**SOURCE), check=True, capture_output=True, text=True
    )
    assert ended.stdout.splitlines()[-1] == "0 []"


def test_a_crash_is_written_down_with_its_last_lines(
    make_fake: MakeTrial, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report can say why without opening logs."""
    folder = make_fake("trainer.args.crash_at=3")
    assert run_attempt(folder) == ExitCode.FAILED
    failure = result_of(folder)["failure"]
    assert (result_of(folder)["status"], result_of(folder)["step"]) == ("failed", 2)
    assert failure["kind"] == "RuntimeError"
    assert "staged" in failure["message"]
    assert "staged" in failure["last_lines"][-1]
    assert "Traceback" in capsys.readouterr().err


def test_a_stop_request_ends_at_the_next_rollout_boundary_with_a_checkpoint(
    make_fake: MakeTrial,
) -> None:
    """Step 1 is in the middle of a rollout, where no resume would be exact."""
    # a rollout lasts two steps
    folder = make_fake("batch.num_iterations=2")
    control(folder, "stop")
    assert run_attempt(folder) == ExitCode.STOPPED
    result = result_of(folder)
    assert (result["status"], result["step"], result["failure"]) == ("stopped", 2, None)
    assert (folder / result["checkpoint"]).exists()


def test_the_failure_of_another_node_is_not_hidden_by_the_stop_that_it_caused(
    make_fake: MakeTrial,
) -> None:
    """Slurm ends the other nodes' processes by SIGTERM as soon as one has failed."""
    folder = make_fake()
    control(folder, "stop")
    TrialResult(
        TrialStatus.FAILED, 0, failure=FailureReport("ConnectionError", "Ray ended on node 1")
    ).write(folder)
    assert run_attempt(folder) == ExitCode.FAILED
    assert result_of(folder)["failure"]["message"] == "Ray ended on node 1"


def test_a_pause_may_name_its_step_and_the_next_attempt_continues_from_there(
    make_fake: MakeTrial,
) -> None:
    """Two attempts leave the same metrics as one."""
    paused = make_fake("trainer.args.noise=0.1")
    straight = make_fake("trainer.args.noise=0.1", name="0001-b")
    control(paused, "pause", until_step=3)
    assert run_attempt(paused) == ExitCode.STOPPED
    assert result_of(paused)["step"] == 3
    control(paused, "run")
    append_line(paused / "attempts.jsonl", {"attempt": 1})
    assert run_attempt(paused) == run_attempt(straight) == ExitCode.FINISHED
    assert metrics_of(paused, timeless=True) == metrics_of(straight, timeless=True)
    assert result_of(paused)["attempt"] == 1


def test_a_trial_under_a_budget_gives_its_controller_time_to_pause_it(make_fake: MakeTrial) -> None:
    """Its steps take no time, so that without a wait a trial would end before its first evaluation
    is judged.
    """
    folder = make_fake("search.budget=4x")

    def pause_when_evaluated() -> None:
        wait_for(
            lambda: (folder / "metrics.jsonl").exists() and metrics_of(folder)[-1]["step"] == 2
        )
        control(folder, "pause")

    with ThreadPoolExecutor() as pool:
        pool.submit(pause_when_evaluated)
        assert run_attempt(folder) == ExitCode.STOPPED
    assert result_of(folder)["step"] == 2


def test_sigterm_is_a_stop_request(make_fake: MakeTrial) -> None:
    """Launchers and Slurm send it; the trial can be continued."""
    folder = make_fake("trainer.args.step_seconds=0.05", "schedule.max_steps=2000")
    process = subprocess.Popen(
        [sys.executable, "-m", "grposweep.train", str(folder)], env=environment(**SOURCE)
    )
    wait_for((folder / "heartbeat").exists)
    process.terminate()
    assert process.wait(timeout=10) == ExitCode.STOPPED
    assert result_of(folder)["status"] == "stopped"


def test_a_metric_that_does_not_exist_is_bad_input_that_names_those_that_do(
    make_fake: MakeTrial, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message, no traceback, exit code 2."""
    folder = make_fake("search.metric=eval_accuracy")
    assert run_attempt(folder) == ExitCode.BAD_INPUT
    assert result_of(folder)["failure"]["kind"] == "unknown_metric"
    # found at the first evaluation
    assert result_of(folder)["step"] == 1
    error = capsys.readouterr().err
    assert "eval_reward" in error
    assert "Traceback" not in error


def test_the_number_of_processes_must_be_the_planned_one(
    make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number would silently change the batch."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder = make_fake()
    assert run_attempt(folder) == ExitCode.BAD_INPUT
    assert "cluster.processes=1" in result_of(folder)["failure"]["message"]


@pytest.mark.slow
def test_a_second_rank_ends_as_the_first_one_ends(
    make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes nothing and has the same exit code."""
    folder = make_fake("cluster.processes=2", "batch.per_device_train_batch_size=4")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "grposweep.train", str(folder)],
            env=environment(WORLD_SIZE="2", RANK=str(rank), **SOURCE),
        )
        for rank in (1, 0)
    ]
    assert [rank.wait(timeout=20) for rank in ranks] == [0, 0]
    assert len([line for line in metrics_of(folder) if line["kind"] == "train"]) == 4


def test_an_old_result_is_gone_while_a_new_attempt_runs(make_fake: MakeTrial) -> None:
    """A result always belongs to the attempt that it names."""
    folder = make_fake()
    assert run_attempt(folder) == ExitCode.FINISHED
    append_line(folder / "attempts.jsonl", {"attempt": 1})
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("args: {}", "args: {crash_at: 1}"))
    assert run_attempt(folder) == ExitCode.FAILED
    assert (result_of(folder)["attempt"], result_of(folder)["status"]) == (1, "failed")


def test_the_heartbeat_shows_where_an_attempt_is(make_fake: MakeTrial) -> None:
    """Step, total and the best so far, for the live display."""
    folder = make_fake()
    run_attempt(folder)
    beat = read_json(folder / "heartbeat") or {}
    assert (beat["step"], beat["total"]) == (4, 4)
    assert beat["best"] == pytest.approx(result_of(folder)["objective"])


def test_a_folder_that_is_no_trial_gets_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback for a mistyped path."""
    assert run_attempt(tmp_path) == ExitCode.BAD_INPUT
    assert "no trial folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "attempts.jsonl", ".heartbeat.json.attempt.new"])
def test_a_file_of_a_sweep_that_is_a_link_is_not_written_through(
    make_fake: MakeTrial, tmp_path: Path, name: str
) -> None:
    """A sweep of others may hold links to the user's own files."""
    own = tmp_path / "bashrc"
    own.write_text("alias ll='ls -l'\n")
    folder = make_fake()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(own)
    with contextlib.suppress(OSError):
        run_attempt(folder)
    assert own.read_text() == "alias ll='ls -l'\n"
