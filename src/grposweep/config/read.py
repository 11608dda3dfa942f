"""From an Experiment to the Setting that plan and rules read, and to the identities that name its files."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from grposweep.config.schema import AUTO, Experiment
from grposweep.plan import realise
from grposweep.setting import Setting

# The setting's field, and the key of ours that a person edits.
KEYS = {
    "processes": "cluster.processes",
    "num_generations": "batch.num_generations",
    "per_device_train_batch_size": "batch.per_device_train_batch_size",
    "gradient_accumulation_steps": "batch.gradient_accumulation_steps",
    "steps_per_generation": "batch.steps_per_generation",
    "num_iterations": "batch.num_iterations",
    "prompts_per_step": "batch.prompts_per_step",
    "max_per_device_train_batch_size": "batch.max_per_device_train_batch_size",
    "per_device_eval_batch_size": "batch.per_device_eval_batch_size",
    "num_generations_eval": "batch.num_generations_eval",
    "eval_prompts": "task.eval_prompts",
    "train_prompts": "task.train_prompts",
    "max_steps": "schedule.max_steps",
    "epochs": "schedule.epochs",
    "budget_completions": "schedule.budget_completions",
    "evaluations": "schedule.evaluations",
    "checkpoints": "schedule.checkpoints",
    "kl_enabled": "kl.enabled",
    "beta": "kl.beta",
    "use_bias_correction_kl": "kl.use_bias_correction_kl",
    "sync_ref_model": "kl.sync_ref_model",
    "ref_model_sync_steps": "kl.ref_model_sync_steps",
    "ref_model_mixup_alpha": "kl.ref_model_mixup_alpha",
    "loss_type": "loss.loss_type",
    "epsilon": "loss.epsilon",
    "epsilon_high": "loss.epsilon_high",
    "delta": "loss.delta",
    "scale_rewards": "loss.scale_rewards",
    "importance_sampling_level": "loss.importance_sampling_level",
    "learning_rate": "lr",
    "lr_scheduler_type": "optimizer.lr_scheduler_type",
    "warmup_steps": "optimizer.warmup_steps",
    "lora": "model.lora.enabled",
    "temperature": "generation.temperature",
    "max_completion_length": "generation.max_completion_length",
}

# Where a field's value stands in an Experiment, unless it is made from several keys (below).
_PATHS = {**KEYS, "learning_rate": "optimizer.learning_rate"}
_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size")
_MADE: dict[str, tuple[str, ...]] = {
    "auto": tuple(f"batch.{name}" for name in _SIZES),
    "evaluates": ("schedule.evaluations", "schedule.eval_at_start"),
    "train_prompts": ("model", "task"),  # as prepared for this model and task
    "eval_prompts": ("model", "task"),
    "rewards": ("task.rewards",),
    "reward_weights": ("task.reward_weights",),
    "parameters": ("model.shape.parameters",),
}
# Every field that an Experiment decides, and the keys (or sections) that it depends on.
SOURCES: dict[str, tuple[str, ...]] = {**{name: (path,) for name, path in _PATHS.items()}, **_MADE}


def read_setting(experiment: Experiment, prepared: Mapping[str, Any] | None = None) -> Setting:
    """The setting of an experiment, its ``auto`` sizes solved where they can be.

    ``prepared`` holds what preparation counted for this model and task: ``train_prompts`` and ``eval_prompts``.
    """
    return realise(Setting(framework="trl", keys=KEYS, **read_fields(experiment, prepared)))


def read_fields(experiment: Experiment, prepared: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The setting's fields as configured, ``auto`` sizes still open (1, and named in ``auto``)."""
    fields = {name: _get(experiment, path) for name, path in _PATHS.items() if name not in _MADE}
    auto = frozenset(name for name in _SIZES if fields[name] == AUTO)
    fields |= dict.fromkeys(auto, 1)
    schedule, task, counted = experiment.schedule, experiment.task, prepared or {}
    return fields | {
        "auto": auto,
        "evaluates": schedule.evaluations > 0 or schedule.eval_at_start,
        "train_prompts": counted.get("train_prompts", task.train_prompts),
        "eval_prompts": counted.get("eval_prompts", task.eval_prompts),
        "rewards": len(task.rewards),
        "reward_weights": None if task.reward_weights is None else len(task.reward_weights),
        "parameters": experiment.model.shape.parameters or None,
    }


def _get(experiment: Any, path: str) -> Any:
    for part in path.split("."):
        experiment = getattr(experiment, part)
    return experiment


def prepared_key(experiment: Experiment) -> str:
    """The name under which ``prepared.json`` keeps what was counted for this model and task."""
    return _digest({"model": asdict(experiment.model), "task": asdict(experiment.task)})[:12]


def experiment_id(experiment: Experiment, setting: Setting) -> str:
    """A hash of everything that can change a trial's numbers, and of nothing else.

    The sizes enter as realised, so that ``auto`` and the same sizes written out are one experiment.
    """
    content = asdict(experiment)
    for name in ("name", "force", "outputs", "tracker", "search", "rules"):
        del content[name]
    content["cluster"] = {"processes": experiment.cluster.processes, "threads": experiment.cluster.threads}
    content["trainer"] = {"kind": experiment.trainer.kind, "fake": content["trainer"]["fake"]}
    for name in _SIZES:
        content["batch"][name] = getattr(setting, name)
    for name in ("prompts_per_step", "max_per_device_train_batch_size"):
        del content["batch"][name]
    return _digest(content)


def sweep_identity(space: list[dict[str, Any]], base: Experiment) -> str:
    """A hash of a sweep's question: its space, base configuration, objective and processes per trial.

    Where, how many at once, how many trials, and how they are logged are no part of it.
    """
    content = asdict(base)
    for name in ("name", "force", "outputs", "tracker", "rules"):
        del content[name]
    search = base.search
    content["search"] = {"metric": search.metric, "direction": search.direction, "last": search.last}
    content["cluster"] = {"threads": base.cluster.threads}
    if base.batch.per_device_train_batch_size != AUTO:
        content["cluster"]["processes"] = base.cluster.processes
    content["trainer"] = {"kind": base.trainer.kind, "fake": content["trainer"]["fake"]}
    return _digest({"space": space, "base": content})


def _digest(content: Any) -> str:
    """A hash that two machines agree on."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
