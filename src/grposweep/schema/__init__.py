"""All configuration keys, with type, unit and default; one dataclass for each Hydra group.

The groups are in `learning` (what a trial learns) and `running` (where and how trials run). `NEWER` lists the keys that
recorded sweeps may lack. The metadata ``setting`` of a key names the field of the neutral Setting that it sets.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from grporecipe.setting import UNSET
from grposweep.schema.learning import (
    AUTO,
    Batch,
    Generation,
    Kl,
    Lora,
    Loss,
    Model,
    Optimizer,
    Schedule,
    Shape,
    Task,
)
from grposweep.schema.running import Cluster, Fake, Rules, Search, Tracker, Trainer

__all__ = ["AUTO", "Batch", "Cluster", "Fake", "Generation", "Kl", "Lora", "Loss", "Model", "Optimizer", "Rules", "Schedule",
           "Search", "Shape", "Task", "Tracker", "Trainer"]  # fmt: skip

# Hydra's ConfigStore needs plain (unfrozen) dataclasses: frozen ones fail as schemas in Hydra 1.3.

# Keys that are newer than some recorded sweeps. Their defaults mean the earlier behaviour, so identities and config.yaml omit
# them when unset: earlier trials keep their ids, and an earlier version of the code reads the file.
NEWER = (
    *(f"{section}.{name}" for section, names in UNSET.items() for name in names),
    "model.mixed_precision", "model.tf32", "model.quantization", "model.attn_implementation", "model.trust_remote_code",
    "model.use_kernels", "model.chat_template_kwargs", "trainer.args", "trainer.offload", "trainer.deepspeed_config",
    "trainer.fsdp_config", "trainer.fork", "task.eval_generations", "task.keep_between", "task.screen", "search.screen",
    "schedule.checkpoint_minutes", "generation.vllm_server_args",
    "cluster.environment", "cluster.gres_type", "cluster.service_partition", "cluster.service_account", "cluster.service_qos",
    "cluster.service_mem_gb", "cluster.warn_seconds", "cluster.ray_timeout",
    "search.retry_failed", "search.changed_files",
    "search.at", "search.max_template_share", "search.effort", "cluster.trials_per_gpu", "tracker.notes",
)  # fmt: skip
AUTO_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size")  # of Batch
OWN_TRAINERS = ("trl", "fake")  # values of trainer.kind; all others are external programs
GPU_HOURS = "gpu_hours"  # the objective that is a trial's cost; all others are metrics of its evaluations


@dataclass
class Experiment:
    """One resolved configuration: parameters at the root, then one section per group.

    ``lr`` is the learning rate, ``seed`` that of data, model and sampling. ``name`` is
    the folder below ``outputs`` (null: derived from what is swept). ``force`` runs every recorded point again.
    ``verbose`` (or the flag ``-v``) also shows the controller's log on the terminal.
    """

    lr: float = field(default=3e-4, metadata={"setting": "learning_rate"})
    seed: int = field(default=0, metadata={"setting": "seed"})
    name: str | None = None
    force: bool = False
    verbose: bool = False
    outputs: str = "outputs"
    model: Model = field(default_factory=Model)
    task: Task = field(default_factory=Task)
    batch: Batch = field(default_factory=Batch)
    optimizer: Optimizer = field(default_factory=Optimizer)
    kl: Kl = field(default_factory=Kl)
    loss: Loss = field(default_factory=Loss)
    schedule: Schedule = field(default_factory=Schedule)
    generation: Generation = field(default_factory=Generation)
    trainer: Trainer = field(default_factory=Trainer)
    cluster: Cluster = field(default_factory=Cluster)
    search: Search = field(default_factory=Search)
    tracker: Tracker = field(default_factory=Tracker)
    rules: Rules = field(default_factory=Rules)


GROUPS = (
    "model", "task", "batch", "optimizer", "kl", "loss", "schedule",
    "generation", "trainer", "cluster", "search", "tracker", "debug",
)  # fmt: skip


def is_external(kind: str) -> bool:
    """Return whether a ``trainer.kind`` is an external program, which starts its own ranks."""
    return kind not in OWN_TRAINERS


def value_at(experiment: Experiment, key: str) -> Any:
    """Return the value of a dotted key."""
    value: Any = experiment
    for part in key.split("."):
        value = getattr(value, part)
    return value


@cache
def _defaults() -> Experiment:
    """Return the defaults, built once. Do not change them."""
    return Experiment()


def default_of(key: str) -> Any:
    """Return the schema's default of a dotted key."""
    return value_at(_defaults(), key)


def drop_newer(content: dict[str, Any]) -> None:
    """Remove the keys of `NEWER` that have their defaults from an experiment as nested dicts (``asdict``)."""
    for key in NEWER:
        section, name = key.split(".")
        if content[section][name] == default_of(key):
            del content[section][name]
