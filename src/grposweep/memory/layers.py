"""Bytes that a decoder layer holds for each token: what autograd saves, what passes through, what a cache keeps.

Derived from transformers 5.23's modules operation by operation (what each saves for its backward pass), and compared with
what torch counts: benchmarks/memory/architectures.py. Attention is SDPA with a padding mask, as TRL calls it: keys and
values are repeated for every query head, and the boolean mask becomes a bias of the model's type.
"""

from dataclasses import dataclass

from grposweep.architecture import Architecture

FLOAT = 4  # bytes of a float32
INPUTS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))  # that share theirs


@dataclass(frozen=True)
class Lora:
    """Adapters of this rank on these modules; ``("all-linear",)`` for every linear one."""

    rank: int
    targets: tuple[str, ...] = ("all-linear",)

    def has(self, module: str) -> bool:
        """Whether a module has one."""
        return self.targets == ("all-linear",) or module in self.targets


def saved_by_layer(
    a: Architecture, width: int, length: int, lora: Lora | None = None, compute: int | None = None
) -> int:
    """Bytes a token that one layer's forward pass saves; ``width`` bytes an element, ``length`` tokens a sequence.

    Norms; queries, keys, values and their attention with a log-sum-exp a head, and the mask's row for the token; gate,
    its activation and up; the inputs of the linear modules. ``compute`` bytes are an element's of all but the norms where
    autocast makes them fewer than the weights'; it then copies the input of each of the modules that share theirs.
    """
    compute = compute or width
    kind = a.kind
    norms = kind.norms * (saved_by_norm(a, a.hidden, width, lora) + FLOAT)
    if kind.has_query_key_norms:
        norms += saved_by_norm(a, a.query_width + a.kv_width, compute, lora) + FLOAT * (a.heads + a.kv_heads)
    repeated = a.query_width if a.kv_heads > 1 else a.kv_width  # a single head is repeated as a view
    attention = 2 * (a.query_width + repeated) * compute + FLOAT * a.heads + length * compute
    copies = 3 * a.hidden * compute if compute < width and lora is None else 0
    return norms + attention + 3 * a.intermediate * compute + _inputs(a, compute, lora) + copies


def saved_by_norm(a: Architecture, elements: int, width: int, lora: Lora | None = None) -> int:
    """An RMSNorm's float32 copy of its input (the input itself where that is float32), and the normalised values.

    These are kept for the gradient of the norm's weight, which adapters leave frozen.
    """
    if lora is not None:
        return elements * FLOAT
    return elements * (FLOAT + (FLOAT if a.kind.keeps_float_norm else width))


def _inputs(a: Architecture, width: int, lora: Lora | None) -> int:
    """What the linear modules keep for the gradients of their weights; the attention that o_proj reads is kept already.

    A frozen module keeps nothing. Its adapter keeps its ``rank`` values, and the input: one for those that share it, but
    in half precision a copy each, because peft casts to the adapter's float32 and autocast back. Source: peft
    tuners/lora/layer.py Linear.forward.
    """
    elements = {"q_proj": a.hidden, "o_proj": 0, "gate_proj": a.hidden, "down_proj": a.intermediate}
    if lora is None:
        return sum(elements.values()) * width
    modules = {name: inputs for name, (inputs, _) in a.linear().items() if lora.has(name)}
    if width < FLOAT:
        kept = sum(modules.values())
    else:
        kept = sum(elements[group[0]] for group in INPUTS if any(name in modules for name in group))
    return (kept + lora.rank * len(modules)) * width


def passing_forward(a: Architecture, width: int) -> int:
    """Bytes a token while one layer runs without gradients: the MLP's three widest at once, or attention's."""
    mlp, attention = 3 * a.intermediate * width, 5 * a.query_width * width
    return max(mlp, attention) + a.hidden * (2 * width + FLOAT)


def passing_backward(a: Architecture, width: int) -> int:
    """Bytes a token of gradients on their way through one layer: two of the MLP's width, two of the hidden (measured)."""
    return 2 * (a.intermediate + a.hidden) * width


def cached(a: Architecture, width: int) -> int:
    """Bytes a token in the key-value cache of all layers. Source: transformers cache_utils.py DynamicLayer."""
    return 2 * a.layers * a.kv_width * width
