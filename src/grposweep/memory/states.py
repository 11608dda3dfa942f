"""Bytes that stay with a rank between micro-steps: weights, gradients, optimizer states, the reference; whole or sharded.

Sources: torch optim/adam.py; torch nn/parallel/distributed.py (DDP's buckets are a second copy of the gradients, since
accelerate leaves gradient_as_bucket_view off); deepspeed runtime/zero (a float32 copy of the trained weights and two float32
moments, divided among the ranks; gradients from stage 2 on, weights in stage 3); accelerate utils/fsdp_utils.py (with bf16
the trained weights are kept, and stepped, in float32 shards). Sharded states are derived only, not measured.
"""

from dataclasses import dataclass

from grposweep.memory.layers import FLOAT
from grposweep.memory.need import Need

ZERO = frozenset({"zero1", "zero2", "zero3"})
WEIGHTS_SHARDED = frozenset({"zero3", "fsdp"})
BUCKET = 100_000_000  # elements that ZeRO reduces and gathers at once, as train/trl.py sets it
# Moments a parameter by an optimizer's first word (after "paged_"); what is not named counts as Adam.
MOMENTS = {"sgd": 0.0, "adafactor": 0.1, "lion": 1.0, "adagrad": 1.0, "rmsprop": 1.0, "ademamix": 3.0}


@dataclass(frozen=True)
class States:
    """Bytes a rank; ``stepping`` is what the optimizer step needs besides.

    ``buckets`` are those of the gradients' bytes that stay when the gradients are freed.
    """

    weights: float
    gradients: float
    optimizer: float
    reference: float
    stepping: float
    buckets: float = 0.0


def find_states(n: Need) -> States:
    """The states of one rank."""
    whole = n.model.weights * n.width
    frozen = whole if n.lora is not None else 0
    parts = n.shards if n.sharding in WEIGHTS_SHARDED else 1
    reference = whole / parts if n.has_reference else 0
    if n.sharding in ZERO:
        return _zero(n, frozen, reference)
    if n.sharding == "fsdp":
        mine = n.trained * FLOAT / parts
        return States(frozen / parts + mine, mine, _moments(n.optim, n.trained, FLOAT) / parts, reference, mine)
    mine = n.trained * n.trained_width
    copies = 2 if n.processes > 1 else 1
    stepping = mine if n.optim == "adamw_torch" else 0  # square roots of all second moments at once
    optimizer = _moments(n.optim, n.trained, n.trained_width) + _kept_whole(n)
    return States(frozen + mine, copies * mine, optimizer, reference, stepping, buckets=(copies - 1) * mine)


def _zero(n: Need, frozen: float, reference: float) -> States:
    """DeepSpeed's: 12 bytes a trained parameter for the optimizer, divided; float32 gradients of the part that steps."""
    parts = n.shards
    mine = n.trained * n.trained_width
    bucket = min(BUCKET, n.trained) * n.trained_width
    weights = (frozen + mine) / (parts if n.sharding == "zero3" else 1)
    gradients = mine if n.sharding == "zero1" else mine / parts
    optimizer = n.trained * (FLOAT / parts) + _moments(n.optim, n.trained, FLOAT) / parts
    return States(weights, gradients + bucket, optimizer, reference, n.trained * FLOAT / parts + bucket)


def _moments(optim: str, parameters: int, width: int) -> float:
    """Optimizer states in bytes: in the parameters' own type, but bitsandbytes' in 8 bits or in float32.

    Source: transformers training_args.py OptimizerNames; bitsandbytes optim/optimizer.py init_state. Paged states count as
    if they stayed on the GPU.
    """
    first = optim.removeprefix("paged_").split("_")[0]
    bytes_ = 1 if "8bit" in optim else FLOAT if _is_bitsandbytes(optim) else width
    return MOMENTS.get(first, 2.0) * parameters * bytes_


def _is_bitsandbytes(optim: str) -> bool:
    """Whether an optimizer of transformers' is made by bitsandbytes."""
    is_its_own = optim.startswith(("paged_", "ademamix", "lion", "rmsprop_bnb")) or "bnb" in optim
    return is_its_own or optim == "adamw_8bit"


def _kept_whole(n: Need) -> float:
    """What 8 bits do not hold: an embedding's states stay in float32. Source: transformers trainer.py create_optimizer."""
    if n.lora is not None or "8bit" not in n.optim or not _is_bitsandbytes(n.optim):
        return 0.0
    parameters = n.model.head_parameters
    return _moments(n.optim.replace("8bit", "32bit"), parameters, FLOAT) - _moments(n.optim, parameters, FLOAT)
