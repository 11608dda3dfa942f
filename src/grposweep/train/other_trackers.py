"""Trackio, SwanLab and MLflow: one run a trial, whose later attempts continue it. Offline all files are in the sweep's folder."""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from grposweep import schema
from grposweep.planning import Plan
from grposweep.storage import paths
from grposweep.train.tracker import RunTracker, columns, run_id


class TrackioTracker(RunTracker):
    """Trackio. Offline all trials share the sweep's ``trackio/``; online a Space or a server that a variable names."""

    label = "Trackio"
    servers = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")

    def start(self, experiment: schema.Experiment, plan: Plan) -> None:
        if self.is_offline:
            os.environ["TRACKIO_DIR"] = str(self.sweep / paths.TRACKIO)  # read when trackio is imported
            for name in self.servers:
                os.environ.pop(name, None)
            for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
                del sys.modules[name]  # TRL and the warm server have imported it with the user's folder
        import trackio

        about = {"tags": list(self.options.tags), "notes": self.options.notes}
        self.run = trackio.init(
            project=self.options.project,
            name=self.folder.name if self.is_offline else run_id(self.folder),  # it resumes by name
            group=self.sweep.name,
            config=columns(experiment, plan, self.folder) | about,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def _write(self, run: Any, values: dict[str, Any], step: int) -> None:
        run.log({name: value for name, value in values.items() if name != "step"}, step=step)  # its own name

    def summarise(self, values: dict[str, Any]) -> None:  # Trackio has no summary
        numbers = {f"summary/{name}": value for name, value in values.items() if isinstance(value, int | float)}
        self._attempt(lambda run: run.log(numbers, step=values["step"]))

    def finish(self) -> None:
        self._attempt(lambda run: run.finish())
        self.run = None


class SwanlabTracker(RunTracker):
    """SwanLab. Offline in the trial's ``swanlog/``, for ``swanlab sync``; online with your login or ``SWANLAB_API_KEY``.

    An offline run cannot be continued. So a later attempt writes it again, with the lines that metrics.jsonl has kept.
    """

    label = "SwanLab"

    def start(self, experiment: schema.Experiment, plan: Plan) -> None:
        logs = self.folder.resolve() / paths.SWANLOG
        if self.is_offline:
            os.environ["SWANLAB_ROOT"] = str(logs)  # otherwise the user's own folder is made
            self.behind = logs.is_dir()
            shutil.rmtree(logs, ignore_errors=True)
        import swanlab

        continued = {} if self.is_offline else {"id": run_id(self.folder), "resume": "allow"}
        self.run = swanlab.init(
            project=self.options.project,
            workspace=self.options.entity,
            name=self.folder.name,
            group=self.sweep.name,
            description=self.options.notes,
            tags=self.options.tags or None,
            config=columns(experiment, plan, self.folder),
            log_dir=str(logs),
            mode=self.options.mode,
            settings=swanlab.Settings(
                interactive=False,
                terminal={"proxy_type": "none"},  # logs/ has the output
                probe=dict.fromkeys(("hardware", "runtime", "requirements", "git", "monitor"), False),
            ),
            **continued,
        )

    def _write(self, run: Any, values: dict[str, Any], step: int) -> None:
        run.log({name: value for name, value in values.items() if isinstance(value, int | float)}, step=step)

    def summarise(self, values: dict[str, Any]) -> None:
        self._attempt(lambda run: run.config.update({"summary": values}))

    def finish(self) -> None:
        self._attempt(lambda run: run.finish())
        self.run = None


LONGEST = 500  # characters of a parameter's value that every MLflow store takes
BATCH = 100  # parameters that MLflow takes at once


class MlflowTracker(RunTracker):
    """MLflow. Offline a store of files in the sweep's ``mlruns/``; online the server of ``MLFLOW_TRACKING_URI``."""

    label = "MLflow"

    def start(self, experiment: schema.Experiment, plan: Plan) -> None:
        store = None
        if self.is_offline:
            # Several trials write at once, also from other machines: MLflow's SQLite store is not made for that.
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
            store = (self.sweep / paths.MLRUNS).as_uri()
        from mlflow import MlflowClient

        self._client = MlflowClient(store)
        group, name = self._experiment(self.options.project), run_id(self.folder)
        found = self._client.search_runs([group], filter_string=f"tags.`grposweep.trial` = '{name}'", max_results=1)
        if found:
            self.run = found[0].info.run_id
            self._client.update_run(self.run, status="RUNNING")
        else:
            tags = {"grposweep.trial": name, "grposweep.sweep": self.sweep.name} | dict.fromkeys(self.options.tags, "")
            notes = {"mlflow.note.content": self.options.notes} if self.options.notes else {}
            self.run = self._client.create_run(group, run_name=self.folder.name, tags=tags | notes).info.run_id
            self._log_parameters(columns(experiment, plan, self.folder))

    def _experiment(self, project: str) -> str:
        """Return the id of the project's experiment, which another trial may make at the same time."""
        from mlflow.exceptions import MlflowException

        for _ in range(3):
            if (found := self._client.get_experiment_by_name(project)) is not None:
                return str(found.experiment_id)
            try:
                return str(self._client.create_experiment(project))
            except MlflowException:
                time.sleep(1)
        raise ConnectionError(f"MLflow takes no experiment of the name {project}.")

    def _log_parameters(self, config: dict[str, Any]) -> None:
        from mlflow.entities import Param

        content = {key: value for key, value in config.items() if key not in ("experiment", "plan")} | config[
            "experiment"
        ]
        texts = {key: str(value) for key, value in _flat(content) if value not in (None, "", [], {})}  # a key once
        parameters = [Param(key, text[:LONGEST]) for key, text in texts.items()]
        for start in range(0, len(parameters), BATCH):
            self._client.log_batch(self.run, params=parameters[start : start + BATCH])

    def _write(self, run: Any, values: dict[str, Any], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        numbers = [Metric(name, value, now, step) for name, value in values.items() if isinstance(value, int | float)]
        self._client.log_batch(run, metrics=numbers)

    def summarise(self, values: dict[str, Any]) -> None:
        numbers = {f"summary/{name}": value for name, value in values.items() if value is not None and name != "status"}
        self._attempt(lambda run: self._write(run, numbers, values["step"]))
        self._attempt(lambda run: self._client.set_terminated(run, "FINISHED"))

    def fail(self) -> None:
        self._attempt(lambda run: self._client.set_terminated(run, "FAILED"))

    def finish(self) -> None:
        """Leave the run as it is: an attempt that stopped is continued."""
        self.run = None


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
