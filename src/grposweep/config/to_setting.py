"""From an Experiment to the Setting that plan and rules read, and to the identities that name its files."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

from grposweep.architecture import Architecture
from grposweep.external import is_program
from grposweep.frameworks.units import in_prompts
from grposweep.memory.catalog import memory_of
from grposweep.plan import realise
from grposweep.schema import AUTO, Cluster, Experiment, Shape, Trainer
from grposweep.setting import IN_PROMPTS, Setting

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
    "mask_truncated_completions": "loss.mask_truncated_completions",
    "learning_rate": "lr",
    "lr_scheduler_type": "optimizer.lr_scheduler_type",
    "warmup_steps": "optimizer.warmup_steps",
    "optim": "optimizer.optim",
    "weight_decay": "optimizer.weight_decay",
    "adam_beta1": "optimizer.adam_beta1",
    "adam_beta2": "optimizer.adam_beta2",
    "adam_epsilon": "optimizer.adam_epsilon",
    "max_grad_norm": "optimizer.max_grad_norm",
    "seed": "seed",
    "lora": "model.lora.enabled",
    "lora_rank": "model.lora.r",
    "dtype": "model.dtype",
    "gradient_checkpointing": "model.gradient_checkpointing",
    "sharding": "trainer.sharding",
    "gpu_memory_gib": "cluster.gpu_memory_gib",
    "temperature": "generation.temperature",
    "top_p": "generation.top_p",
    "top_k": "generation.top_k",
    "max_completion_length": "generation.max_completion_length",
    "use_vllm": "generation.use_vllm",
    "vllm_mode": "generation.vllm_mode",
    "vllm_tensor_parallel_size": "generation.vllm_tensor_parallel_size",
    "vllm_gpu_memory_utilization": "generation.vllm_gpu_memory_utilization",
    "vllm_max_model_length": "generation.vllm_max_model_length",
    "nodes": "cluster.nodes",
    "gpus_per_node": "cluster.gpus_per_node",
    "server_gpus": "generation.vllm_gpus",
}

# Where a field's value stands in an Experiment, unless it is made from several keys (below).
_PATHS = {**KEYS, "learning_rate": "optimizer.learning_rate"}
_SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size")
_MADE: dict[str, tuple[str, ...]] = {
    "auto": tuple(f"batch.{name}" for name in _SIZES),
    "evaluates": ("schedule.evaluations", "schedule.eval_at_start"),
    "eval_strategy": ("schedule.evaluations",),
    "train_prompts": ("model", "task"),  # as prepared for this model and task
    "eval_prompts": ("model", "task"),
    "rewards": ("task.rewards",),
    "reward_weights": ("task.reward_weights",),
    "parameters": ("model.shape.parameters",),
    "architecture": ("model", "task"),  # as configured, or as prepared
    "lora_targets": ("model.lora.target_modules",),
    "gpu_memory_gib": ("cluster.gpu", "cluster.gpu_memory_gib"),
    "prompt_tokens": ("model", "task"),  # as prepared
}
# Where another program trains, these are as its own recipe says, or unknown: its model, data, and how it generates.
PROGRAM_OWNS = frozenset(
    [
        *(
            "lora",
            "lora_rank",
            "dtype",
            "gradient_checkpointing",
            "sharding",
            "eval_prompts",
            "server_gpus",
            "use_vllm",
        ),
        *(name for name in KEYS if name.startswith("vllm_")),
    ]
)
# Every field that an Experiment decides, and the keys (or sections) that it depends on.
SOURCES: dict[str, tuple[str, ...]] = {**{name: (path,) for name, path in _PATHS.items()}, **_MADE}
PLAIN = Setting(framework="trl", keys=KEYS)


def read_setting(experiment: Experiment, prepared: Mapping[str, Any] | None = None) -> Setting:
    """The setting of an experiment, its ``auto`` sizes solved where they can be.

    ``prepared`` holds what preparation counted for this model and task: ``train_prompts`` and ``eval_prompts``.
    """
    return settle(base_setting(experiment).altered(read_fields(experiment, prepared)))


def settle(s: Setting) -> Setting:
    """The setting with its ``auto`` sizes solved, in prompts where its framework counts these (``unsolved`` where it cannot)."""
    solved = realise(s)
    if s.framework not in IN_PROMPTS:
        return solved
    counted, lost = in_prompts(solved.altered({"data_processes": solved.processes}))
    return counted.altered({"unsolved": counted.unsolved | {"prompts_per_rollout"}}) if lost else counted


def base_setting(experiment: Experiment) -> Setting:
    """What an experiment's own fields are put on: for a program of its own its recipe's numbers, otherwise nothing."""
    if not is_program(experiment.trainer.kind):
        return PLAIN
    from grposweep.config.base_recipe import base_of  # reading recipes: not for sweeps of our own

    base = base_of(experiment.trainer, experiment.cluster.processes)
    return base.altered(
        {"keys": {**base.keys, **{name: key for name, key in KEYS.items() if name not in PROGRAM_OWNS}}}
    )


def read_fields(experiment: Experiment, prepared: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The setting's fields as configured, ``auto`` sizes still open (1, and named in ``auto``)."""
    fields = {name: _get(experiment, path) for name, path in _PATHS.items() if name not in _MADE}
    auto = frozenset(name for name in _SIZES if fields[name] == AUTO)
    fields |= dict.fromkeys(auto, 1)
    schedule, task, counted = experiment.schedule, experiment.task, prepared or {}
    if is_program(experiment.trainer.kind):
        return _program_fields(experiment, fields | {"auto": auto})
    return fields | {
        "auto": auto,
        "evaluates": schedule.evaluations > 0 or schedule.eval_at_start,
        "eval_strategy": None,  # evaluations are placed by us
        "train_prompts": counted.get("train_prompts", task.train_prompts),
        "eval_prompts": counted.get("eval_prompts", task.eval_prompts),
        "rewards": len(task.rewards),
        "reward_weights": None if task.reward_weights is None else len(task.reward_weights),
        "parameters": experiment.model.shape.parameters or None,
        "architecture": read_architecture(experiment.model.shape) or prepared_architecture(counted),
        "lora_targets": tuple(experiment.model.lora.target_modules),
        "gpu_memory_gib": read_gpu(experiment.cluster),
        "prompt_tokens": counted.get("prompt_tokens"),
    }


