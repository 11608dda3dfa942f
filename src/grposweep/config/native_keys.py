"""Native keys in a configuration: TRL's own in ``trainer.args``, and a user's recipe as the base of a sweep.

``trainer.args`` are keys of TRL's GRPOConfig that have no grposweep key, checked against TRL's table and as a setting.
Source: trl 1.16 trainer/grpo_config.py with the transformers of its time (frameworks/trl/keys.json). The numbers of
a user's native recipe are read, and a point's numbers are written back under the recipe's keys. Only what a point changes is
written; all other keys stay as they are. A trial's folder gets the point's recipe, the list of changes and the command.
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from grporecipe.fields.recipes import read_recipe, write_recipe
from grporecipe.fields.writing import in_completions, render_keys
from grporecipe.files import read_json, write_json, write_text
from grporecipe.frameworks.trl.keys import HABITS, async_keys, known, table
from grporecipe.model.framework import FRAMEWORKS
from grporecipe.model.planning import micro_steps_per_generation
from grporecipe.model.recipe import KeySpec, Recipe
from grporecipe.model.releases import closest_keys, parse_release, text
from grporecipe.model.setting import TRL, Setting
from grporecipe.model.values import convert
from grporecipe.reading.load import Options, load_recipe, parse_recipe
from grporecipe.rules.helpers import show
from grposweep.config.asked import ask_base, asks, own_options
from grposweep.config.base_recipe import base_of, framework_of, load_base
from grposweep.config.compose import known_keys, to_experiment
from grposweep.config.fields import FROM_RECIPE, KEYS, NUMBERS
from grposweep.config.precision import read_precision
from grposweep.config.to_setting import own_values, read_setting
from grposweep.external import RECIPE, ExternalProgram, NodeContext, Trial, node_cpus
from grposweep.external.command import options_of, unplaced
from grposweep.registries import EXTERNAL, is_asynchronous, is_external, is_opaque
from grposweep.schema import Experiment, Trainer, default_of, keys_with, trl_arguments, value_at
from grposweep.storage import paths

ELSEWHERE = ("search", "cluster", "tracker", "rules")  # sections without keys of the trainer
# Keys that follow from several keys of grposweep.
RENAMED = {
    "bf16": "model.mixed_precision",
    "fp16": "model.mixed_precision",
    "data_seed": "seed",
    "ddp_backend": "cluster.processes",
    "ddp_find_unused_parameters": "cluster.processes",
    "deepspeed": "trainer.sharding",
    "disable_tqdm": "verbose",
    "do_eval": "schedule.evaluations",
    "eval_on_start": "schedule.eval_at_start",
    "eval_steps": "schedule.evaluations",
    "eval_strategy": "schedule.evaluations",
    "fsdp": "trainer.sharding",
    "fsdp_config": "trainer.fsdp_config",
    "generation_batch_size": "batch.steps_per_generation",
    "logging_steps": "tracker.kind",
    "model_init_kwargs": "model.dtype",
    "num_completions_to_print": "trainer.log_completions",
    "num_train_epochs": "schedule.epochs",
    "output_dir": "outputs",
    "project": "tracker.project",
    "report_to": "tracker.kind",
    "resume_from_checkpoint": "schedule.checkpoints",
    "run_name": "name",
    "save_steps": "schedule.checkpoints",
    "save_strategy": "schedule.checkpoints",
    "save_total_limit": "trainer.keep",
    "use_cpu": "cluster.gpus",
    "vllm_importance_sampling_cap": "generation.vllm_importance_sampling_clip_max",
    "vllm_server_host": "generation.vllm_server_base_url",
    "vllm_server_port": "generation.vllm_server_base_url",
}
# Switches that cannot be on in a trial, with the reason. Sources: transformers 5.23 training_args.py, trl 1.16 grpo_trainer.py.
UNFIT = {
    "ignore_data_skip": "a trial that is resumed would train on other prompts than one that was never stopped",
    "load_best_model_at_end": "grposweep places checkpoints and evaluations, and transformers refuses that; see trainer.keep",
    "remove_unused_columns": "rewards would not get the columns that they read, such as the answer",
    "save_only_model": "no trial could be resumed from a checkpoint without the optimizer's states",
}
WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}


@cache
def taken() -> Mapping[str, KeySpec]:
    """Return the keys of GRPOConfig in the release that grposweep's trainer runs."""
    places = {name: entry["in"] for name, entry in table()["keys"].items()}
    return {name: key for name, key in known(TRL).items() if places[name] == "config" or name == "trust_remote_code"}


