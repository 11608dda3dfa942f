"""All configuration keys, with type, unit and default; one dataclass for each Hydra group.

The groups are in `learning` (what a trial learns) and `running` (where and how trials run). The
docstring beneath a key is its documentation; its metadata (`grposweep.schema._learning.key`) says
what it sets elsewhere.
"""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from grposweep.schema._learning import (
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
    key,
)
from grposweep.schema.running import (
    Cluster,
    Command,
    Fake,
    Jobs,
    Place,
    Rules,
    Search,
    ThisMachine,
    Tracker,
    Trainer,
)

__all__ = [
    "AUTO",
    "Batch",
    "Cluster",
    "Command",
    "Fake",
    "Generation",
    "Jobs",
    "Kl",
    "Lora",
    "Loss",
    "Model",
    "Optimizer",
    "Place",
    "Rules",
    "Schedule",
    "Search",
    "Shape",
    "Task",
    "ThisMachine",
    "Tracker",
    "Trainer",
]

# Hydra's ConfigStore needs plain (unfrozen) dataclasses: frozen ones fail as schemas in Hydra 1.3.

# of Batch
AUTO_SIZES = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "per_device_eval_batch_size",
)


@dataclass
class Experiment:
    """One resolved configuration: parameters at the root, then one section per group."""

    lr: float = key(3e-4, setting="learning_rate", trl="learning_rate")
    """Learning rate."""
    seed: int = key(0, setting="seed", trl="seed", native="data_seed", range="seed")
    """Seed of data, model and sampling."""
    name: str | None = key(None, native="run_name")
    """Folder of the sweep below ``outputs`` (null: derived from what is swept)."""
    force: bool = False
    """Run every recorded point again."""
    verbose: bool = key(False, native="disable_tqdm")
    """Also show the controller's log on the terminal (or the flag ``-v``)."""
    outputs: str = key("outputs", native="output_dir")
    """Folder of all sweeps."""
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
    "model",
    "task",
    "batch",
    "optimizer",
    "kl",
    "loss",
    "schedule",
    "generation",
    "trainer",
    "cluster",
    "search",
    "tracker",
    "debug",
)


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


def keys_of(schema: Any = Experiment, section: str = "") -> Iterator[tuple[str, "Field[Any]"]]:
    """Yield every key that has a value of its own, dotted, with its field."""
    hints = get_type_hints(schema)
    for entry in fields(schema):
        path = f"{section}.{entry.name}" if section else entry.name
        if is_dataclass(hints[entry.name]):
            yield from keys_of(hints[entry.name], path)
        else:
            yield path, entry


# Groups whose keys have the names of GRPOConfig's arguments, but for these, which follow from
# several keys.
NAMED_AS_IN_TRL = ("kl", "loss", "optimizer", "generation")
COMPUTED = frozenset(
    [
        "enabled",
        "vllm_max_model_length",
        "vllm_gpus",
        "vllm_shared_gpus",
        "vllm_max_loras",
        "vllm_server_base_url",
        "vllm_server_command",
        "vllm_server_args",
        "vllm_server_timeout",
    ]
)


@cache
def trl_arguments() -> dict[str, str]:
    """Return the keys whose values are passed to TRL as they are, each with the name of
    GRPOConfig's argument.
    """
    return {
        path: entry.metadata.get("trl") or entry.name
        for path, entry in keys_of()
        if entry.metadata.get("trl")
        or (path.startswith(NAMED_AS_IN_TRL) and entry.name not in COMPUTED)
    }


@cache
def keys_with(name: str) -> dict[str, Any]:
    """Return the keys that declare this of themselves (`grposweep.schema._learning.key`), each with
    what they declare.
    """
    return {path: entry.metadata[name] for path, entry in keys_of() if entry.metadata.get(name)}


def sign_of(direction: str) -> int:
    """Return the factor that makes larger values of a metric the better ones, by the direction of
    its search.
    """
    return -1 if direction == "minimize" else 1


@cache
def sizes() -> frozenset[str]:
    """Return the keys that take a whole number or ``auto``."""
    return frozenset(path for path, entry in keys_of() if entry.type == int | str)


def starts_own_server(generation: Generation) -> bool:
    """Return whether each trial has a vLLM server of its own, which its job or the local trial
    starts.
    """
    is_own = generation.vllm_server_base_url is None and not generation.vllm_shared_gpus
    return generation.is_served and is_own
