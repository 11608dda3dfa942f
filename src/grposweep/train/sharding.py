"""Sharding of training states among ranks: DeepSpeed's ZeRO and torch's FSDP.

Ranks are started by our launchers, not by ``accelerate launch``, so GRPOConfig carries the whole configuration.
"""

import os
from importlib.util import find_spec
from typing import Any

import torch
from accelerate.utils import DistributedType
from trl import GRPOTrainer

from grposweep.errors import UserError
from grposweep.memory.parts import BUCKET, ZERO
from grposweep.schema import Experiment
from grposweep.train.attempt import Attempt


def sharding_options(sharding: str) -> dict[str, Any]:
    """What GRPOConfig is told; ``auto`` values are filled from its other arguments by transformers itself."""
    if sharding == "none":
        return {}
    if sharding == "fsdp":  # version 2; layers are found by the model's own list of them
        return {"fsdp": True, "fsdp_config": {"version": 2, "reshard_after_forward": True}}
    return {"deepspeed": deepspeed_config(int(sharding.removeprefix("zero")))}


def deepspeed_config(stage: int) -> dict[str, Any]:
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
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": "auto"},
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