@cache
def taken_by_async() -> Mapping[str, KeySpec]:
    """Return the keys of AsyncGRPOConfig in that release."""
    own = table()["async"]
    return {name: key for name, key in async_keys(known(TRL), TRL).items() if name in own or name in taken()}


@cache
def homes() -> Mapping[str, str]:
    """Return the grposweep key that sets each key of GRPOConfig."""
    own = (key for key in known_keys() if not key.startswith((*ELSEWHERE, "trainer.args", "trainer.fake")))
    same = {trl_arguments().get(key, key.rpartition(".")[2]): key for key in own}
    return {name: key for name, key in {**same, **RENAMED}.items() if name in taken()}


def check_args(experiment: Experiment) -> Iterator[str]:
    """Name keys that GRPOConfig lacks, that have a grposweep key, or whose value has a wrong type."""
    trainer = experiment.trainer
    if is_opaque(trainer.kind):
        return
    check = _check_own_key if is_external(trainer.kind) else _check_arg
    if trainer.args and asks(trainer):
        ask_base(trainer, experiment.cluster.processes, experiment.cluster.nodes)
    for name, value in trainer.args.items():
        if problem := check(trainer, name, value):
            yield f"trainer.args.{name}={show(value)}: {problem}"


def _check_arg(trainer: Trainer, name: str, value: Any) -> str:
    """Describe what is wrong with an argument of TRL's own trainer; empty if nothing is."""
    is_async = is_asynchronous(trainer.kind)
    own, keys = (ASYNC_HOMES, taken_by_async()) if is_async else ({}, taken())
    if home := homes().get(name) or own.get(name):
        return f"grposweep has its own key for this. Set {home} instead."
    if name not in keys:
        near = [HABITS[name]] if name in HABITS else closest_keys(name, keys)
        meant = " or ".join(homes().get(key, f"trainer.args.{key}") for key in near)
        advice = f"Did you mean {meant}?" if near else "Remove it."
        return f"{'Async' * is_async}GRPOConfig of TRL {text(TRL)} has no such key. {advice}"
    if wanted := _mistyped(value, keys[name].type):
        return f"the key takes {wanted}. Set one."
    return f"{UNFIT[name]}. Leave it out." if value and name in UNFIT else ""


# Keys that only AsyncGRPOConfig has -> the grposweep key. With a token budget the size of a batch would not be known.
ASYNC_HOMES = {
    "token_budget": "batch.per_device_train_batch_size",
    **{name: path for path, name in keys_with("async_trl").items()},
}
# What AsyncGRPOTrainer does if GRPOConfig's option is not its own, and that is not our default. Its engine is a server.
OF_ASYNC: Mapping[str, Any] = {
    "loss.loss_type": "bnpo",  # a mean over the tokens of each micro-batch; compute_loss
    "generation.use_vllm": True,
    "generation.vllm_mode": "server",
}
SINGLE_PRECISION = (
    "trainer=async_trl: TRL's AsyncGRPOTrainer has FlashAttention 3 as its only attention, which computes in half precision, and "
    "these types compute in float32. Set model.mixed_precision=bf16."
)
OF_THE_SERVER = ("generation.vllm_tensor_parallel_size", "generation.vllm_gpu_memory_utilization")
UNREAD_BY_ASYNC = (
    "model.quantization", "model.attn_implementation", "batch.steps_per_generation", "trainer.log_completions",
)  # fmt: skip


