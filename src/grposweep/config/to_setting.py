"""Convert an Experiment to the Setting that plan and rules read, and a setting back to values of
grposweep's groups.

The tables of `grposweep.config.fields` say which key decides which field.
"""

import json
from dataclasses import MISSING, replace
from dataclasses import fields as fields_of
from typing import get_args

from grporecipe.fields.writing import in_prompts
from grporecipe.files import Config, Json, only, without
from grporecipe.memory.catalog import find_model, memory_of
from grporecipe.model.architecture import Architecture
from grporecipe.model.planning import micro_steps_per_generation, realise
from grporecipe.model.setting import OF_TRL, OPTIONS, Runtime, Setting
from grposweep.config.fields import ARGS, DERIVED, FROM_RECIPE, KEYS, NUMBERS, OF_TASKS, PLAIN
from grposweep.config.precision import read_precision
from grposweep.config.trl_args import read_args
from grposweep.schema import (
    AUTO,
    AUTO_SIZES,
    Cluster,
    Experiment,
    Shape,
    Trainer,
    keys_of,
    value_at,
)
from grposweep.schema.registries import BASE, is_external, is_opaque, ranks_follow


def read_setting(experiment: Experiment, prepared: Config | None = None) -> Setting:
    """Return the setting of an experiment, its ``auto`` sizes resolved if they can be.

    ``prepared`` holds what preparation counted for this model and task: ``train_prompts`` and
    ``eval_prompts``.
    """
    base = base_setting(experiment)
    return resolve_auto(base.replace(read_fields(experiment, prepared, base)))


def resolve_auto(s: Setting) -> Setting:
    """Return the setting with its ``auto`` sizes resolved, in prompts if its framework counts
    prompts.

    ``unsolved`` names the sizes that cannot be resolved.
    """
    solved = realise(s)
    if s.framework.unit != "prompts":
        return solved
    counted, is_exact = in_prompts(solved.replace({"data_processes": solved.processes}))
    if is_exact:
        return counted
    return counted.replace({"unsolved": counted.unsolved | {"prompts_per_rollout"}})


def base_setting(experiment: Experiment) -> Setting:
    """Return the setting to which an experiment's fields are applied: an external trainer's recipe,
    otherwise an empty one.
    """
    if not is_external(experiment.trainer):
        cluster = experiment.cluster
        if ranks_follow(cluster.kind) and cluster.nodes == 1 and not cluster.gpus_per_node:
            return OF_TASKS
        return PLAIN
    base: Setting = BASE.load().of(experiment).setting
    own = without(KEYS, FROM_RECIPE)
    return base.replace({"keys": {**base.keys, **own}})


def read_fields(
    experiment: Experiment, prepared: Config | None = None, base: Setting | None = None
) -> Json:
    """Return the setting's fields as configured; sizes left to ``auto`` are 1 and named in the
    field ``auto``.
    """
    base = base or base_setting(experiment)
    fields = {
        name: value_at(experiment, path) for name, path in KEYS.items() if name not in DERIVED
    }
    auto = frozenset(name for name in AUTO_SIZES if fields[name] == AUTO)
    fields |= dict.fromkeys(auto, 1)
    fields |= _optional_fields(experiment, fields, base)
    if is_external(experiment.trainer):
        return _recipe_fields(experiment, fields | {"auto": auto}, base)
    schedule, task, counted = experiment.schedule, experiment.task, prepared or {}
    precision = read_precision(experiment.model)
    memory = read_gpu(experiment.cluster)
    trials = gpu_trials(experiment.cluster)
    return fields | {
        "auto": auto,
        "evaluates": schedule.evaluations > 0 or schedule.eval_at_start,
        # grposweep places evaluations
        "eval_strategy": None,
        "train_prompts": counted.get("train_prompts", task.train_prompts),
        "eval_prompts": counted.get("eval_prompts", task.eval_prompts),
        "chat": counted.get("chat", task.chat),
        "has_chat_template": counted.get("has_chat_template"),
        "loads_on_every_rank": _loads_on_every_rank(experiment.trainer),
        "rewards": len(task.rewards),
        "reward_weights": None if task.reward_weights is None else len(task.reward_weights),
        "parameters": experiment.model.shape.parameters or None,
        "architecture": read_model(experiment, counted),
        "lora": experiment.model.lora.enabled,
        "lora_targets": tuple(experiment.model.lora.target_modules),
        "runtime": read_runtime(experiment),
        "weights_dtype": precision.weights,
        "autocast_dtype": precision.autocast,
        "gpu_memory_gib": None if memory is None else memory / trials,
        "gpu_trials": trials,
        "gpu": experiment.cluster.gpu,
        "prompt_tokens": counted.get("longest_prompt"),
        "vllm_max_model_length": read_model_length(experiment, counted),
    }


