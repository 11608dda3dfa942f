"""One attempt at a trial: what its folder says, its plan, and how it reports."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grporecipe.errors import UserError
from grporecipe.files import read_json
from grporecipe.planning import Plan, build_plan
from grporecipe.setting import Setting
from grposweep.config.compose import load_experiment
from grposweep.config.identity import prepared_key
from grposweep.config.native_keys import trial_setting
from grposweep.config.to_setting import read_setting
from grposweep.registries import is_external, ranks_follow, runs_trl
from grposweep.schema import Experiment, Task
from grposweep.storage import paths
from grposweep.storage.checkpoints import Checkpoint, newest_checkpoint, set_aside
from grposweep.storage.completions import rewind_completions
from grposweep.storage.forks import start_of_fork
from grposweep.storage.inputs import TrialInputs
from grposweep.storage.records import apply_oom_fix, read_attempts
from grposweep.train import process as watchdog
from grposweep.train.records import (
    ControlFile,
    HeartbeatFile,
    MetricsFile,
    Objective,
    RolloutSchedule,
    build_rollout_schedule,
    check_objective,
)
from grposweep.train.tracker import Tracker, build_tracker


@dataclass
class Attempt:
    """One rank of one execution of a trial. Only rank 0 writes the files.

    Where another program starts the ranks, ``rank`` and ``ranks`` count our processes, one per node.
    """

    folder: Path
    number: int
    rank: int
    ranks: int
    experiment: Experiment
    setting: Setting
    plan: Plan
    pace: RolloutSchedule
    metrics: MetricsFile
    heartbeat: HeartbeatFile
    control: ControlFile
    tracker: Tracker
    stacks: watchdog.StackWriter
    inputs: TrialInputs = field(default_factory=TrialInputs)
    terminated: bool = field(default=False)  # SIGTERM or SIGUSR2 came
    began: float = field(default_factory=time.monotonic)  # the time of day may be set meanwhile
    _evaluated: int | None = None  # the step of the first evaluation
    _is_metric_known: bool = False

    @property
    def seconds(self) -> float:
        """For how long it has run."""
        return time.monotonic() - self.began

    @property
    def is_main(self) -> bool:
        """Return whether this rank writes the files."""
        return self.rank == 0

    @property
    def checkpoints(self) -> Path:
        """Transformers' checkpoint-N folders."""
        return self.folder / paths.CHECKPOINTS

    @property
    def total(self) -> int:
        """Optimizer steps of the whole trial; 0 where only another program knows."""
        return self.plan.total_steps or 0

    @property
    def devices(self) -> float:
        """Return the devices of a run: the job's GPUs, including a vLLM server's; a rank without a GPU counts as one.

        Of a shared server it is this trial's part, if the server has no place that is free.
        """
        return watchdog.devices(self.experiment) + self._part_of_server()

    def _part_of_server(self) -> float:
        if not (self.experiment.generation.vllm_shared_gpus and runs_trl(self.experiment.trainer.kind)):
            return 0.0
        served = load_experiment(self.folder.parent.parent / paths.SHARED_SERVER / paths.CONFIG)
        return served.generation.vllm_shared_gpus / (served.search.parallel or 1)

    @property
    def task(self) -> Task:
        """Return the task with the sweep's copies of the user's files."""
        return self.inputs.task(self.experiment.task)

    def begin(self) -> Checkpoint | None:
        """Return the newest complete checkpoint, a fork's first one, or None; metrics go back to its step. Only for rank 0."""
        found, fork = newest_checkpoint(self.checkpoints, self.ranks), self.experiment.trainer.fork
        set_aside(self.checkpoints, self.ranks)
        if found is None and fork is not None:
            found = start_of_fork(self.folder, fork)
        step = None if found is None else found.step
        self.metrics.rewind(step)
        rewind_completions(self.folder, step)
        return found

    def beat(self, step: int, force: bool = False) -> None:
        """Give a sign of life, on every rank; the first rank writes it to the heartbeat."""
        watchdog.feed(self.experiment.cluster.stall_min)
        self.stacks.step = step
        if self.is_main:
            self.heartbeat.beat(step, force)

    def asks_to_stop(self, step: int) -> bool:
        """Return whether this rank was asked to end at this step. The ranks must still agree."""
        return self.terminated or (self.is_main and self.control.asks_to_stop(step))

    def log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Write one line of metrics, on rank 0, to the file and the tracker."""
        if not self.is_main:
            return
        line = self.metrics.write(kind, step, self.pace.completions_at(step), values)
        self._check_metric(kind, step)
        self.tracker.log(line)
        value = line.get(self.experiment.search.metric)
        if value is not None:
            better = max if self.experiment.search.direction == "maximize" else min
            self.heartbeat.best = value if self.heartbeat.best is None else better(self.heartbeat.best, value)

    def _check_metric(self, kind: str, step: int) -> None:
        """Raise UserError if the first evaluation has not reported the objective; one step later all of its lines are there."""
        if self._evaluated is None and kind == "eval":
            self._evaluated = step
        elif self._evaluated is not None and step > self._evaluated and not self._is_metric_known:
            lines, search = self.metrics.lines(), self.experiment.search
            if not any(search.metric in line for line in lines):
                check_objective(lines, search.metric, Objective(None, None, None, None))
            self._is_metric_known = True


@dataclass(frozen=True)
class Outcome:
    """How a trainer ended; ``model`` and ``checkpoint`` are paths within the trial folder."""

    stopped: bool
    step: int
    model: str | None = None
    checkpoint: str | None = None


def load_attempt(folder: Path) -> Attempt:
    """Everything that a trainer needs, out of the trial folder and torchrun's environment."""
    experiment = apply_oom_fix(folder, load_experiment(folder / paths.CONFIG))
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    is_theirs = is_external(experiment.trainer.kind)
    if not is_theirs and ranks != experiment.cluster.processes:
        instead = "" if ranks_follow(experiment.cluster.kind) else f", or set cluster.processes={ranks}"
        raise UserError(
            f"cluster.processes={experiment.cluster.processes}, but this trial was started with {ranks} processes "
            f"(WORLD_SIZE). Start {experiment.cluster.processes} of them{instead}."
        )
    setting = read_own_setting(folder, experiment)
    plan = build_plan(setting)
    if not is_theirs:  # another program may count prompts that we do not know
        check_schedule(setting, plan)
    number = attempt_number(folder)
    inputs = TrialInputs.read(folder)
    inputs.check()
    return Attempt(
        folder=folder,
        number=number,
        rank=rank,
        ranks=ranks,
        experiment=experiment,
        setting=setting,
        plan=plan,
        pace=build_rollout_schedule(setting),
        metrics=MetricsFile(folder, number),
        heartbeat=HeartbeatFile(folder, plan.total_steps or 0),
        control=ControlFile(folder),
        tracker=build_tracker(experiment.tracker, folder, is_main=rank == 0),
        stacks=watchdog.StackWriter(folder, rank, ranks, number, experiment.cluster.stall_min),
        inputs=inputs,
    )