def check_async(experiment: Experiment) -> Iterator[str]:
    """Name what AsyncGRPOTrainer cannot do, and keys that only it reads.

    Source: trl 1.16 experimental/async_grpo/async_grpo_trainer.py (__init__, compute_loss), async_grpo_config.py.
    """
    if not is_asynchronous(experiment.trainer.kind):
        return
    unread = [key for key, name in trl_arguments().items() if name not in taken_by_async() and key not in OF_THE_SERVER]
    for key in (*unread, *UNREAD_BY_ASYNC):
        value, does = value_at(experiment, key), OF_ASYNC.get(key, default_of(key))
        if value != does and (key != "generation.vllm_mode" or experiment.generation.use_vllm):
            advice = {"loss.loss_type": "loss=bnpo", "generation.use_vllm": "generation=vllm_server"}
            yield (
                f"{key}={show(value)} with trainer=async_trl: TRL's AsyncGRPOTrainer has only {key.rpartition('.')[2]}="
                f"{show(does)}. Set {advice.get(key, f'{key}={show(does)}')}, or trainer=trl."
            )
    if experiment.task.tools or experiment.task.environment_factory:
        named = "task.tools" if experiment.task.tools else "task.environment_factory"
        yield f"{named} with trainer=async_trl: its held-out completions are sampled in one turn. Set trainer=trl."
    if experiment.trainer.sharding not in ("none", "fsdp"):
        yield (
            f"trainer.sharding={experiment.trainer.sharding} with trainer=async_trl: TRL's AsyncGRPOTrainer shards with FSDP "
            "only. Set trainer.sharding=fsdp, or none."
        )
    if experiment.cluster.gpus_per_node and read_precision(experiment.model).computed == "float32":
        yield SINGLE_PRECISION


# grposweep keys that an external trainer does not read -> the key of its recipe with the same meaning, under TRL's names.
THEIRS = {
    "model": "model_name_or_path", "model.path": "model_name_or_path", "model.revision": "model_revision",
    "model.dtype": "dtype", "model.mixed_precision": "bf16", "model.lora.enabled": "use_peft", "model.lora.r": "lora_r",
    "model.lora.alpha": "lora_alpha", "model.lora.dropout": "lora_dropout",
    "model.lora.target_modules": "lora_target_modules", "model.quantization": "load_in_4bit", "task": "dataset_name",
    "task.path": "dataset_name", "task.subset": "dataset_config", "task.train_split": "dataset_train_split",
    "task.eval_split": "dataset_test_split", "task.rewards": "reward_funcs", "task.reward_weights": "reward_weights",
    "trainer.compile": "torch_compile", "schedule.eval_at_start": "eval_on_start",
}  # fmt: skip
SHARDING = ("trainer.sharding", "trainer.offload", "trainer.deepspeed_config", "trainer.fsdp_config")
OWN_SECTIONS = ("model", "task", "trainer")  # sections of which an external trainer reads only these keys:
READ = ("task.train_prompts", *(f"trainer.{name}" for name in (
    "kind", "keep", "command", "recipe", "python", "workdir", "arguments", "environment", "script", "launcher",
    "launch_arguments", "args")))  # fmt: skip


def reaches(key: str) -> bool:
    """Return whether a key, or the option of a group, affects an external trainer."""
    if key.startswith(OWN_SECTIONS):
        return key == "trainer" or key.startswith(READ)
    return key not in {KEYS[name] for name in FROM_RECIPE}


def check_reach(trainer: Trainer, names: Iterable[str]) -> Iterator[str]:
    """Name keys that an external trainer does not read, each with the nearest key that it reads."""
    if is_opaque(trainer.kind):
        yield from unplaced(trainer, names)
        return
    for name in names if is_external(trainer.kind) else ():
        if reaches(name):
            continue
        theirs = THEIRS.get(name, name.rpartition(".")[2])
        if name in SHARDING:
            advice = "Set trainer.launch_arguments=[--config_file,FILE], an accelerate configuration."
        elif name == "task.max_completion_length":
            advice = "Set generation.max_completion_length."
        elif not asks(trainer):
            advice = "Set it in trainer.recipe, or among trainer.arguments."
        else:
            advice = f"Set the option of your command that has it, such as trainer.args.{theirs}."
        yield f"{name}: trainer={trainer.kind} does not read it, so it would change nothing. {advice}"


# Beginnings of keys, the key that switches them on, and its value then.
SWITCHES: dict[str, tuple[str, Any]] = {
    "model.lora.": ("model.lora.enabled", True),
    "generation.vllm_": ("generation.use_vllm", True),
    "kl.ref_model_": ("kl.sync_ref_model", True),
    "loss.entropy_coef_": ("loss.use_adaptive_entropy", True),
    "loss.entropy_target": ("loss.use_adaptive_entropy", True),
    "loss.sapo_": ("loss.loss_type", "sapo"),
    "loss.vespo_": ("loss.loss_type", "vespo"),
    "trainer.fake.": ("trainer.kind", "fake"),
    **dict.fromkeys(keys_with("async_trl"), ("trainer.kind", "async_trl")),
}