def _optional_fields(experiment: Experiment, fields: Config, base: Setting) -> Json:
    """Return the fields that may be left to the trainer: as set, or their values when unset."""
    args = experiment.trainer.args
    options = {name: getattr(base, name) for name in ARGS}
    for name in KEYS.keys() & set(OPTIONS):
        value = fields[name]
        options[name] = getattr(base, name) if value in (None, {}) else value
    if isinstance(options["generation_kwargs"], dict):
        options["generation_kwargs"] = json.dumps(options["generation_kwargs"], sort_keys=True)
    # an external trainer's are in the base
    if args and not is_external(experiment.trainer):
        options |= only(read_args(experiment.trainer), ARGS)
    return options


def _recipe_fields(experiment: Experiment, fields: Json, base: Setting) -> Json:
    """Return an external trainer's fields: model, data and rewards from its recipe, evaluations
    unless set in grposweep.
    """
    fields |= {name: getattr(base, name) for name in (*FROM_RECIPE, *DERIVED) if name != "auto"}
    if is_opaque(experiment.trainer):
        # what the command does with its GPUs is its own
        fields["processes"] = None
    evaluates = experiment.schedule.evaluations > 0
    return fields | {
        "train_prompts": experiment.task.train_prompts,
        "evaluates": evaluates or base.evaluates,
        "eval_strategy": "steps" if evaluates else base.eval_strategy,
    }


def read_model(experiment: Experiment, counted: Config) -> Architecture | None:
    """Return the architecture as configured or prepared, or by the model's name or folder.

    A configured shape has no positions, so they are those of the model. None if the memory of what
    is trained cannot be estimated: with a configuration of DeepSpeed that is a file.
    """
    if experiment.trainer.deepspeed_config is not None:
        return None
    model = experiment.model
    configured = read_architecture(model.shape)
    counted_shape = prepared_architecture(counted) or find_model(model.path)
    if configured is None or counted_shape is None:
        return configured or counted_shape
    return replace(configured, positions=counted_shape.positions)


OFFLOADED = {"none": (), "optimizer": ("optimizer",), "all": ("weights", "optimizer")}
BITS = {"4bit": 4, "8bit": 8}


def read_runtime(experiment: Experiment) -> Runtime:
    """Return the memory use of grposweep's trainer: like TRL, with quantized weights and offloaded
    states.
    """
    model = experiment.model
    trainer = experiment.trainer
    offload = "all" if trainer.fsdp_config.get("cpu_offload") else trainer.offload
    offloads = frozenset(OFFLOADED[offload])
    bits = BITS.get(model.quantization or "", 0)
    if not offloads and not bits and model.attn_implementation is None:
        return OF_TRL
    return Runtime(
        flash="flash" in (model.attn_implementation or ""),
        offloads=offloads,
        computes_offloaded=bool(offloads),
        weight_bits=bits,
    )


def loads_once(experiment: Experiment) -> bool:
    """Return whether FSDP's first rank of a node may load the weights for all, instead of each
    rank.

    Not with a reference model: TRL shards it without sending it to the other ranks, which would
    have arbitrary weights. Sources: accelerate utils/fsdp_utils.py fsdp2_prepare_model; trl 1.16
    models/utils.py prepare_fsdp.
    """
    default = experiment.kl.beta == 0 or experiment.model.lora.enabled
    return experiment.trainer.sharding == "fsdp" and bool(
        experiment.trainer.fsdp_config.get("cpu_ram_efficient_loading", default)
    )


def _loads_on_every_rank(trainer: Trainer) -> bool | None:
    """Return the negation of ``loads_once`` as far as the trainer decides it; None if a reference
    model does.

    A field that follows from ``kl.beta`` would need an experiment composed for each of its values.
    """
    loads_once = trainer.fsdp_config.get("cpu_ram_efficient_loading")
    if trainer.sharding != "fsdp":
        return True
    return None if loads_once is None else not loads_once


