"""The shape of a model, read from its config.json, and the number of parameters that follows from
it.

Source: transformers 5.23 models/<model_type>/modeling_<model_type>.py. All these decoders gate
their MLP (three matrices).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from grporecipe.files import Config, only, read_own_yaml


@dataclass(frozen=True)
class Kind:
    """The features of one ``model_type`` of transformers on which memory depends."""

    # for each layer, over the hidden width
    norms: int = 2
    # over the head dimension, or over all heads
    query_key_norms: Literal["", "head", "width"] = ""
    # of the query, key and value projections
    has_bias: bool = False
    # the normalised values are multiplied by their weight in float32
    keeps_float_norm: bool = False
    # one layer in so many attends to all tokens, the others to a window
    full_every: int = 1


@cache
def load_kinds() -> Mapping[str, Kind]:
    """Return the kinds of models whose memory is known, by ``model_type``."""
    return {
        name: Kind(**features) for name, features in read_own_yaml(__file__, "kinds.yaml").items()
    }


LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Architecture:
    """A decoder; widths in elements, ``parameters`` as published (0: counted here).

    ``positions`` are the tokens of the longest sequence (0: unknown). With ``experts`` the MLP of a
    layer is replaced by that many MLPs of ``intermediate`` width, of which ``active_experts``
    compute each token. A vision tower has ``vision_parameters``, its projector included, and
    ``vision_layers`` of ``vision_hidden`` width; an image patch of ``vision_patch`` pixels a side,
    and ``vision_merge`` x ``vision_merge`` patches become one token (0: no tower).
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied_embeddings: bool = True
    model_type: str = "llama"
    parameters: int = 0
    positions: int = 0
    experts: int = 0
    active_experts: int = 0
    vision_parameters: int = 0
    vision_layers: int = 0
    vision_hidden: int = 0
    vision_intermediate: int = 0
    vision_patch: int = 0
    vision_merge: int = 1

    @property
    def kind(self) -> Kind:
        """Return the features of its layers. An unknown type counts as Llama."""
        return load_kinds().get(self.model_type, Kind())

    @property
    def query_width(self) -> int:
        """Return the width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Return the width of all key heads together; values have the same."""
        return self.kv_heads * self.head_dim

    @property
    def head_parameters(self) -> int:
        """Return the parameters of the language model head, even if they are tied to the
        embedding.
        """
        return self.vocabulary * self.hidden

    @property
    def computed_width(self) -> int:
        """Return the width of the MLP for one token: that of its active experts together."""
        return self.intermediate * (self.active_experts or 1)

    @property
    def layer_parameters(self) -> int:
        """Return the parameters of one decoder layer: four attention matrices, three per MLP, the
        router, norms and biases.
        """
        return self._layer(max(self.experts, 1))

    def _layer(self, experts: int) -> int:
        kind, queries, keys = self.kind, self.query_width, self.kv_width
        attention = 2 * self.hidden * (queries + keys)
        mlp = 3 * self.hidden * self.intermediate
        inside = {"": 0, "head": 2 * self.head_dim, "width": queries + keys}[kind.query_key_norms]
        biases = queries + 2 * keys if kind.has_bias else 0
        return (
            attention
            + experts * mlp
            + self.experts * self.hidden
            + kind.norms * self.hidden
            + inside
            + biases
        )

    def linear(self) -> dict[str, tuple[int, int]]:
        """Return inputs and outputs of a layer's linear modules, by name; of one expert."""
        h, m, q, kv = self.hidden, self.intermediate, self.query_width, self.kv_width
        return dict(
            zip(LINEAR, ((h, q), (h, kv), (h, kv), (q, h), (h, m), (h, m), (m, h)), strict=True)
        )

    def count(self) -> int:
        """Count all weights: layers, embedding, final norm, head if it is not tied, vision
        tower.
        """
        embeddings = 1 if self.tied_embeddings else 2
        return (
            self.layers * self.layer_parameters
            + embeddings * self.head_parameters
            + self.hidden
            + self.vision_parameters
        )

    @property
    def active(self) -> int:
        """Return the parameters that compute a token: all except the experts that are not
        chosen.
        """
        if not self.experts:
            return self.weights
        return self.weights - self.layers * (
            self.layer_parameters - self._layer(self.active_experts)
        )

    @property
    def weights(self) -> int:
        """Return the number of parameters, published or counted."""
        return self.parameters or self.count()

    def adapters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Return the parameters of LoRA: rank x (inputs + outputs) for each adapted module.

        Source: peft tuners/lora/layer.py.

        Experts in transformers 5 are not linear modules, so only attention gets adapters.
        """
        chosen = self.linear()
        if targets != ("all-linear",):
            chosen = only(chosen, targets)
        if self.experts:
            chosen = only(chosen, LINEAR[:4])
        return self.layers * sum(rank * (wide + narrow) for wide, narrow in chosen.values())


def read_config(config: Config) -> Architecture | None:
    """Return the shape that a config.json describes; None for an unknown kind of model or missing
    sizes.
    """
    inner = config.get("text_config")
    text: Config = {**config, **inner} if isinstance(inner, Mapping) else config
    kind = str(config.get("model_type", ""))
    if kind not in load_kinds():
        return None
    experts = _size(text, "num_experts") or _size(text, "num_local_experts")
    width = active = 0
    if experts:
        width = _size(text, "moe_intermediate_size")
        active = _size(text, "num_experts_per_tok")
    layers = _size(text, "num_hidden_layers")
    hidden = _size(text, "hidden_size")
    heads = _size(text, "num_attention_heads")
    vocabulary = _size(text, "vocab_size")
    intermediate = width or _size(text, "intermediate_size")
    if min(layers, hidden, heads, vocabulary, intermediate) < 1:
        return None
    # if config.json does not say: configuration_<kind>.py
    is_tied = kind.startswith("gemma") or kind == "smollm3"
    return Architecture(
        layers,
        hidden,
        intermediate,
        heads,
        _size(text, "num_key_value_heads") or heads,
        _size(text, "head_dim") or hidden // heads,
        vocabulary,
        bool(text.get("tie_word_embeddings", is_tied)),
        kind,
        parameters=_size(config, "parameters"),
        positions=_size(text, "max_position_embeddings"),
        experts=experts,
        active_experts=active,
        **_vision(kind, config, hidden),
    )


def _size(config: Config, name: str) -> int:
    """Return a size from a config.json; 0 if it has none."""
    value = config.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40:
        return value
    return 0


def _vision(kind: str, config: Config, hidden: int) -> dict[str, int]:
    """Return the fields of the vision tower, with its parameters; empty without a known tower."""
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping) or kind not in TOWERS:
        return {}
    layers = _size(vision, "depth") or _size(vision, "num_hidden_layers")
    width = _size(vision, "embed_dim") or _size(vision, "hidden_size")
    # Qwen2-VL: mlp_ratio
    mlp = _size(vision, "intermediate_size") or 4 * width
    # Gemma pools 4 x 4
    patch, merge = _size(vision, "patch_size"), _size(vision, "spatial_merge_size") or 4
    return {
        "vision_parameters": TOWERS[kind](vision, layers, width, mlp, patch, merge, hidden),
        "vision_layers": layers,
        "vision_hidden": width,
        "vision_intermediate": mlp,
        "vision_patch": patch,
        "vision_merge": merge,
    }


def _block(width: int, mlp: int, matrices: int, norm: int) -> int:
    """Return the parameters of one layer of a tower: four attention matrices, its MLP's, all with
    biases, and two norms.
    """
    biases = 4 * width + (matrices - 1) * mlp + width
    return 4 * width * width + matrices * width * mlp + biases + 2 * norm * width


def _qwen2(
    _: Any,
    layers: int,
    width: int,
    mlp: int,
    patch: int,
    merge: int,
    hidden: int,
    matrices: int = 2,
    norm: int = 2,
) -> int:
    merged = merge * merge * width
    merger = merged * merged + merged + merged * hidden + hidden + norm * width
    # 3 colours, 2 frames
    return layers * _block(width, mlp, matrices, norm) + 6 * patch * patch * width + merger


def _qwen3(
    vision: Any, layers: int, width: int, mlp: int, patch: int, merge: int, hidden: int
) -> int:
    merged = merge * merge * width
    deep = len(vision.get("deepstack_visual_indexes", (8, 16, 24)))
    merger = merged * merged + merged + merged * hidden + hidden
    positions = (_size(vision, "num_position_embeddings") or 2304) * width
    norms = 2 * width + deep * 2 * merged
    embedding = 6 * patch * patch * width + width
    return layers * _block(width, mlp, 2, 2) + embedding + positions + (1 + deep) * merger + norms


def _siglip(vision: Any, layers: int, width: int, mlp: int, patch: int, _: int, hidden: int) -> int:
    positions = (_size(vision, "image_size") // max(patch, 1)) ** 2 * width
    embedding = 3 * patch * patch * width + width
    projector = width * hidden + width
    return layers * _block(width, mlp, 2, 2) + embedding + positions + 2 * width + projector


TOWERS: dict[str, Callable[..., int]] = {
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": partial(_qwen2, matrices=3, norm=1),
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "gemma3": _siglip,
}
