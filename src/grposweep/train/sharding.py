"""How a trial's ranks divide what they hold: transformers' arguments for DeepSpeed's ZeRO and torch's FSDP.

Ranks are started by our launchers, not by ``accelerate launch``, so the arguments carry the whole configuration.
"""

from importlib.util import find_spec
from typing import Any

import torch

from grposweep.config.schema import Experiment
from grposweep.errors import BadInput
from grposweep.memory.states import BUCKET, ZERO


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


def check_sharding(experiment: Experiment) -> None:
    """Raise BadInput where sharding is wanted and cannot be had in this environment."""
    sharding = experiment.trainer.sharding
    if sharding in ZERO and find_spec("deepspeed") is None:
        raise BadInput(
            f"trainer.sharding={sharding}: DeepSpeed is not installed here. Install it (pip install deepspeed), or set "
            "trainer.sharding=fsdp, which torch brings along."
        )
    if sharding != "none" and not torch.cuda.is_available():
        raise BadInput(
            f"trainer.sharding={sharding}: it divides what GPUs hold, and none is visible here. Set trainer.sharding=none."
        )
