"""Registries of everything that is chosen by name: frameworks, tasks, trackers, launchers, samplers, stopping policies.

The values are imported when they are first used. So configuration checks and command-line choices read the names without
importing torch or Optuna, and a lower package may know the names of entries in upper ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Lazy:
    """A function or class of this package, written ``module:name`` and imported at its first use."""

    target: str

    def load(self) -> Any:
        """Return the function or class."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(f"grposweep.{module}"), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.load()(*arguments, **named)


def load(entry: Any) -> Any:
    """Return a registered function or class, imported if it is `Lazy`."""
    return entry.load() if isinstance(entry, Lazy) else entry


FRAMEWORKS = {  # name on command lines: the module whose FRAMEWORK it is; the last that fits a recipe is detected
    "trl": "grposweep.frameworks.trl",
    "open-r1": "grposweep.frameworks.open_r1",
    "unsloth": "grposweep.frameworks.unsloth",
    "ms-swift": "grposweep.frameworks.ms_swift",
    "easyr1": "grposweep.frameworks.easyr1",
    "verl": "grposweep.frameworks.verl",
    "openrlhf": "grposweep.frameworks.openrlhf",
}


@dataclass(frozen=True)
class Sampler:
    """How the next point is chosen. ``build(seed, common)`` makes the Optuna sampler; None if all points are known beforehand.

    ``lists_points``: all points are known before the first trial and every trial runs to its end, so nothing stops
    early. ``several_objectives``: the sampler can search for a Pareto front. ``draws`` is how many free candidates are
    drawn before valid combinations are listed. ``imports_torch``: it runs in a helper process.
    """

    build: Callable[..., Any] | None = None
    lists_points: bool = False
    several_objectives: bool = False
    draws: int = 64
    imports_torch: bool = False


# search.sampler (``auto`` chooses one)
SAMPLERS: dict[str, Sampler] = {
    "grid": Sampler(lists_points=True, several_objectives=True),
    "one_factor": Sampler(lists_points=True),
    "tpe": Sampler(Lazy("search.sampler:build_tpe"), several_objectives=True),
    "random": Sampler(Lazy("search.sampler:build_random"), several_objectives=True),
    "gp": Sampler(
        Lazy("search.sampler:build_gp"), draws=2, imports_torch=True
    ),  # it proposes the same optimum repeatedly
}

# search.stopping (``auto`` chooses one): a class that follows search.early_stopping.StoppingPolicy
POLICIES: dict[str, Callable[..., Any]] = {
    "none": Lazy("search.early_stopping:NoStopping"),
    "median": Lazy("search.early_stopping.optuna_pruners:MedianPolicy"),
    "asha": Lazy("search.early_stopping.optuna_pruners:AshaPolicy"),
    "hyperband": Lazy("search.early_stopping.optuna_pruners:HyperbandPolicy"),
    "rank": Lazy("search.early_stopping.rank:RankPolicy"),
}


def suggest_search_key(key: str, value: object) -> str:
    """Return the sentence that names the key of ``search`` which takes a value that ``key`` does not; empty if none does."""
    if key == "search.stopping" and value in SAMPLERS:
        return f" {value} is a sampler: set search={value}."
    is_policy = key in ("search", "search.sampler") and value in POLICIES
    return f" {value} is an early-stopping policy: set search.stopping={value}." if is_policy else ""


# task.kind: a function from schema.Task to training and held-out rows
TASKS: dict[str, Callable[..., Any]] = {
    "arithmetic": Lazy("train.tasks.arithmetic:load"),
    "gsm8k": Lazy("train.tasks.files:load_gsm8k"),
    "jsonl": Lazy("train.tasks.files:load_jsonl"),
}

# tracker.kind: a class that takes schema.Tracker and the trial's folder, and follows train.tracker.Tracker
TRACKERS: dict[str, Callable[..., Any]] = {
    "none": Lazy("train.tracker:Tracker"),
    "wandb": Lazy("train.tracker:WandbTracker"),
    "tensorboard": Lazy("train.tracker:ReportTo"),
    "trackio": Lazy("train.tracker:ReportTo"),
    "swanlab": Lazy("train.tracker:ReportTo"),
    "mlflow": Lazy("train.tracker:ReportTo"),
}

# cluster.kind: a subclass of launchers.base.Launcher
LAUNCHERS: dict[str, Any] = {
    "local": Lazy("launchers.local:Local"),
    "slurm": Lazy("launchers.slurm.launcher:Slurm"),
    "dry_run": Lazy("launchers.dry_run:DryRun"),
}