def read_architecture(shape: Shape) -> Architecture | None:
    """The architecture behind ``model.shape``; None where it is not given."""
    if min(shape.layers, shape.hidden, shape.intermediate, shape.heads, shape.vocabulary) < 1:
        return None
    given = {**vars(shape), "kv_heads": shape.kv_heads or shape.heads}
    return Architecture(**{**given, "head_dim": shape.head_dim or shape.hidden // shape.heads})


def prepared_architecture(counted: Mapping[str, Any]) -> Architecture | None:
    """The architecture that preparation has read from the model itself; None before that."""
    shape = counted.get("model")
    known = isinstance(shape, dict) and shape.keys() == {field.name for field in fields_of(Architecture)}
    return Architecture(**shape) if known else None  # type: ignore[arg-type]  # its keys were looked at


def read_gpu(cluster: Cluster) -> float | None:
    """The memory of a GPU in GiB, as given or as the table of GPUs says; None where neither is known."""
    if cluster.gpu_memory_gib is not None or cluster.gpu is None:
        return cluster.gpu_memory_gib
    return memory_of(cluster.gpu, "cluster.gpu")


def _program_fields(experiment: Experiment, fields: dict[str, Any]) -> dict[str, Any]:
    """Model, data and rewards are the program's, which says nothing of them here; so are evaluations not asked for."""
    base = base_setting(experiment)
    fields |= {name: getattr(base, name) for name in (*PROGRAM_OWNS, *(field for field in _MADE if field != "auto"))}
    schedule = experiment.schedule
    asked = schedule.evaluations > 0
    return fields | {
        "train_prompts": experiment.task.train_prompts,
        "evaluates": asked or base.evaluates,
        "eval_strategy": "steps" if asked else base.eval_strategy,
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
    content["trainer"] = trainer_content(experiment.trainer)
    _forget_place(content["generation"])
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
    if search.further:
        content["search"]["further"] = search.further
    if search.sampler == "one_factor":  # the same dials span other points than a grid's
        content["search"]["sampler"] = search.sampler
    content["cluster"] = {"threads": base.cluster.threads}
    if base.batch.per_device_train_batch_size != AUTO:
        content["cluster"]["processes"] = base.cluster.processes
    content["trainer"] = trainer_content(base.trainer)
    _forget_place(content["generation"])
    return _digest({"space": space, "base": content})


def trainer_content(trainer: Trainer) -> dict[str, Any]:
    """What of the trainer can change a trial's numbers; of files that a program reads, their content."""
    content: dict[str, Any] = {"kind": trainer.kind, "fake": asdict(trainer.fake)}
    content |= {name: getattr(trainer, name) for name in ("sharding", "compile")}
    if not is_program(trainer.kind):
        return content
    script = [Path(trainer.workdir or ".") / trainer.script] if trainer.script else []
    files = [file_digest(path) for path in (*script, *([Path(trainer.recipe)] if trainer.recipe else []))]
    named = [file_digest(Path(word)) for word in trainer.launch_arguments if Path(word).is_file()]
    words = {
        name: getattr(trainer, name) for name in ("arguments", "environment", "takes", "launcher", "launch_arguments")
    }
    return {**content, **words, "files": files, "named": named}


def file_digest(path: Path) -> str | None:
    """A hash of a file's content; None where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _forget_place(generation: dict[str, Any]) -> None:
    """Where a vLLM server is and how long it may take to come up change no number."""
    for name in ("vllm_gpus", "vllm_server_base_url", "vllm_server_timeout"):
        del generation[name]


def _digest(content: Any) -> str:
    """A hash that two machines agree on."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
