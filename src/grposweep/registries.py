"""Registries of everything that is chosen by name: external trainers, tasks, trackers, launchers, samplers, stopping policies.

The values are imported when they are first used. So configuration checks and command-line choices read the names without
importing torch or Optuna, and a lower package may know the names of entries in upper ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grporecipe.registries import Lazy
from grposweep.external import ExternalTrainer


@dataclass(frozen=True)
class Sampler:
    """How the next point is chosen. ``build(seed, common)`` makes the Optuna sampler; None if all points are known beforehand.

    ``lists_points``: all points are known before the first trial and every trial runs to its end, so nothing stops
    early.
    """

    build: Callable[..., Any] | None = None
    lists_points: bool = False


# search.sampler (``auto`` chooses one)
SAMPLERS: dict[str, Sampler] = {
    "grid": Sampler(lists_points=True),
    "one_factor": Sampler(lists_points=True),
    "tpe": Sampler(Lazy("grposweep.search.sampler:build_tpe")),
    "random": Sampler(Lazy("grposweep.search.sampler:build_random")),
}

# search.stopping (``auto`` chooses one): a class that follows search.early_stopping.StoppingPolicy
POLICIES: dict[str, Callable[..., Any]] = {
    "none": Lazy("grposweep.search.early_stopping:NoStopping"),
    "median": Lazy("grposweep.search.early_stopping.optuna_pruners:MedianPolicy"),
    "asha": Lazy("grposweep.search.early_stopping.optuna_pruners:AshaPolicy"),
    "hyperband": Lazy("grposweep.search.early_stopping.optuna_pruners:HyperbandPolicy"),
    "rank": Lazy("grposweep.search.early_stopping.rank:RankPolicy"),
}


def suggest_search_key(key: str, value: object) -> str:
    """Return the sentence that names the key of ``search`` which takes a value that ``key`` does not; empty if none does."""
    if key == "search.stopping" and value in SAMPLERS:
        return f" {value} is a sampler: set search={value}."
    is_policy = key in ("search", "search.sampler") and value in POLICIES
    return f" {value} is an early-stopping policy: set search.stopping={value}." if is_policy else ""


# task.kind: a function from schema.Task to training and held-out rows
TASKS: dict[str, Callable[..., Any]] = {
    "arithmetic": Lazy("grposweep.train.tasks.arithmetic:load_pairs"),
    "calculator": Lazy("grposweep.train.tasks.arithmetic:load_products"),
    "gsm8k": Lazy("grposweep.train.tasks.files:load_gsm8k"),
    "jsonl": Lazy("grposweep.train.tasks.files:load_jsonl"),
}

# tracker.kind: a class that takes schema.Tracker and the trial's folder, and follows train.tracker.Tracker
TRACKERS: dict[str, Callable[..., Any]] = {
    "none": Lazy("grposweep.train.tracker:Tracker"),
    "wandb": Lazy("grposweep.train.tracker:WandbTracker"),
    "tensorboard": Lazy("grposweep.train.tracker:ReportTo"),
    "trackio": Lazy("grposweep.train.tracker:ReportTo"),
    "swanlab": Lazy("grposweep.train.tracker:ReportTo"),
    "mlflow": Lazy("grposweep.train.tracker:ReportTo"),
}

# trainer.kind: the programs that train instead of TRL's trainer in this process or the fake one
EXTERNAL = {
    "script": ExternalTrainer("trl", Lazy("grposweep.external.script:build_script"), needs_script=True),
    "open-r1": ExternalTrainer("open-r1", Lazy("grposweep.external.script:build_script"), needs_script=True),
    "ms-swift": ExternalTrainer("ms-swift", Lazy("grposweep.external.ms_swift:build_ms_swift")),
    "easyr1": ExternalTrainer(
        "easyr1", Lazy("grposweep.external.ray:build_easyr1"), output="trainer.save_checkpoint_path", ray_cpus=3
    ),
    "verl": ExternalTrainer(
        "verl", Lazy("grposweep.external.ray:build_verl"), output="trainer.default_local_dir", ray_cpus=4
    ),
}

# cluster.kind: a subclass of launchers.base.Launcher
LAUNCHERS: dict[str, Any] = {
    "local": Lazy("grposweep.launchers.local:Local"),
    "slurm": Lazy("grposweep.launchers.slurm.launcher:Slurm"),
    "dry_run": Lazy("grposweep.launchers.dry_run:DryRun"),
}
