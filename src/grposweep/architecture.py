"""A decoder's architecture as the estimator sees it: widths, how a layer is built, and the parameters that follow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What tells the layers of one ``model_type`` of transformers from another's, as far as memory notices."""

    norms: int = 2  # a layer, over the hidden width
    has_query_key_norms: bool = False  # over the head dimension
    has_bias: bool = False  # of the query, key and value projections
    keeps_float_norm: bool = False  # the normalised values are multiplied by their weight in float32


# transformers 5.23 models/<model_type>/modeling_<model_type>.py; all gate their MLP (three matrices) and attend by SDPA.
KINDS = {
    "llama": Kind(),
    "mistral": Kind(),
    "qwen2": Kind(has_bias=True),
    "qwen3": Kind(has_query_key_norms=True),
    "gemma": Kind(keeps_float_norm=True),
    "gemma3_text": Kind(norms=4, has_query_key_norms=True, keeps_float_norm=True),
}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Architecture:
    """A dense decoder; widths in elements, ``parameters`` as published (0: as counted here)."""

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

    @property
    def kind(self) -> Kind:
        """How its layers are built; an unknown type counts as Llama's."""
        return KINDS.get(self.model_type, KINDS["llama"])

    @property
    def query_width(self) -> int:
        """All query heads side by side."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """All key heads side by side, and as many for values."""
        return self.kv_heads * self.head_dim

    @property
    def head_parameters(self) -> int:
        """The language model head, which is the embedding where they are tied."""
        return self.vocabulary * self.hidden

    @property
    def layer_parameters(self) -> int:
        """One decoder layer: four attention matrices, three of the MLP, norms and biases."""
        kind, queries, keys = self.kind, self.query_width, self.kv_width
        matrices = sum(wide * narrow for wide, narrow in self.linear().values())
        norms = kind.norms * self.hidden + (2 * self.head_dim if kind.has_query_key_norms else 0)
        return matrices + norms + (queries + 2 * keys if kind.has_bias else 0)

    def linear(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of a layer's linear modules, by name."""
        h, m, q, kv = self.hidden, self.intermediate, self.query_width, self.kv_width
        return dict(zip(LINEAR, ((h, q), (h, kv), (h, kv), (q, h), (h, m), (h, m), (m, h)), strict=True))

    def count(self) -> int:
        """All weights: layers, embedding, final norm, and a head of its own where it is not tied."""
        embeddings = self.head_parameters * (1 if self.tied_embeddings else 2)
        return self.layers * self.layer_parameters + embeddings + self.hidden

    @property
    def weights(self) -> int:
        """Parameters, published or counted."""
        return self.parameters or self.count()

    def adapters(self, rank: int, targets: tuple[str, ...]) -> int:
        """LoRA's weights: rank x (inputs + outputs) for each module it is put on. Source: peft tuners/lora/layer.py."""
        chosen = self.linear()
        if targets != ("all-linear",):
            chosen = {name: widths for name, widths in chosen.items() if name in targets}
        return self.layers * sum(rank * (wide + narrow) for wide, narrow in chosen.values())
