"""Trackers: where runs are shown besides metrics.jsonl. One that cannot start is an error; one that
fails later warns.

A new tracker that TRL writes (``report_to``) is a line in
``grposweep.schema.registries.TRACKERS``, with its project and offline mode in `ReportTo.start`. Any
other tracker is a class here. CONTRIBUTING.md lists all places.
"""

import hashlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from grporecipe.files import Json, read_lines
from grporecipe.model.planning import Plan
from grporecipe.terminal import short_names
from grposweep import schema
from grposweep.config.validate import check_choice
from grposweep.schema.registries import TRACKERS
from grposweep.storage import paths
from grposweep.storage.completions import KeptCompletion, read_completions
from grposweep.storage.records import TrialRecord

if TYPE_CHECKING:
    import wandb


# W&B's folder of a run
_RUN = r"(?:offline-)?run-\d{8}_\d{6}-(.+)"


class Tracker:
    """The tracker's contract, and the tracker that tracks nothing. ``report_to`` are trackers that
    TRL itself writes to.
    """

    report_to: tuple[str, ...] = ()

    def __init__(self, options: schema.Tracker, folder: Path) -> None:
        self.options = options
        self.folder = folder

    def start(self, experiment: schema.Experiment, plan: Plan) -> None:
        """Open the run. Raises an exception if that is impossible."""

    def log(self, line: Json) -> None:
        """Log one line of metrics."""

    def log_completions(self, step: int, completions: Sequence[KeptCompletion]) -> None:
        """Log the kept completions of one evaluation."""

    def summarise(self, values: Json) -> None:
        """Record the run's final values."""

    def finish(self) -> None:
        """Close the run."""


class ReportTo(Tracker):
    """A tracker that TRL's ``report_to`` writes. Offline its files are in the trial's folder;
    Trackio has its own folder.
    """

    def __init__(self, options: schema.Tracker, folder: Path) -> None:
        super().__init__(options, folder)
        self.report_to = (options.kind,)

    def start(self, experiment: schema.Experiment, plan: Plan) -> None:  # noqa: ARG002 - TRL writes the configuration
        files = str(self.folder / self.options.kind)
        project = self.options.project
        os.environ |= {
            "TENSORBOARD_LOGGING_DIR": files,
            "MLFLOW_EXPERIMENT_NAME": project,
            "SWANLAB_PROJECT": project,
        }
        if self.options.mode == "offline":
            os.environ |= {"MLFLOW_TRACKING_URI": files, "MLFLOW_ALLOW_FILE_STORE": "true"}
            os.environ |= {"SWANLAB_MODE": "offline", "SWANLAB_LOG_DIR": files}
            for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
                os.environ.pop(name, None)


def values_of(line: Json) -> Json:
    """Return the values of a line of metrics for a tracker, including step and attempt."""
    drop = ("kind", "time")
    return {name: value for name, value in line.items() if name not in drop and value is not None}


