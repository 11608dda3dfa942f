"""W&B for real, offline; and a W&B that fails late must not cost a training."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from grporecipe.errors import ExitCode
from grporecipe.files import write_json
from grposweep import schema
from grposweep.config.validate import check_tracker
from grposweep.storage.completions import KeptCompletion, keep_completions
from grposweep.train import tracker
from grposweep.train.attempt import load_attempt
from grposweep.train.run import run_attempt

from .conftest import MakeTrial, metrics_of, result_of


@pytest.mark.slow
def test_a_trial_is_a_run_under_its_own_folder_and_id(make_fake: MakeTrial) -> None:
    """Group, name, tags, configuration, plan, metrics and summary are in what `wandb sync`
    sends.
    """
    folder = make_fake("tracker.kind=wandb", "tracker.tags=[first]", "tracker.notes=why")
    assert run_attempt(folder) == ExitCode.FINISHED
    (run,) = (folder / "wandb").glob("offline-run-*")
    assert run.name.endswith(tracker.run_id(folder))
    records = (run / f"run-{tracker.run_id(folder)}.wandb").read_bytes()
    for word in (
        b"a sweep",
        b"0000-a",
        b"first",
        b"why",
        b"objective_high",
        b"eval_reward_se",
        b"total_steps",
        b"objective",
        b'"finished"',
    ):
        assert word in records


@pytest.mark.slow
def test_two_offline_attempts_are_one_run_with_the_whole_history(
    make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line of metrics.jsonl once, in one folder."""
    folder = make_fake("tracker.kind=wandb")
    write_json(folder / "control.json", {"action": "stop", "until_step": 3})
    assert run_attempt(folder) == ExitCode.STOPPED
    (folder / "control.json").unlink()
    monkeypatch.setenv("GRPOSWEEP_ATTEMPT", "1")
    written = []
    log = tracker.WandbTracker._log
    monkeypatch.setattr(
        tracker.WandbTracker, "_log", lambda self, line: (written.append(line), log(self, line))
    )
    assert run_attempt(folder) == ExitCode.FINISHED
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 1
    assert [line["step"] for line in written] == [line["step"] for line in metrics_of(folder)]
    assert {line["attempt"] for line in written} == {0, 1}


@pytest.mark.slow
def test_kept_completions_are_tables_of_the_run_also_those_of_earlier_attempts(
    make_fake: MakeTrial,
) -> None:
    """Read from W&B's own files: a row per completion, with its prompt, rewards and whether it was
    cut off.
    """
    folder = make_fake("tracker.kind=wandb")
    for step in (0, 2):
        attempt = load_attempt(folder)
        kept = [
            KeptCompletion(
                step, 0, 0.5, 1, "1+1=", f"{step}<b>", 0.7, {"exact": 0.7}, truncated=True
            )
        ]
        keep_completions(folder, kept)
        attempt.tracker.start(attempt.experiment, attempt.plan)
        attempt.tracker.log_completions(step, kept)
        attempt.log("eval", step, {"eval_reward": 0.5})
        attempt.tracker.finish()
    (run,) = (folder / "wandb").glob("offline-run-*")
    tables = [json.loads(path.read_text()) for path in run.glob("files/media/table/*.table.json")]
    assert sorted(row for table in tables for row in table["data"]) == [
        [step, "1+1=", f"{step}<b>", 0.7, 0.7, True] for step in (0, 2)
    ]
    assert tables[0]["columns"] == [
        "step",
        "prompt",
        "completion",
        "reward",
        "rewards/exact",
        "truncated",
    ]


def test_the_run_is_the_same_for_every_attempt_and_another_in_another_sweep(tmp_path: Path) -> None:
    """Trial names repeat from sweep to sweep."""
    one, other = (tmp_path / sweep / "trials" / "0000-a" for sweep in ("a", "b"))
    assert tracker.run_id(one) == tracker.run_id(one)
    assert tracker.run_id(one) != tracker.run_id(other)


