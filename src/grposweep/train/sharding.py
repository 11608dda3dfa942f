"""Sharding of training states among ranks: DeepSpeed's ZeRO and torch's FSDP.

Ranks are started by our launchers, not by ``accelerate launch``, so GRPOConfig carries the whole configuration.
"""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from trl import GRPOTrainer

from grposweep.config.precision import read_precision
from grposweep.config.to_setting import loads_once
from grposweep.errors import UserError
from grposweep.memory.parts import BUCKET, ZERO
from grposweep.schema import Experiment
from grposweep.train.attempt import Attempt


def sharding_options(experiment: Experiment) -> dict[str, Any]:
    """What GRPOConfig is told; ``auto`` values are filled from its other arguments by transformers itself."""
    trainer, mixed = experiment.trainer, read_precision(experiment.model).mixed
    if trainer.sharding == "none":
        return {}
    if trainer.sharding == "fsdp":
        return {"fsdp": True, "fsdp_config": {**fsdp_config(experiment), **trainer.fsdp_config}}
    if trainer.deepspeed_config is not None:
        return {"deepspeed": json.loads(Path(trainer.deepspeed_config).read_text(encoding="utf-8"))}
    return {"deepspeed": deepspeed_config(int(trainer.sharding.removeprefix("zero")), mixed, trainer.offload)}


def fsdp_config(experiment: Experiment) -> dict[str, Any]:
    """Return FSDP's options, of version 2; layers are found by the model's own list of them."""
    offload = {"cpu_offload": True} if experiment.trainer.offload == "all" else {}
    return {
        "version": 2,
        "reshard_after_forward": True,
        "cpu_ram_efficient_loading": loads_once(experiment),
        **offload,
    }


def start_fsdp_loading(experiment: Experiment) -> None:
    """Tell transformers, before a model is loaded, that FSDP will send the weights: accelerate itself says so too late."""
    if loads_once(experiment) and experiment.cluster.processes > 1:
        os.environ["ACCELERATE_USE_FSDP"] = "true"


def deepspeed_config(stage: int, mixed: str = "bf16", offload: str = "none") -> dict[str, Any]:
    """DeepSpeed's configuration of a stage, its buckets small enough for the GPUs that need sharding (10^8 elements)."""
    zero: dict[str, Any] = {
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
    # torch's own AdamW steps on the CPU as well; DeepSpeed's would have to be compiled, and be another optimizer.
    forced = {} if offload == "none" else {"zero_force_ds_cpu_optimizer": False}
    return {
        **forced,
        "zero_optimization": zero,
        "fp16" if mixed == "fp16" else "bf16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "zero_allow_untested_optimizer": True,  # torch's own AdamW among them
    }


# Kinds of sharding for which CPU ranks suffice. accelerate 1.15 drops its FSDP plugin on them and says nothing.
SHARDED_ON_CPUS = set(ZERO)


def check_sharding(experiment: Experiment) -> None:
    """Raise UserError if the wanted sharding cannot be had in this environment, before a model is loaded."""
    sharding = experiment.trainer.sharding
    if sharding in ZERO and find_spec("deepspeed") is None:
        raise UserError(
            f"trainer.sharding={sharding}: DeepSpeed is not installed here. Install it (pip install deepspeed), or set "
            "trainer.sharding=fsdp, which torch brings along."
        )
    on_cpus = sharding in SHARDED_ON_CPUS and experiment.cluster.processes > 1
    if sharding != "none" and not torch.cuda.is_available() and not on_cpus:
        raise UserError(
            f"trainer.sharding={sharding}: it divides what GPUs hold, and none is visible here. Set trainer.sharding=none."
        )


def start_deepspeed_on_cpus(attempt: Attempt) -> None:
    """Connect CPU ranks for DeepSpeed, before anything asks it for their number.

    transformers tells accelerate about DeepSpeed only where there are GPUs, so ZeRO-3 would build the model for one rank.
    """
    if attempt.experiment.trainer.sharding not in ZERO or torch.cuda.is_available():
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)


def check_is_sharded(attempt: Attempt, trainer: GRPOTrainer) -> None:
    """Raise UserError if several ranks would train as plain DDP although sharding is set: accelerate may drop it silently."""
    sharding, found = attempt.experiment.trainer.sharding, trainer.accelerator.distributed_type
    wanted = DistributedType.DEEPSPEED if sharding in ZERO else DistributedType.FSDP
    if sharding != "none" and attempt.ranks > 1 and found != wanted:
        raise UserError(
            f"trainer.sharding={sharding}: accelerate does not apply it here (its type of training is {found.value}), and "
            "every rank would hold everything. Set trainer.sharding=none."
        )
