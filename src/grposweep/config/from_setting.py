"""Write a setting as groups and a study that ``run.py`` can sweep: ``grposweep translate --to grposweep``."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from grporecipe.fields.lora import PEFT_TARGETS, lora_losses
from grporecipe.fields.reading import release_defaults
from grporecipe.fields.writing import in_completions
from grporecipe.frameworks.trl.keys import span
from grporecipe.frameworks.trl.recipes import NAMES, SAME, fitted
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.planning import save_every, total_steps
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import ROWS, TRL, Setting
from grporecipe.translate import Translation, find_left_out, find_lost, list_left_out, list_unknown, with_paths
from grposweep.config.fields import ARGS, KEYS, NUMBERS, SOURCES
from grposweep.config.precision import IMPLIED, read_precision
from grposweep.config.to_setting import own_values
from grposweep.config.trl_args import homes
from grposweep.process import run_command
from grposweep.registries import is_asynchronous
from grposweep.schema import Experiment, Schedule, keys_with, value_at

OWN = "grposweep"
NAME = "translated"  # of the options, and of the study
WHAT = {
    "batch": "Generations and sizes, in completions.",
    "optimizer": "AdamW and the learning rate's way.",
    "kl": "The KL penalty.",
    "loss": "The loss and its clips.",
    "schedule": "How long, and how often it evaluates and saves.",
    "generation": "How completions are sampled.",
}
COMMAND = ("python", *run_command(), "--config-dir", ".", f"sweeps={NAME}")
UNBOUNDED = "vllm_importance_sampling_clip_max"  # without a bound if it is null
# Fields of a recipe without a meaning here: grposweep places checkpoints itself, and truncates no prompts.
LEFT = frozenset({"load_best_model_at_end", "max_prompt_length"})


def write_own(
    s: Setting, types: Mapping[str, str] | None = None, trainer: Mapping[str, Any] | None = None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return files for a folder that ``--config-dir`` names, and what they cannot express.

    ``types`` are keys of the model, ``trainer`` keys of an asynchronous one.
    """
    sized, undivided = in_completions(s)
    fits, lost = fitted(FRAMEWORKS["trl"], sized, TRL)
    values = own_values(fits, every=True)
    values["schedule"] |= _frequencies(fits)
    files = {f"{group}/{NAME}.yaml": f"# {WHAT[group]}\n{_yaml(values[group])}" for group in NUMBERS}
    study = {
        "defaults": [{f"override /{group}": NAME} for group in NUMBERS],
        **_study(fits, values, types or {}, trainer or {}),
    }
    head = (
        f"# @package _global_\n# {shlex.join(COMMAND)}\n#\n# Written by grposweep translate; add -m and parameters.\n"
    )
    return {f"sweeps/{NAME}.yaml": head + _yaml(study), **files}, (*undivided, *lost, *_dropped(fits), *_open(fits))