def check_switches(names: Iterable[str], distinct: Callable[[str], Sequence[Experiment]]) -> Iterator[str]:
    """Name searched keys that another key switches off at every point.

    ``distinct`` returns the experiments of the space that differ in a section, such as ``model``.
    """
    for name in names:
        switch = next((SWITCHES[start] for start in SWITCHES if name.startswith(start)), None)
        if switch is None or name == switch[0]:
            continue
        key, wanted = switch
        experiments = distinct(key.partition(".")[0])
        if any(is_external(item.trainer.kind) or value_at(item, key) == wanted for item in experiments):
            continue
        present = str(value_at(experiments[0], key)).lower()
        yield (
            f"{name}: nothing reads it while {key} is {present}, so its values would all train the same. "
            f"Set {key.removesuffix('.kind')}={str(wanted).lower()}, or leave it out."
        )


def _check_own_key(trainer: Trainer, name: str, value: Any) -> str:
    """Describe a key of a command's configuration that grposweep sets, or whose value has another type.

    The options of the command itself are judged by the command when it is asked.
    """
    if not asks(trainer):
        return f"trainer={trainer.kind} has other keys. Set it in trainer.recipe."
    home = homes().get(name, "outputs" if name == "output_dir" else "")
    if home.startswith((*NUMBERS, "lr", "seed", "outputs")) and reaches(home):
        return f"grposweep has its own key for this. Set {home} instead."
    if name not in known(TRL) or name in own_options(trainer, ask_base(trainer)):
        return ""
    wanted = _mistyped(value, known(TRL)[name].type)
    return f"the key takes {wanted}. Set one." if wanted else ""


def _mistyped(value: Any, kind: str) -> str:
    """Describe the values that a key of this type takes, if this value has another type."""
    base = kind.rstrip("?")
    if value is None:
        return "" if kind.endswith("?") or base in ("any", "list") else WANTED[base]
    if base == "str":
        return "" if isinstance(value, str) else WANTED[base]
    if base == "list":
        return "" if isinstance(value, list | str) else WANTED[base]
    return WANTED[base] if base in WANTED and convert(value, kind).trouble else ""


# Two keys for the size of a rollout, which TRL refuses together: once sizes change, it is written in micro-steps.
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")


