"""Our configuration as GRPOConfig takes it. Every number is passed, because TRL's defaults have
changed before.

The schema says which keys are copied. What follows from the plan, the machine or several keys is
computed here.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from math import inf
from pathlib import Path

import torch
from accelerate.utils import DistributedType
from trl import GRPOConfig, GRPOTrainer

from grporecipe.errors import UserError
from grporecipe.files import Json, parse_json, read_bytes
from grporecipe.memory.parts import BUCKET, ZERO
from grposweep.config.precision import read_precision
from grposweep.config.to_setting import loads_once
from grposweep.schema import Experiment, Model, trl_arguments, value_at
from grposweep.train._models import Loaded, loading_options
from grposweep.train._vllm import server_address
from grposweep.train.attempt import Attempt

# optimizer steps
NEVER = 1 << 30


def colocates(experiment: Experiment) -> bool:
    """Return whether vLLM generates in the training processes."""
    return experiment.generation.use_vllm and experiment.generation.vllm_mode == "colocate"


# Arguments that are passed only if a condition holds.
CONDITIONS: dict[str, Callable[[Experiment], bool]] = {
    "vllm_mode": lambda experiment: experiment.generation.use_vllm,
    "vllm_tensor_parallel_size": colocates,
    "vllm_gpu_memory_utilization": colocates,
}


def copied_arguments(experiment: Experiment) -> Json:
    """Return the arguments that are keys of ours. Null (or an empty mapping) leaves one to TRL;
    infinity is no bound.
    """
    arguments = {name: value_at(experiment, key) for key, name in trl_arguments().items()}
    return {
        name: None if value == inf else value
        for name, value in arguments.items()
        if value not in (None, {}) and (name not in CONDITIONS or CONDITIONS[name](experiment))
    }


def build_config(attempt: Attempt, model: Loaded) -> GRPOConfig:
    """Return GRPOConfig for one rank of an attempt. With several ranks this connects them."""
    return GRPOConfig(**grpo_arguments(attempt, model))


def grpo_arguments(attempt: Attempt, model: Loaded) -> Json:
    """Return GRPOConfig's arguments by name."""
    experiment = attempt.experiment
    return {
        **copied_arguments(experiment),
        "data_seed": experiment.seed,
        **batch_arguments(attempt),
        **course_arguments(attempt),
        **device_arguments(attempt, model),
        **vllm_arguments(attempt),
        **sharding_options(experiment),
        **experiment.trainer.args,
    }


def batch_arguments(attempt: Attempt) -> Json:
    """Return the batch as the plan has it: only steps_per_generation, since TRL refuses it with
    generation_batch_size.
    """
    plan = attempt.plan
    setting = attempt.setting
    return {
        "per_device_train_batch_size": plan.per_device_train_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "steps_per_generation": plan.steps_per_generation,
        "num_generations": plan.num_generations,
        "per_device_eval_batch_size": setting.per_device_eval_batch_size,
        "num_generations_eval": setting.num_generations_eval or plan.num_generations,
    }


def vllm_arguments(attempt: Attempt) -> Json:
    """Return the longest sequence of a colocated engine in tokens (None: the model's own), or where
    a server is.
    """
    if colocates(attempt.experiment):
        return {"vllm_max_model_length": attempt.setting.vllm_max_model_length}
    return server_address(attempt.experiment.generation, attempt.folder.parent.parent)


def course_arguments(attempt: Attempt) -> Json:
    """Return the course of the run. Evaluations and checkpoints are placed by our callback, at the
    plan's steps.
    """
    keep = attempt.experiment.trainer.keep
    evaluations = {"eval_strategy": "no", "eval_steps": NEVER}
    if attempt.plan.evaluation_steps:
        # on, so that TRL checks the evaluation batch
        evaluations = {"eval_strategy": "steps", "eval_steps": attempt.total}
    return {
        "output_dir": str(attempt.checkpoints),
        "max_steps": attempt.total,
        **evaluations,
        "save_strategy": "no",
        "save_total_limit": None if keep == "all" else 1,
        "logging_steps": 1,
        "num_completions_to_print": 0,
        # rank 0 alone writes; W&B is ours
        "report_to": list(attempt.tracker.report_to),
        "project": attempt.experiment.tracker.project,
        "run_name": attempt.folder.name,
        "disable_tqdm": True,
    }


def device_arguments(attempt: Attempt, model: Loaded) -> Json:
    """Return the arguments that depend on the machine: device, backend of the ranks, and numeric
    types.
    """
    cpu = not torch.cuda.is_available()
    return {
        "model_init_kwargs": {**model.init_kwargs, **loading_options(attempt.experiment.model)},
        "use_cpu": cpu,
        "ddp_backend": "gloo" if cpu and attempt.ranks > 1 else None,
        # every parameter has a gradient; looking for others costs a walk a step
        "ddp_find_unused_parameters": False,
        **precision_arguments(attempt.experiment.model, has_gpu=not cpu),
    }


