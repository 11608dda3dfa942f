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
SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp")
BUCKET = 100_000_000  # elements that ZeRO reduces and gathers at once, as train/sharding.py sets it
# Moments a parameter, in multiples of its own bytes; what is not named counts as Adam.
MOMENTS = {"sgd": 0.0, "adafactor": 0.1, "lion_32bit": 1.0, "adagrad": 1.0, "rmsprop": 1.0}


@dataclass(frozen=True)
class States:
    """Bytes a rank; ``stepping`` is what the optimizer step needs besides."""

    weights: float
    gradients: float
    optimizer: float
    reference: float
    stepping: float


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
    return States(frozen + mine, copies * mine, _moments(n.optim, n.trained, n.trained_width), reference, stepping)


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
    """Optimizer states in bytes: two moments of Adam in the parameters' own type; a byte each in 8 bits."""
    if "8bit" in optim:
        return 2.0 * parameters
    return MOMENTS.get(optim, 2.0) * parameters * width