def test_a_tracker_that_cannot_start_fails_the_attempt(
    make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better now than after a night without curves."""

    def refuse(*_: Any) -> None:
        raise ConnectionError("no route to W&B")

    monkeypatch.setattr(tracker.WandbTracker, "start", refuse)
    folder = make_fake("tracker.kind=wandb")
    assert run_attempt(folder) == ExitCode.FAILED
    assert result_of(folder)["failure"]["message"] == "no route to W&B"


def test_a_tracker_that_fails_later_warns_once(
    make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The training continues and metrics.jsonl is whole."""

    class Violation:
        def __getattr__(self, name: str) -> Any:
            raise ConnectionError("gone")

    monkeypatch.setattr(
        tracker.WandbTracker, "start", lambda self, *_: setattr(self, "run", Violation())
    )
    folder = make_fake("tracker.kind=wandb")
    assert run_attempt(folder) == ExitCode.FINISHED
    assert capsys.readouterr().err.count("gone") == 1
    assert len(metrics_of(folder)) == 7


@pytest.mark.slow
@pytest.mark.parametrize("error", ["CommError", "AuthenticationError"])
def test_a_server_that_is_away_costs_a_warning_and_a_refused_key_the_attempt(
    make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch, capsys: Any, error: str
) -> None:
    """The run is written offline, and the warning has the command that sends it."""
    import wandb

    init = wandb.init

    def away(**arguments: Any) -> Any:
        if arguments["mode"] == "online":
            raise getattr(wandb.errors, error)("connection refused")
        return init(**arguments)

    monkeypatch.setattr(wandb, "init", away)
    folder = make_fake("tracker.kind=wandb", "tracker.mode=online")
    is_away = error == "CommError"
    assert run_attempt(folder) == (ExitCode.FINISHED if is_away else ExitCode.FAILED)
    assert len(list((folder / "wandb").glob("offline-run-*"))) == is_away
    command = f"wandb sync {shlex.quote(str(folder / 'wandb'))}/offline-run-*"
    assert (command in capsys.readouterr().err) == is_away


def test_below_an_agent_of_wandb_each_trial_is_a_run_of_its_own(
    make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent sets the id of its own run, and in its sweep W&B drops ours."""
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc")
    monkeypatch.setenv("WANDB_RUN_ID", "fixed")
    folder = make_fake("tracker.kind=wandb")
    assert run_attempt(folder) == ExitCode.FINISHED
    (run,) = (folder / "wandb").glob("offline-run-*")
    assert run.name.endswith(tracker.run_id(folder))


@pytest.mark.parametrize("kind", ["tensorboard", "trackio", "swanlab", "mlflow"])
def test_trls_own_trackers_are_named_to_it(
    make_trial: MakeTrial, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Offline their variables name the trial's folder and no server."""
    monkeypatch.setattr(os, "environ", {**os.environ, "TRACKIO_SPACE_ID": "me/space"})
    attempt = load_attempt(make_trial(f"tracker.kind={kind}"))
    attempt.tracker.start(attempt.experiment, attempt.plan)
    assert attempt.tracker.report_to == (kind,)
    assert (
        os.environ["MLFLOW_TRACKING_URI"]
        == os.environ["SWANLAB_LOG_DIR"]
        == str(attempt.folder / kind)
    )
    assert os.environ["SWANLAB_MODE"] == "offline"
    assert "TRACKIO_SPACE_ID" not in os.environ


@pytest.mark.parametrize("kind", ["trackio", "swanlab", "mlflow", "wandb"])
def test_a_missing_package_is_one_message_with_the_command(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is trained; another Python of cluster.python may have it."""
    monkeypatch.setattr("grposweep.config.validate.find_spec", lambda _: None)
    experiment = schema.Experiment(tracker=schema.Tracker(kind=kind))
    package = {"swanlab": "'swanlab<0.8'"}.get(kind, kind)
    (problem,) = check_tracker(experiment)
    assert f"pip install {package}, or set tracker=none" in problem
    experiment.cluster.python = "apptainer exec image.sif python"
    assert not [*check_tracker(experiment)]
    assert not [
        *check_tracker(schema.Experiment(tracker=schema.Tracker(kind=kind, mode="disabled")))
    ]