def read_own_setting(folder: Path, experiment: Experiment) -> Setting:
    """A program's from its own recipe as the trial holds it, ours from the configuration and what preparation counted."""
    if is_external(experiment.trainer.kind):
        return trial_setting(folder, experiment)
    return read_setting(experiment, read_prepared(folder, experiment))


def read_prepared(folder: Path, experiment: Experiment) -> Mapping[str, Any]:
    """Return the results of preparation for a trial's model and task; empty without preparation."""
    entries = (read_json(folder.parent.parent / paths.PREPARED) or {}).get("entries", {})
    found = entries.get(prepared_key(experiment))
    return found if isinstance(found, dict) else {}


def prepared_weights(folder: Path, experiment: Experiment) -> str | None:
    """Return the hash of the weights that preparation noted (a hub model's commit), or None without preparation."""
    hashes = read_prepared(folder, experiment).get("hashes")
    return hashes.get("model") if isinstance(hashes, dict) else None


def check_schedule(setting: Setting, plan: Plan) -> None:
    """There is something to train; TRL itself would end at once, successfully."""
    if not plan.total_steps:
        raise UserError(
            f"schedule (max_steps={setting.max_steps}, epochs={setting.epochs}, "
            f"budget_completions={setting.budget_completions}) gives no optimizer step: a rollout is "
            f"{plan.completions_per_rollout} completions, and {setting.train_prompts} training prompts are known. "
            "Set a larger schedule or a smaller batch. With schedule=epochs, run the sweep's own "
            "command first: it counts the prompts."
        )


def attempt_number(folder: Path) -> int:
    """$GRPOSWEEP_ATTEMPT, or the last one that the controller has announced."""
    if announced := os.environ.get("GRPOSWEEP_ATTEMPT"):
        return int(announced)
    return max((event.attempt for event in read_attempts(folder)), default=0)