class WandbTracker(Tracker):
    """One W&B run per trial, with the sweep as its group. A later attempt continues the run (same
    id).

    An offline run cannot be continued: two attempts would leave two folders of one id, each with
    half of the history. So a later attempt writes the run again, beginning with the lines that
    metrics.jsonl has kept; but where the earlier half has been sent already, W&B appends to it, and
    the later attempt writes its own lines only. A failure after the start warns once and does not
    end the training. If W&B does not answer at the start, the run is written offline.
    """

    def __init__(self, options: schema.Tracker, folder: Path) -> None:
        super().__init__(options, folder)
        self.run: wandb.Run | None = None
        self.warned = False
        # earlier attempts' lines are to be written first
        self.behind = False

    def start(self, experiment: schema.Experiment, plan: Plan) -> None:
        # a second or two: imported only if it is needed
        import wandb

        try:
            self.run = self._open(experiment, plan, self.options.mode)
        except wandb.errors.CommError as error:
            if isinstance(error, wandb.errors.AuthenticationError):
                raise
            folder = self.folder / "wandb"
            print(
                f"W&B cannot be reached ({str(error).splitlines()[0]}), so this run is written to "
                f"{folder}. Send it later: wandb sync {shlex.quote(str(folder))}/offline-run-*",
                file=sys.stderr,
            )
            self.run = self._open(experiment, plan, "offline")

    def _open(self, experiment: schema.Experiment, plan: Plan, mode: str) -> "wandb.Run":
        """Open the run of this trial. Raises CommError if W&B does not answer."""
        import wandb

        is_offline = mode == "offline"
        if is_offline:
            self._drop_offline_runs()
        run = wandb.init(
            project=self.options.project,
            entity=self.options.entity,
            group=self.folder.parent.parent.name,
            name=self.folder.name,
            id=run_id(self.folder),
            tags=self.options.tags or None,
            notes=self.options.notes,
            config=columns(experiment, plan, self.folder),
            dir=str(self.folder),
            mode=mode,  # type: ignore[arg-type]  # build_tracker() checked the literal
            # Offline, W&B only warns about resuming; the id alone does it at `wandb sync`.
            resume=None if is_offline else "allow",
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Our own step axis: after a resume steps happen again, and W&B's drops what does not move
        # forward.
        run.define_metric("*", step_metric="step")
        return run

    def _drop_offline_runs(self) -> None:
        """Drop what earlier attempts wrote offline, unless W&B has it already."""
        earlier = list((self.folder / "wandb").glob("offline-run-*"))
        if any(any(run.glob("*.wandb.synced")) for run in earlier):
            return
        for run in earlier:
            shutil.rmtree(run, ignore_errors=run.is_symlink())
            self.behind = True

    def log_completions(self, step: int, completions: Sequence[KeptCompletion]) -> None:
        self._attempt(lambda run: _log_table(run, step, completions))

    def summarise(self, values: Json) -> None:
        self._attempt(lambda run: run.summary.update(values))

    def finish(self) -> None:
        self._attempt(_finish)
        self.run = None

    def log(self, line: Json) -> None:
        # only now: the trainer has dropped by now what lies after its checkpoint
        if self.behind:
            self.behind = False
            for earlier in list(read_lines(self.folder / paths.METRICS))[:-1]:
                self._log(earlier)
            for step, kept in read_completions(self.folder).items():
                # this evaluation's table is logged already
                if step < line["step"]:
                    self.log_completions(step, kept)
        self._log(line)

    def _log(self, line: Json) -> None:
        self._attempt(lambda run: run.log(values_of(line)))

    def _attempt(self, action: Callable[["wandb.Run"], object]) -> None:
        """Do it if the run is open."""
        if self.run is None:
            return
        try:
            action(self.run)
        except Exception as error:  # noqa: BLE001 - the client may raise anything, and the metrics are safe in metrics.jsonl
            if not self.warned:
                print(
                    f"W&B failed ({type(error).__name__}: {error}); metrics.jsonl continues.",
                    file=sys.stderr,
                )
            self.warned = True


def _log_table(run: "wandb.Run", step: int, completions: Sequence[KeptCompletion]) -> None:
    """Log a table with a row per completion, and a column for each reward."""
    import wandb

    names = list(completions[0].rewards) if completions else []
    rows = []
    for kept in completions:
        rewards = map(kept.rewards.get, names)
        rows.append([step, kept.prompt, kept.completion, kept.reward, *rewards, kept.truncated])
    columns = [
        "step",
        "prompt",
        "completion",
        "reward",
        *(f"rewards/{name}" for name in names),
        "truncated",
    ]
    run.log({"step": step, "completions": wandb.Table(columns, rows)})


def _finish(run: "wandb.Run") -> None:
    """Close a run and wait until its file is whole: finish() alone returns while the service is
    still writing (measured with wandb 0.31: in half of all short offline runs the file then held
    its header only).
    """
    import wandb

    run.finish()
    wandb.teardown()


def columns(experiment: schema.Experiment, plan: Plan, folder: Path) -> Json:
    """Return a run's configuration: the trial's parameters under their short names, then everything
    else by section.
    """
    record = TrialRecord.find(folder)
    point = None if record is None else record.point
    labels = point if isinstance(point, dict) else {}
    parameters = {word: labels[name] for name, word in short_names(labels).items()}
    return {
        "lr": experiment.lr,
        "seed": experiment.seed,
        **parameters,
        "experiment": asdict(experiment),
        "plan": plan.as_dict(),
    }


def run_id(folder: Path) -> str:
    """Return an id that all attempts of a trial share, also after its sweep was moved, and no trial
    of another sweep.
    """
    for run in (folder / "wandb").glob("*run-*"):
        if named := re.fullmatch(_RUN, run.name):
            return named[1]
    return f"{folder.name}-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:8]}"


# standard errors of a 95 % interval
NORMAL = 1.96


def with_intervals(values: Json) -> Json:
    """Return a summary with the 95 % interval of each mean that has a standard error:
    ``objective_low``, ``objective_high``.
    """
    metrics = dict(values)
    for name, error in values.items():
        mean = values.get(name.removesuffix("_se"))
        if name.endswith("_se") and error is not None and mean is not None:
            metrics |= {
                f"{name[:-3]}_low": mean - NORMAL * error,
                f"{name[:-3]}_high": mean + NORMAL * error,
            }
    return metrics


def build_tracker(options: schema.Tracker, folder: Path, is_main: bool) -> Tracker:
    """Return the tracker of one rank; only rank 0 tracks.

    Raises UserError for an unknown tracker or mode.
    """
    for key, value in (("tracker.kind", options.kind), ("tracker.mode", options.mode)):
        check_choice(key, value)
    kind = options.kind if is_main and options.mode != "disabled" else "none"
    tracker: Tracker = TRACKERS[kind](options, folder)
    return tracker