def _study(
    s: Setting, values: Mapping[str, Any], types: Mapping[str, str], asynchronous: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keys outside of groups: learning rate, seed, model name, processes."""
    study = {name: values[name] for name in ("lr", "seed") if name in values}
    model: dict[str, Any] = ({} if s.model_name_or_path is None else {"path": s.model_name_or_path}) | dict(types)
    model |= {name: getattr(s, name) for name in ("gradient_checkpointing",) if name in s.given}
    if s.lora:
        model["lora"] = {"enabled": True, "r": s.lora_rank, "alpha": round(s.lora_alpha), "dropout": s.lora_dropout,
                         "target_modules": list(s.lora_targets or PEFT_TARGETS)}  # fmt: skip
    study |= {"model": model} if model else {}
    arguments = {name: value for name, value in _unnamed(s).items() if name in ARGS}
    if s.use_vllm and UNBOUNDED in s.given and getattr(s, UNBOUNDED) is None:
        arguments[UNBOUNDED] = None
    trainer: dict[str, Any] = {**asynchronous, **({"args": arguments} if arguments else {})}
    trainer |= {"sharding": s.sharding} if s.sharding != "none" else {}
    study |= {"trainer": trainer} if trainer else {}
    return study | ({"cluster": {"processes": s.processes}} if s.processes else {})


def model_types(recipe: Recipe, s: Setting) -> dict[str, str]:
    """Return grposweep's keys for the numeric types that a recipe of TRL or Open-R1 sets; empty if it leaves them to TRL.

    By default weights are float32 and are computed in bfloat16 (trl model_config.py; base_config.py since 0.19).
    """
    config = recipe.config
    if not s.framework.follows_trl or not {"dtype", "torch_dtype", "bf16", "fp16"} & config.keys():
        return {}
    weights = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    in_half = config.get("bf16", recipe.version >= (0, 19, 0)) is not False
    mixed = "fp16" if config.get("fp16") is True else "bf16" if in_half else "none"
    if weights not in IMPLIED:  # auto: the type of the model's files, which the recipe does not state
        return {"mixed_precision": mixed}
    return {"dtype": weights} | ({} if mixed == IMPLIED[weights] else {"mixed_precision": mixed})


def _frequencies(s: Setting) -> dict[str, Any]:
    """Return evaluations and checkpoints as counts instead of intervals, if the run's length is known."""
    total, counts = total_steps(s), {}
    if s.evaluates and s.eval_steps and total:
        counts["evaluations"] = max(round(1 / s.eval_steps if s.eval_steps < 1 else total / s.eval_steps), 1)
    every = save_every(s)
    if every and total and s.save_strategy in (None, "steps"):
        counts["checkpoints"] = max(round(total / every), 1)
    return counts


def _unnamed(s: Setting) -> dict[str, Any]:
    """Return the fields that are set, matter, and have no grposweep key."""
    default = {**vars(Setting()), **release_defaults(FRAMEWORKS["trl"], TRL)}
    unnamed = {
        name: getattr(s, name) for name in sorted(SAME - KEYS.keys() - homes().keys() - LEFT - NAMES) if span(name)
    }
    return {
        name: value
        for name, value in unnamed.items()
        if (name not in SOURCES or name in ARGS)
        and value not in (None, default[name])
        and not (name.startswith("vllm_") and not s.use_vllm)
    }


def _dropped(s: Setting) -> Iterator[str]:
    """Describe the fields that are lost."""
    for name, value in _unnamed(s).items():
        if name not in ARGS:
            yield f"{name}={value}: grposweep's own trainer has no key for it"


def _open(s: Setting) -> Iterator[str]:
    """List what cannot be translated because it is code, not a number."""
    data = f" (the recipe's data are {s.dataset_name})" if s.dataset_name else ""
    yield f"prompts and rewards belong to the framework's own code: set task=...{data}"
    yield from lora_losses(s, OWN, has_dropout=True)
    if s.lora and s.lora_alpha != round(s.lora_alpha):
        yield f"lora_alpha={s.lora_alpha:g}: model.lora.alpha is a whole number, so {round(s.lora_alpha)} is written"
    if s.model_name_or_path is None:
        yield "the recipe names no model: set model=... or model.path=..."
    if s.eval_steps and total_steps(s) is None:
        yield "evaluations in steps of a run whose length is unknown: set --dataset-size, or schedule.evaluations"


def _yaml(content: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


def translate_own(setting: Setting, _: str = OWN, recipe: Recipe | None = None) -> Translation:
    """Translate a setting into grposweep's keys, with the numeric types of its recipe."""
    if recipe is None:
        files, losses = write_own(setting)
        return Translation(files, shlex.join(COMMAND), losses)
    lost, setting = find_left_out(recipe, setting), with_paths(setting, recipe)
    asynchronous = {name: recipe.config[name] for name in keys_with("async_trl").values() if name in recipe.config}
    trainer = {"kind": "async_trl", **asynchronous} if setting.asynchronous else {}
    files, losses = write_own(setting, model_types(recipe, setting), trainer)
    if "auto" in (recipe.config.get("dtype"), recipe.config.get("torch_dtype")):
        losses = (*losses, "dtype=auto: only the model's files say which type that is: set model.dtype")
    held = {name: lost.get(name) for name in ("dtype", "torch_dtype", "bf16", "fp16") if setting.framework.follows_trl}
    left = list_left_out(lost, held | {"deepspeed": setting.sharding})
    losses = (*list_unknown(setting, recipe), *losses, *left)
    return Translation(files, shlex.join(COMMAND), (*losses, *find_lost(setting, _held(setting), " ".join(losses))))


def _held(setting: Setting) -> Setting:
    """Return what grposweep's keys hold of a setting. Counts hold its intervals."""
    fits, _ = fitted(FRAMEWORKS["trl"], in_completions(setting)[0], TRL)
    names = {*KEYS, *ARGS, *LEFT, "lora_targets", "evaluates", "launcher", "rewards", *NAMES} | (
        ROWS.keys() & homes().keys()
    )
    names -= {*({"gradient_checkpointing"} - setting.given)}
    names -= {name for name in names if name.startswith("lora_") and not setting.lora}
    return Setting().replace({name: getattr(fits, name) for name in names})


def _asynchronous(experiment: Experiment) -> dict[str, Any]:
    """Return the keys of TRL's asynchronous trainer, which no other trainer has."""
    is_async = is_asynchronous(experiment.trainer.kind)
    return {name: value_at(experiment, key) for key, name in keys_with("async_trl").items() if is_async}


def native_keys(experiment: Experiment) -> dict[str, Any]:
    """Return TRL's keys for values of an experiment that its setting does not hold."""
    model, precision, generation = experiment.model, read_precision(experiment.model), experiment.generation
    trainer, minutes = experiment.trainer, experiment.schedule.checkpoint_minutes
    names = ("vllm_server_base_url", "vllm_server_timeout", "vllm_gpus", "vllm_shared_gpus", "vllm_max_loras",
             "vllm_server_command", "vllm_server_args")  # fmt: skip
    server = {name: getattr(generation, name) or None for name in names}
    native = {
        "dtype": precision.weights, "bf16": precision.mixed == "bf16", "fp16": precision.mixed == "fp16", "tf32": model.tf32,
        "model_revision": model.revision,
        "attn_implementation": model.attn_implementation, "trust_remote_code": model.trust_remote_code or None,
        "use_kernels": model.use_kernels or None, "chat_template_kwargs": model.chat_template_kwargs or None,
        "load_in_4bit": model.quantization == "4bit" or None, "load_in_8bit": model.quantization == "8bit" or None,
        "reward_weights": experiment.task.reward_weights, "torch_compile": trainer.compile or None,
        "deepspeed": trainer.deepspeed_config, "fsdp_config": trainer.fsdp_config or None,
        "offload": None if trainer.offload == "none" else trainer.offload,
        "eval_on_start": experiment.schedule.eval_at_start or None, "log_completions": trainer.log_completions or None,
        "checkpoint_minutes": None if minutes == Schedule().checkpoint_minutes else minutes,
        **(server if generation.vllm_mode == "server" else {}), **trainer.args, **_asynchronous(experiment),
    }  # fmt: skip
    return {name: value for name, value in native.items() if value is not None}
