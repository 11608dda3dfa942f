"""Trackio, SwanLab and MLflow: for real where they are installed; otherwise what each is told, by stand-ins of their modules."""

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from grposweep.config.validate import check_tracker
from grposweep.errors import ExitCode, UserError
from grposweep.files import write_json
from grposweep.schema import Experiment, Tracker
from grposweep.train.attempt import run_attempt

from .conftest import MakeTrial, metrics_of

VARIABLES = ("TRACKIO_DIR", "TRACKIO_SPACE_ID", "SWANLAB_ROOT", "MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that a tracker sets outlives its test; the user's folder is an empty one."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv(
        "MLFLOW_DISABLE_TELEMETRY", "true"
    )  # as python -m grposweep.train does before it imports anything
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def installed(kind: str) -> pytest.MarkDecorator:
    """Skip where a package is missing, with what to install."""
    return pytest.mark.skipif(find_spec(kind) is None, reason=f"needs pip install {kind}")


class Recorder:
    """A run that notes what it is told."""

    def __init__(self, **opened: Any) -> None:
        self.opened, self.logged, self.is_open = opened, list[tuple[dict[str, Any], int]](), True
        self.config: dict[str, Any] = {}

    def log(self, values: dict[str, Any], step: int) -> None:
        self.logged.append((values, step))

    def finish(self) -> None:
        self.is_open = False


STAND_IN = """
import os
import sys

init, Settings = sys.stand_ins[__name__], dict
folder = os.environ.get("TRACKIO_DIR")
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[Recorder]]:
    """``stand_in("trackio")``: the runs that a stand-in of this module opens; it can be imported more than once."""

    def make(name: str) -> list[Recorder]:
        runs: list[Recorder] = []
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # what is imported from here on is gone after the test
        del sys.modules[name]
        (tmp_path / f"{name}.py").write_text(STAND_IN)
        monkeypatch.syspath_prepend(tmp_path)
        init = {name: lambda **opened: runs.append(Recorder(**opened)) or runs[-1]}
        monkeypatch.setattr(sys, "stand_ins", init, raising=False)
        return runs

    return make


def run_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that is stopped after three steps, and one that continues."""
    write_json(folder / "control.json", {"action": "stop", "until_step": 3})
    assert run_attempt(folder) == ExitCode.STOPPED
    (folder / "control.json").unlink()
    monkeypatch.setenv("GRPOSWEEP_ATTEMPT", "1")
    assert run_attempt(folder) == ExitCode.FINISHED


def test_trackio_gets_a_run_a_trial_in_the_folder_of_the_sweep(
    make_fake: MakeTrial, stand_in: Callable[[str], list[Recorder]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline nothing goes to a Space, also if a variable names one; a later attempt continues the run."""
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    runs, folder = stand_in("trackio"), make_fake("tracker.kind=trackio", "tracker.notes=why")
    import_module("trackio")  # as TRL does before the tracker starts
    run_twice(folder, monkeypatch)
    assert import_module("trackio").folder == str(folder.parent.parent / "trackio")
    assert "TRACKIO_SPACE_ID" not in os.environ
    assert [(run.opened["name"], run.opened["group"], run.opened["resume"]) for run in runs] == [
        (folder.name, folder.parent.parent.name, "allow")
    ] * 2
    assert runs[0].opened["config"]["notes"] == "why"
    logged = [step for run in runs for values, step in run.logged if "eval_reward" in values]
    assert logged == [line["step"] for line in metrics_of(folder) if "eval_reward" in line]
    assert runs[1].logged[-1][0]["summary/objective_high"] >= runs[1].logged[-1][0]["summary/objective"]
    assert not any(run.is_open for run in runs)


def test_swanlab_writes_the_whole_history_again_because_its_offline_runs_cannot_be_continued(
    make_fake: MakeTrial, stand_in: Callable[[str], list[Recorder]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder of logs a trial, in the trial."""
    runs, folder = stand_in("swanlab"), make_fake("tracker.kind=swanlab")
    (folder / "swanlog" / "run-of-before").mkdir(parents=True)
    run_twice(folder, monkeypatch)
    assert not (folder / "swanlog" / "run-of-before").exists()
    (folder / "swanlog").mkdir()
    assert run_attempt(folder) == ExitCode.FINISHED
    assert Path(runs[0].opened["log_dir"]) == folder / "swanlog"
    assert "id" not in runs[0].opened
    assert runs[2].config["summary"]["status"] == "finished"


def test_nothing_is_opened_where_the_mode_is_disabled(make_fake: MakeTrial) -> None:
    """Also where the package is missing."""
    assert run_attempt(make_fake("tracker.kind=mlflow", "tracker.mode=disabled")) == ExitCode.FINISHED


@pytest.mark.parametrize("kind", ["trackio", "swanlab", "mlflow", "wandb"])
def test_a_missing_package_is_one_message_with_the_command(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is trained; another Python of cluster.python may have it."""
    monkeypatch.setattr("grposweep.config.validate.find_spec", lambda _: None)
    experiment = Experiment(tracker=Tracker(kind=kind))
    extra = "train" if kind == "wandb" else kind
    with pytest.raises(UserError, match=rf"pip install 'grposweep\[{extra}\]', or set tracker=none"):
        check_tracker(experiment)
    experiment.cluster.python = "apptainer exec image.sif python"
    check_tracker(experiment)
    check_tracker(Experiment(tracker=Tracker(kind=kind, mode="disabled")))


@pytest.mark.parametrize(("kind", "variable"), [("trackio", "TRACKIO_SPACE_ID"), ("mlflow", "MLFLOW_TRACKING_URI")])
def test_online_needs_a_server(kind: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise both would write into the user's own folders."""
    monkeypatch.setattr("grposweep.config.validate.find_spec", lambda _: True)
    monkeypatch.delenv(variable, raising=False)
    experiment = Experiment(tracker=Tracker(kind=kind, mode="online"))
    with pytest.raises(UserError, match=variable):
        check_tracker(experiment)
    experiment.cluster.environment = {variable: "http://server"}
    check_tracker(experiment)
    experiment.cluster.environment = {}
    monkeypatch.setenv(variable, "http://server")
    check_tracker(experiment)


@installed("trackio")
def test_trackio_for_real(make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every evaluation of both attempts is in the sweep's database, and nothing in the user's folder."""
    folder = make_fake("tracker.kind=trackio")
    run_twice(folder, monkeypatch)
    (database,) = (folder.parent.parent / "trackio").glob("*.db")
    rows = sqlite3.connect(database).execute("select run_name, step, metrics from metrics").fetchall()
    evaluated = [step for name, step, values in rows if name == folder.name and "eval_reward" in json.loads(values)]
    assert evaluated == [line["step"] for line in metrics_of(folder) if "eval_reward" in line]
    assert not list((tmp_path / "home").rglob("*"))


@installed("swanlab")
def test_swanlab_for_real(make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One run is left after two attempts, with the metrics; nothing is in the user's folder."""
    folder = make_fake("tracker.kind=swanlab")
    run_twice(folder, monkeypatch)
    (run,) = (folder / "swanlog").glob("run-*")
    assert b"eval_reward" in next(run.glob("*.swanlab")).read_bytes()
    assert not list((tmp_path / "home").rglob("*"))


def test_a_failed_attempt_ends_its_mlflow_run_as_failed(make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the run would look as if it still trained. The client is a stand-in."""
    client, mlflow, failures = MagicMock(), ModuleType("mlflow"), ModuleType("mlflow.exceptions")
    client.search_runs.return_value = []
    vars(mlflow)["MlflowClient"], vars(failures)["MlflowException"] = lambda _: client, OSError
    for name, module in (("", mlflow), (".entities", MagicMock()), (".exceptions", failures)):
        monkeypatch.setitem(sys.modules, f"mlflow{name}", module)
    assert run_attempt(make_fake("tracker.kind=mlflow", "trainer.fake.crash_at=1")) == ExitCode.FAILED
    client.set_terminated.assert_called_once_with(client.create_run.return_value.info.run_id, "FAILED")


@installed("mlflow")
def test_mlflow_for_real(make_fake: MakeTrial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One run after two attempts, finished, with parameters, metrics and the interval of the objective."""
    folder = make_fake("tracker.kind=mlflow", "tracker.tags=[first]")
    run_twice(folder, monkeypatch)
    (run,) = (path.parent for path in (folder.parent.parent / "mlruns").glob("*/*/meta.yaml"))
    assert "status: 3" in (run / "meta.yaml").read_text()
    assert (run / "params" / "optimizer.learning_rate").read_text() == "0.001"
    assert (run / "metrics" / "summary" / "objective_high").is_file()
    assert (run / "tags" / "first").is_file()
    evaluated = [int(line.split()[2]) for line in (run / "metrics" / "eval_reward").read_text().splitlines()]
    assert evaluated == [line["step"] for line in metrics_of(folder) if "eval_reward" in line]
    assert not list((tmp_path / "home").rglob("*"))
