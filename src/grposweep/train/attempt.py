"""One attempt as its trainer sees it: the trial folder read, the plan made, the files that rank 0 writes.

No torch here: the fake trainer starts in a fraction of a second.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grposweep.config.compose import load_experiment
from grposweep.config.identity import prepared_key
from grposweep.config.native_keys import trial_setting
from grposweep.config.to_setting import read_setting
from grposweep.errors import UserError
from grposweep.files import read_json
from grposweep.planning import Plan, build_plan
from grposweep.schema import Experiment, is_external
from grposweep.setting import Setting
from grposweep.storage import paths
from grposweep.storage.records import apply_oom_fix, read_attempts
from grposweep.train import process as watchdog
from grposweep.train.records import ControlFile, HeartbeatFile, MetricsFile, RolloutSchedule, build_rollout_schedule
from grposweep.train.tracker import Tracker, build_tracker


@dataclass
class Attempt:
    """One rank of one execution of a trial; the files are rank 0's to write.

    Where another program starts the ranks, ``rank`` and ``ranks`` count our processes, one a node.
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
    terminated: bool = field(default=False)  # SIGTERM or SIGUSR2 came

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the files."""
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
    def devices(self) -> int:
        """What a run of it holds: the job's GPUs, those of a vLLM server among them; a rank without a GPU counts as one."""
        return watchdog.devices(self.experiment)

    def beat(self, step: int, force: bool = False) -> None:
        """A sign of life, from every rank; the first one writes it down."""
        watchdog.feed(self.experiment.cluster.stall_min)
        if self.is_main:
            self.heartbeat.beat(step, force)

    def asks_to_stop(self, step: int) -> bool:
        """Whether this rank has been told to end at this step; ranks must still agree."""
        return self.terminated or (self.is_main and self.control.asks_to_stop(step))

    def log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """One line of metrics, from rank 0, to the file and the tracker."""
        if not self.is_main:
            return
        line = self.metrics.write(kind, step, self.pace.completions_at(step), values)
        self.tracker.log(line)
        value = line.get(self.experiment.search.metric)
        if value is not None:
            better = max if self.experiment.search.direction == "maximize" else min
            self.heartbeat.best = value if self.heartbeat.best is None else better(self.heartbeat.best, value)


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
        raise UserError(
            f"cluster.processes={experiment.cluster.processes}, but this trial was started with {ranks} processes "
            f"(WORLD_SIZE). Start {experiment.cluster.processes} of them, or set cluster.processes={ranks}."
        )
    setting = read_own_setting(folder, experiment)
    plan = build_plan(setting)
    if not is_theirs:  # another program may count prompts that we do not know
        check_schedule(setting, plan)
    number = attempt_number(folder)
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
    )


def read_own_setting(folder: Path, experiment: Experiment) -> Setting:
    """A program's from its own recipe as the trial holds it, ours from the configuration and what preparation counted."""
    if is_external(experiment.trainer.kind):
        return trial_setting(folder, experiment)
    return read_setting(experiment, read_prepared(folder, experiment))


def read_prepared(folder: Path, experiment: Experiment) -> Mapping[str, Any]:
    """Return what preparation found out about a trial's model and task; empty without preparation."""
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
            f"budget_completions={setting.budget_completions}) comes to no optimizer step: a rollout is "
            f"{plan.completions_per_rollout} completions, and {setting.train_prompts} training prompts are known. "
            "Set a larger schedule or a smaller batch, and prepare the sweep first where epochs count."
        )


def attempt_number(folder: Path) -> int:
    """$GRPOSWEEP_ATTEMPT, or the last one that the controller has announced."""
    if announced := os.environ.get("GRPOSWEEP_ATTEMPT"):
        return int(announced)
    return max((event.attempt for event in read_attempts(folder)), default=0)