def precision_arguments(model: Model, has_gpu: bool) -> Json:
    """Return the autocast; none without a GPU, on which half precision is slower and less exact
    than single.
    """
    mixed = read_precision(model).mixed if has_gpu else "none"
    tf32 = {"tf32": model.tf32} if has_gpu and model.tf32 is not None else {}
    return {"bf16": mixed == "bf16", "fp16": mixed == "fp16", **tf32}


def sharding_options(experiment: Experiment) -> Json:
    """Return GRPOConfig's arguments for sharding. transformers itself derives ``auto`` values from
    its other arguments.
    """
    trainer = experiment.trainer
    mixed = read_precision(experiment.model).mixed
    if trainer.sharding == "none":
        return {}
    if trainer.sharding == "fsdp":
        return {"fsdp": True, "fsdp_config": {**fsdp_config(experiment), **trainer.fsdp_config}}
    if trainer.deepspeed_config is not None:
        return {"deepspeed": parse_json(read_bytes(Path(trainer.deepspeed_config)))}
    return {
        "deepspeed": deepspeed_config(
            int(trainer.sharding.removeprefix("zero")), mixed, trainer.offload
        )
    }


def fsdp_config(experiment: Experiment) -> Json:
    """Return FSDP's options, of version 2; layers are found by the model's own list of them."""
    offload = {"cpu_offload": True} if experiment.trainer.offload == "all" else {}
    return {
        "version": 2,
        "reshard_after_forward": True,
        "cpu_ram_efficient_loading": loads_once(experiment),
        **offload,
    }


def start_fsdp_loading(experiment: Experiment) -> None:
    """Tell transformers, before a model is loaded, that FSDP will send the weights: accelerate
    itself says so too late.
    """
    if loads_once(experiment) and experiment.cluster.processes > 1:
        os.environ["ACCELERATE_USE_FSDP"] = "true"


def deepspeed_config(stage: int, mixed: str = "bf16", offload: str = "none") -> Json:
    """DeepSpeed's configuration of a stage, its buckets small enough for the GPUs that need
    sharding (10^8 elements).
    """
    zero: Json = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": BUCKET,
    }
    if stage < 3:
        zero |= {"allgather_partitions": True, "allgather_bucket_size": BUCKET}
    else:
        zero |= {
            "stage3_prefetch_bucket_size": BUCKET,
            "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": BUCKET,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    if offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    # torch's own AdamW steps on the CPU as well; DeepSpeed's would have to be compiled, and be
    # another optimizer.
    forced = {} if offload == "none" else {"zero_force_ds_cpu_optimizer": False}
    half = "fp16" if mixed == "fp16" else "bf16"
    return {
        **forced,
        "zero_optimization": zero,
        half: {"enabled": "auto"},
        "gradient_clipping": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        # torch's own AdamW among them
        "zero_allow_untested_optimizer": True,
    }


# Kinds of sharding for which CPU ranks suffice. accelerate 1.15 drops its FSDP plugin on them and
# says nothing.
SHARDED_ON_CPUS = set(ZERO)


def check_sharding(experiment: Experiment) -> None:
    """Raise UserError if the wanted sharding cannot be had in this environment, before a model is
    loaded.
    """
    sharding = experiment.trainer.sharding
    if sharding in ZERO and find_spec("deepspeed") is None:
        raise UserError(
            f"trainer.sharding={sharding}: DeepSpeed is not installed here. Install it (pip "
            "install deepspeed), or set trainer.sharding=fsdp, which torch brings along."
        )
    on_cpus = sharding in SHARDED_ON_CPUS and experiment.cluster.processes > 1
    if sharding != "none" and not torch.cuda.is_available() and not on_cpus:
        raise UserError(
            f"trainer.sharding={sharding}: it divides what GPUs hold, and none is visible here. "
            "Set trainer.sharding=none."
        )


def start_deepspeed_on_cpus(attempt: Attempt) -> None:
    """Connect CPU ranks for DeepSpeed, before anything asks it for their number.

    transformers tells accelerate about DeepSpeed only if there are GPUs, so ZeRO-3 would build the
    model for one rank.
    """
    if attempt.experiment.trainer.sharding not in ZERO or torch.cuda.is_available():
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


def check_is_sharded(attempt: Attempt, trainer: GRPOTrainer) -> None:
    """Raise UserError if several ranks would train as plain DDP although sharding is set:
    accelerate may drop it silently.
    """
    sharding = attempt.experiment.trainer.sharding
    kind = trainer.accelerator.distributed_type
    wanted = DistributedType.DEEPSPEED if sharding in ZERO else DistributedType.FSDP
    if sharding != "none" and attempt.ranks > 1 and kind != wanted:
        raise UserError(
            f"trainer.sharding={sharding}: accelerate does not apply it here (its type of training "
            f"is {kind.value}), and every rank would hold everything. Set trainer.sharding=none."
        )
