"""Registries of everything that is chosen by name: external trainers, tasks, trackers, launchers,
samplers, stopping policies.

The values are imported when they are first used. So configuration checks and command-line choices
read the names without importing torch or Optuna, and a lower package may know the names of entries
in upper ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grporecipe.files import Json
from grporecipe.registries import Lazy, load_entry
from grposweep.schema import Trainer


@dataclass(frozen=True)
class Sampler:
    """How the next point is chosen. ``build(seed, common)`` makes the Optuna sampler; None if all
    points are known beforehand.

    ``lists_points``: all points are known before the first trial and every trial runs to its end,
    so nothing stops
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


@dataclass(frozen=True)
class Policy(Lazy):
    """A class that follows search.early_stopping.StoppingPolicy; with ``follows_effort`` it takes
    the effort and the budget.
    """

    follows_effort: bool = False


# search.stopping (``auto`` chooses one)
POLICIES: dict[str, Policy] = {
    "none": Policy("grposweep.search.early_stopping:StoppingPolicy"),
    "median": Policy("grposweep.search.early_stopping.optuna_pruners:MedianPolicy"),
    "asha": Policy("grposweep.search.early_stopping.optuna_pruners:AshaPolicy"),
    "halving": Policy("grposweep.search.early_stopping.optuna_pruners:HalvingPolicy"),
    "hyperband": Policy("grposweep.search.early_stopping.optuna_pruners:HyperbandPolicy"),
    "rank": Policy("grposweep.search.early_stopping.rank:RankPolicy", follows_effort=True),
}


def follows_effort(stopping: str) -> bool:
    """Return whether a ``search.stopping`` spends ``search.effort`` or a budget; ``auto`` chooses a
    policy that does.
    """
    return stopping == "auto" or (stopping in POLICIES and POLICIES[stopping].follows_effort)


def suggest_search_key(key: str, value: object) -> str:
    """Return the sentence that names the key of ``search`` which takes a value that ``key`` does
    not; empty if none does.
    """
    if key == "search.stopping" and value in SAMPLERS:
        return f" {value} is a sampler: set search={value}."
    is_policy = key in ("search", "search.sampler") and value in POLICIES
    if is_policy:
        return f" {value} is an early-stopping policy: set search.stopping={value}."
    return ""


@dataclass(frozen=True)
class TaskLoader(Lazy):
    """A function from schema.Task to training and held-out rows.

    ``path``: whether ``task.path`` is ``needed``, ``optional`` because there is a dataset of the
    hub, or ``unread``.
    """

    path: str = "needed"


# task.kind
TASKS: dict[str, TaskLoader] = {
    "arithmetic": TaskLoader("grposweep.train.tasks.arithmetic:load_pairs", path="unread"),
    "questions": TaskLoader("grposweep.train.tasks.arithmetic:load_questions", path="unread"),
    "gsm8k": TaskLoader("grposweep.train.tasks.files:load_gsm8k", path="optional"),
    "jsonl": TaskLoader("grposweep.train.tasks.files:load_jsonl"),
}


@dataclass(frozen=True)
class TrackerClass(Lazy):
    """A class that takes schema.Tracker and the trial's folder, and follows train.tracker.Tracker.

    It needs one of ``modules``, which ``package`` installs. ``is_trls``: TRL writes it (its
    ``report_to``).
    """

    modules: tuple[str, ...] = ()
    package: str = ""
    is_trls: bool = False


def _report_to(package: str, *modules: str) -> TrackerClass:
    return TrackerClass("grposweep.train.tracker:ReportTo", modules, package, is_trls=True)


# tracker.kind
TRACKERS: dict[str, TrackerClass] = {
    "none": TrackerClass("grposweep.train.tracker:Tracker"),
    "wandb": TrackerClass("grposweep.train.tracker:WandbTracker", ("wandb",), "wandb"),
    "tensorboard": _report_to("tensorboard", "tensorboard", "tensorboardX"),
    "trackio": _report_to("trackio", "trackio"),
    # transformers' callback fails with SwanLab 0.10
    "swanlab": _report_to("'swanlab<0.8'", "swanlab"),
    "mlflow": _report_to("mlflow", "mlflow"),
}


@dataclass(frozen=True)
class OwnTrainer(Lazy):
    """A function that trains an attempt in the rank's own process.

    ``runs_trl``: TRL trains the configured model, so model and data are prepared. ``metrics``: all
    that it reports; empty if
    its source or the rewards decide.
    """

    runs_trl: bool = False
    metrics: frozenset[str] = frozenset()


# trainer.kind, with the programs in EXTERNAL
OWN_TRAINERS = {
    "trl": OwnTrainer("grposweep.train.trl:train", runs_trl=True),
    "fake": OwnTrainer(
        "grposweep.train.fake:train",
        metrics=frozenset(
            {"reward", "learning_rate", "eval_reward", "eval_reward_se", "eval_reward_noise"}
        ),
    ),
}


def is_external(trainer: Trainer) -> bool:
    """Return whether a trainer is an external program, which starts its own ranks."""
    return trainer.kind not in OWN_TRAINERS


def is_opaque(trainer: Trainer) -> bool:
    """Return whether nothing is known of a trainer but its command, and where it writes its
    metrics.
    """
    return is_external(trainer) and trainer.metrics is not None


def runs_trl(trainer: Trainer) -> bool:
    """Return whether TRL trains the configured model in the ranks of this trainer."""
    return not is_external(trainer) and OWN_TRAINERS[trainer.kind].runs_trl


# What lower rooms ask of the room of these programs.
BASE = Lazy("grposweep.command.base:Base")
READ_TRIAL_SETTING = Lazy("grposweep.command.trial_recipe:trial_setting")
CHECK_PROGRAM = Lazy("grposweep.command.checks:check_program")
CHECK_KEYS = Lazy("grposweep.command.checks:check_reach")
CHECK_PORTS = Lazy("grposweep.command.ask:check_ports")
TRAIN_PROGRAM = Lazy("grposweep.command.follow:train")

# trainer.kind: what trains instead
EXTERNAL = ("command",)

# cluster.kind: a subclass of launchers.base.Launcher
LAUNCHERS: Json = {
    "local": Lazy("grposweep.launchers.local:Local"),
    "slurm": Lazy("grposweep.launchers.slurm.launcher:Slurm"),
    "dry_run": Lazy("grposweep.launchers.dry_run:DryRun"),
}


def ranks_follow(kind: str) -> bool:
    """Return whether ranks follow from ``cluster.nodes``, ``gpus_per_node`` and ``tasks_per_node``
    with this ``cluster.kind``.
    """
    return kind in LAUNCHERS and bool(load_entry(LAUNCHERS[kind]).ranks_follow)