def point_recipe(
    base: Recipe, before: Setting, after: Setting, key: str, output: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the base with the differences between two settings and the trial's output folder, and those differences.

    ``before`` is the base itself, ``after`` the point, both as this package configures them.
    """
    old, new = _native(before, base), _native(after, base)
    changed = {name: new.get(name) for name in {**old, **new} if old.get(name) != new.get(name)}
    recipe = {name: value for name, value in base.config.items() if name not in changed}
    if not changed.keys().isdisjoint(SIZES) and recipe.pop("generation_batch_size", None) is not None:
        changed |= {"steps_per_generation": micro_steps_per_generation(after), "generation_batch_size": None}
    recipe |= {name: value for name, value in changed.items() if value is not None}
    return {**recipe, key: str(output)}, dict(sorted(changed.items()))


def _native(s: Setting, base: Recipe) -> Mapping[str, Any]:
    """Return a setting under the keys of the base's framework and release."""
    framework = FRAMEWORKS[base.framework]
    named = s.replace({"framework": framework.traits, "version": base.version})
    if framework.native_keys is not None:
        return framework.native_keys(framework, named, base.version)
    written = write_recipe(named, framework.name)
    return parse_recipe(Path(written.file_name), written.recipe, Options(framework.name)).config


def load_trial_recipe(folder: Path, experiment: Experiment) -> Recipe:
    """Read the recipe in a trial's folder, as it was when the trial was written; empty if its command is all that is known."""
    if is_opaque(experiment.trainer.kind):
        return load_base(experiment.trainer)
    framework = EXTERNAL[experiment.trainer.kind].framework
    noted = read_json(folder / paths.CHANGED) or {}
    version = parse_release(noted["version"]) if "version" in noted else None
    options = Options(framework, version, experiment.cluster.processes, experiment.task.train_prompts)
    return load_recipe(folder / RECIPE, options)


def trial_setting(folder: Path, experiment: Experiment) -> Setting:
    """Read the numbers of the recipe in a trial's folder."""
    if is_opaque(experiment.trainer.kind):
        return read_setting(experiment)
    setting = read_recipe(load_trial_recipe(folder, experiment)).setting
    return setting if setting.framework.unit == "prompts" else in_completions(setting)[0]


def write_program(
    folder: Path, experiment: Experiment, setting: Setting, named: Collection[str] = (), start: Trainer | None = None
) -> None:
    """Write recipe.yaml, changed.json (the keys that the point set, and for which release) and program.sh.

    program.sh is to read, or to repeat the trial by hand. It has the command of each node; in a Ray cluster that of the head.
    ``named`` are the keys and groups that command and point set: the user's command gets them even if they are its own values.
    ``start`` is the sweep's own trainer: values that follow from a point's options are left to the command.
    """
    trainer, cluster = experiment.trainer, experiment.cluster
    base = load_base(trainer, cluster.processes, cluster.nodes)
    external = EXTERNAL[trainer.kind]
    nodes = cluster.nodes if external.ray_cpus or trainer.command is not None else 1
    place = NodeContext(cluster.processes, nodes=nodes, gpus=cluster.gpus_per_node, cpus=node_cpus(cluster))
    trial = Trial(trainer, folder.resolve(), {}, place)
    noted: dict[str, Any] = {"version": text(base.version), "processes": cluster.processes}
    recipe: dict[str, Any] = {}
    if external.opaque:
        noted = {"options": options_of(experiment, named, _plain(experiment))}
    else:
        before = experiment if start is None else replace(experiment, trainer=replace(trainer, args=start.args))
        recipe, changed = point_recipe(base, unchanged(before), setting, external.output, trial.output)
        noted["keys"] = {**changed, **trainer.args}
    if asks(trainer):
        options = own_options(trainer, ask_base(trainer, cluster.processes, cluster.nodes))
        stated = {name: value for name, value in _native(setting, base).items() if _is_set(name, named)}
        entered = {name: value for name, value in trainer.args.items() if name not in options}
        takes = framework_of(trainer).takes(base.version)
        # For a field that always has a value (num_train_epochs), a null means the trainer's default.
        given = {
            name: takes[name].default if value is None and name in takes and takes[name].type[-1] != "?" else value
            for name, value in {**stated, **changed}.items()
        }
        noted |= {"keys": {**given, **entered}, "options": options}
        recipe |= {name: value for name, value in stated.items() if value is not None}
    if not external.opaque:
        write_text(trial.file, render_keys(framework_of(trainer), recipe))
    write_json(folder / paths.CHANGED, noted)
    program = external.build(Trial(trainer, trial.folder, recipe, trial.place))
    hook = f"export PYTHONPATH={shlex.quote(str(trial.folder / 'package'))}:$PYTHONPATH"
    lines = [hook] if program.reports else []
    lines += [
        f"export {name}={shlex.quote(value)}" for name, value in {**trainer.environment, **program.environment}.items()
    ]
    enter = f"cd {shlex.quote(str(Path(trainer.workdir or '.').resolve()))}"
    lines = ["#!/bin/sh", enter, *lines, *_ray_lines(program), shlex.join(program.command)]
    write_text(folder / "program.sh", "\n".join(lines) + "\n")


def _is_set(name: str, named: Collection[str]) -> bool:
    """Return whether one of these grposweep keys or groups sets a key of GRPOConfig by itself; sizes follow from each other."""
    home = homes().get(name, "")
    return name not in (*SIZES, "generation_batch_size") and (home in named or home.partition(".")[0] in named)


def _ray_lines(program: ExternalProgram) -> list[str]:
    """Return comments on what a job runs around a program on several nodes."""
    if program.ray is None:
        return []
    head, worker = program.ray.start_head("/tmp/FOLDER"), program.ray.start_worker("HEAD:PORT")
    return [
        f"# The job starts Ray on its {program.ray.nodes} nodes, waits for all of them, and runs the last line on the first:",
        f"#   first node:  {shlex.join(head)}",
        f"#   other nodes: {shlex.join(worker)}",
        "export RAY_ADDRESS=HEAD:PORT",
    ]


def unchanged(experiment: Experiment) -> Setting:
    """Return the setting of the recipe itself, for a point that changes nothing."""
    return read_setting(_plain(experiment))


def _plain(experiment: Experiment) -> Experiment:
    """Return the experiment with the values of its base."""
    own = own_values(base_of(experiment.trainer, experiment.cluster.processes, experiment.cluster.nodes))
    kept = {name: asdict(getattr(experiment, name)) for name in ("trainer", "cluster", "task", "model")}
    return to_experiment({**own, **kept})