def read_architecture(shape: Shape) -> Architecture | None:
    """Return the architecture in ``model.shape``, or None if it is not set."""
    if min(shape.layers, shape.hidden, shape.intermediate, shape.heads, shape.vocabulary) < 1:
        return None
    given = {**vars(shape), "kv_heads": shape.kv_heads or shape.heads}
    return Architecture(**{**given, "head_dim": shape.head_dim or shape.hidden // shape.heads})


def prepared_architecture(counted: Config) -> Architecture | None:
    """Return the architecture that preparation read from the model itself, or None before that."""
    shape = counted.get("model")
    fields = {field.name: field.default is MISSING for field in fields_of(Architecture)}
    needed = {name for name, is_needed in fields.items() if is_needed}
    is_whole = isinstance(shape, dict) and needed <= shape.keys() <= fields.keys()
    return Architecture(**shape) if is_whole else None  # type: ignore[arg-type]  # its keys are checked above


def read_model_length(experiment: Experiment, counted: Config) -> int | None:
    """Return the longest sequence in tokens that vLLM keeps room for: as set, or the longest prompt
    and a completion.

    None leaves it to vLLM, which then keeps room for the model's maximum. This is so before
    preparation, and if both together exceed that maximum, with which vLLM does not start.
    """
    generation = experiment.generation
    longest = counted.get("longest_prompt")
    if generation.vllm_max_model_length is not None or longest is None:
        return generation.vllm_max_model_length
    length = int(longest) + generation.max_completion_length
    shape = counted.get("model")
    positions = shape.get("positions") if isinstance(shape, dict) else None
    return None if positions and length > positions else length


def read_gpu(cluster: Cluster) -> float | None:
    """Return the memory of one GPU in GiB, as set or from the catalog of GPUs; None if neither is
    known.
    """
    if cluster.gpu_memory_gib is not None or cluster.gpu is None:
        return cluster.gpu_memory_gib
    return memory_of(cluster.gpu, "cluster.gpu")


def gpu_trials(cluster: Cluster) -> int:
    """Return how many trials share a GPU; 1 for ``auto``, which depends on a trial's need of a
    whole GPU.
    """
    return 1 if cluster.trials_per_gpu == AUTO else int(cluster.trials_per_gpu)


# keys that may be null
NULLABLE = frozenset(path for path, field in keys_of() if type(None) in get_args(field.type))


def own_values(s: Setting) -> Json:
    """Return ``lr``, ``seed`` and one mapping per group of NUMBERS. Values that the setting leaves
    open keep their defaults.

    Evaluations and checkpoints are 0, which means as often as the recipe says. Values that a
    program with its own recipe sets itself are left out.
    """
    keys: Json = {name: {} for name in NUMBERS}
    for name, path in KEYS.items():
        group, _, key = path.partition(".")
        value = getattr(s, name)
        if name in FROM_RECIPE or name in OPTIONS:
            continue
        if not key and value is not None:
            keys[path] = value
        elif group in NUMBERS and (value not in (None, "") or path in NULLABLE):
            keys[group][key] = value
    keys["batch"] |= _sizes(s)
    # they override epochs, as in TRL
    has_steps = s.max_steps is not None and s.max_steps > 0
    length = {"max_steps": s.max_steps} if has_steps else {"epochs": s.epochs}
    keys["schedule"] |= {"max_steps": None, "epochs": None, "budget_completions": None, **length}
    keys["schedule"] |= {"evaluations": 0, "checkpoints": 0, "eval_at_start": False}
    return {name: keys[name] for name in ("lr", "seed", *NUMBERS) if name in keys}


def _sizes(s: Setting) -> Json:
    """Return the sizes; micro-steps only if they differ from the accumulation. A rollout's size
    follows from them.
    """
    micro_steps = micro_steps_per_generation(s)
    differs = micro_steps != s.gradient_accumulation_steps
    return {
        "steps_per_generation": micro_steps if differs else None,
        "prompts_per_step": None,
        "max_per_device_train_batch_size": max(s.per_device_train_batch_size, 64),
    }
