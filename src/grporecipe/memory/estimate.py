"""Estimate the peak GPU memory of one rank: named parts for each phase, from a setting, with an
error interval; and vLLM's share of a GPU, with the bytes that this share must hold before vLLM
starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from grporecipe.files import read_own_yaml
from grporecipe.memory import parts
from grporecipe.memory.parts import (
    ASSUMED_PROMPT_TOKENS,
    FLOAT,
    HALF,
    WEIGHTS_SHARDED,
    ZERO,
    Need,
    States,
    find_prompt,
    find_states,
    read_need,
)
from grporecipe.model.setting import Setting

GIB = 2**30
# vLLM itself (an assumption): activations of 4,096 tokens, a step's logits, CUDA graphs
ENGINE = 1.0 * GIB
# trl 0.18 and later
DEFAULT_SHARE = 0.3
# before, TRL set max_prompt_length + max_completion_length
OWN_LENGTH = (0, 26)
# Constants that no formula gives, each with its source. `tolerances.yaml` holds their errors.
# CUDA's context (0.3-0.5 GiB by driver and GPU) and cuBLAS's workspaces (32 MiB a stream on Hopper)
CONTEXT = 0.6 * GIB
# one NCCL communicator: channels x 4 MiB buffers for each peer (NCCL_BUFFSIZE), and NVLS's
COMMUNICATION = 0.4 * GIB
# vLLM asleep: its graphs and workspaces (NVIDIA-NeMo/RL#223: 774 MiB)
ASLEEP = 0.76 * GIB
# CUDA graphs of vLLM, which it captures beyond its share ("Graph capturing finished ... took")
GRAPHS = 0.6 * GIB
# the same with tensor parallelism: 2,440 and 7,392 MiB in the same thread
ASLEEP_PARALLEL = 4.8 * GIB
# of what is allocated and freed again: split blocks that cannot be reused
FRAGMENTATION = 0.06
# trl 1.16 kernels/chunked_logprob.py and trainer/utils.py
TILE_TOKENS, TILE_WORDS = 4096, 32_768
# Bytes per vocabulary entry and token at the start of the backward pass, by how logits are held.

# elements: the scaled logits, their gradient, and a row's (trl 1.14 utils.py selective_log_softmax)
WHOLE_LOGITS = 3
PACKED_LOGITS = (
    # half precision: logits and their gradient (verl workers/actor/dp_actor.py, flash_attn
    # cross_entropy)
    4
)
# and the entropy's gradient (verl utils/torch_functional.py entropy_from_logits)
ENTROPY_LOGITS = 6
# elements, without gradients: the logits and their scaled copy
SCORED_LOGITS = 2
PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "reference",
    "activations",
    "logits",
    "generation",
    "peak",
)
TOLERANCE = read_own_yaml(__file__, "tolerances.yaml")
# share of the limit of a prompt or a packed sequence, assumed if the data are unknown
FEWEST_TOKENS = 0.25


@dataclass(frozen=True)
class Memory:
    """The bytes of one rank: the parts of each phase, and the rank's total states.

    ``parts`` include the context, fragmentation and everything that stays allocated.
    ``activations`` and ``logits`` are of the backward phase. ``generation`` is the key-value cache
    with its logits, or vLLM's share. ``factors`` correct phases by measurements. ``shorter`` is the
    need with the shortest possible sequences, if their length is unknown.
    """

    weights: float
    gradients: float
    optimizer: float
    reference: float
    activations: float
    logits: float
    generation: float
    parts: Mapping[str, Mapping[str, float]]
    factors: Mapping[str, float]
    shorter: Need | None = field(default=None, compare=False, repr=False)

    @cached_property
    def phases(self) -> dict[str, float]:
        """Return the bytes of each phase."""
        return {
            phase: sum(parts.values()) * self.factors.get(phase, 1.0)
            for phase, parts in self.parts.items()
        }

    @property
    def peak(self) -> float:
        """Return the bytes of the largest phase."""
        return max(self.phases.values())

    @property
    def peak_phase(self) -> str:
        """Return the name of the largest phase."""
        return max(self.phases, key=lambda name: self.phases[name])

    @cached_property
    def low(self) -> float:
        """Return the lower end of the peak in bytes: a GPU with less is too small."""
        if self.shorter is not None:
            return build_memory(self.shorter, self.factors).low
        return self._bound(0, -1)

    @cached_property
    def high(self) -> float:
        """Return the upper end of the peak in bytes: a GPU with more is large enough."""
        return self._bound(1, 1)

    def _bound(self, side: int, sign: int) -> float:
        """Return the largest phase if every part is off by its tolerance. In a measured phase half
        of the tolerance is used.
        """
        highest = 0.0
        for phase, sizes in self.parts.items():
            share = 0.5 if phase in self.factors else 1.0
            bound = sum(
                size * (1 + sign * share * TOLERANCE[part][side]) for part, size in sizes.items()
            )
            highest = max(highest, bound * self.factors.get(phase, 1.0))
        return highest

    def as_gib(self) -> dict[str, float]:
        """Return the parts and the peak in GiB, as the plan's JSON shows them."""
        return {name: round(getattr(self, name) / GIB, 3) for name in PARTS}


def estimate(s: Setting) -> Memory | None:
    """Estimate the memory of one rank; None if the model's shape is unknown."""
    need = read_need(s)
    if need is None:
        return None
    return build_memory(need, dict(s.memory_factors))


def memory_gib(s: Setting) -> dict[str, float] | None:
    """Return the parts and the peak of one rank in GiB; None if the model's shape is unknown."""
    memory = estimate(s)
    if memory is None:
        return None
    return memory.as_gib()


def build_memory(n: Need, factors: Mapping[str, float]) -> Memory:
    """Compute the memory of a need.

    With accumulation, gradients exist from the first micro-batch on. Otherwise only those of the
    head exist while activations are at their largest. They are freed before the next rollout
    (transformers trainer.py). To generate without vLLM, TRL gathers all weights that ZeRO-3 has
    divided, and FSDP gathers one layer at a time (trl models/utils.py). To vLLM it sends them one
    parameter at a time, but all at once with adapters, which it merges (trl
    generation/vllm_generation.py _iter_named_params). verl and EasyR1 bring offloaded weights back
    to send them, while vLLM is awake (verl workers/sharding_manager/fsdp_vllm.py).
    """
    states = find_states(n)
    saved, passing = find_activations(n)
    head = find_head(n)
    generation = find_generation(n)
    engine = n.engine_share * (n.gpu_gib or 0.0) * GIB
    gathered = _gathered(n)
    sent = {"gathered": _gathered_whole(n, gathered)}
    halves = find_halves(n)
    kept = _head_weight(n)
    if n.accumulates or n.processes > 1:
        kept = states.gradients
    # Autocast's copies are kept until the forward pass ends; those of frozen weights are not.
    cached = halves
    if n.lora is not None:
        cached /= n.model.layers
    largest = max(head, passing)
    if n.checkpoints:
        largest = max(largest, cached)
    backward = {
        "gradients": kept,
        "activations": saved + largest,
        "logits": 0.0,
        "gathered": gathered,
    }
    if head == largest:
        backward |= {"activations": saved, "logits": head}
    moving = {
        "load": {},
        "generation": {"generation": generation, **sent},
        "scoring": {
            "activations": n.tokens_of(n.scored) * parts.passing_forward(n) + cached,
            "logits": _scored_logits(n),
            "gathered": gathered,
        },
        "backward": backward,
        "step": {"gradients": states.gradients + states.stepping},
    }
    if n.uses_vllm:
        moving["generation"] = {"generation": generation}
    if n.uses_vllm and n.engine_share:
        moving["sync"] = sent
    return Memory(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        reference=states.reference,
        activations=saved + passing,
        logits=head,
        generation=generation + engine,
        parts={
            name: _with_what_stays(n, states, name, sizes, engine) for name, sizes in moving.items()
        },
        factors=factors,
        shorter=_shortened(n),
    )


def _shortened(n: Need) -> Need | None:
    """Return a need with the shortest possible sequences; None if their length is known.

    Real sequences may be shorter than the limit, because a batch is padded only to its longest
    sequence.
    """
    runtime = n.runtime
    if (
        runtime.packs
        and not runtime.fills
        and runtime.mean_tokens is None
        and runtime.tokens_per_batch is None
    ):
        tokens = max(int(n.length * FEWEST_TOKENS), 1)
        return replace(n, runtime=replace(runtime, mean_tokens=tokens), is_limit=False)
    if n.is_limit:
        return replace(n, prompt=max(int(n.prompt * FEWEST_TOKENS), 1), is_limit=False)
    return None


# the parts that each phase brings back from main memory
USES = {
    "sync": ("weights",),
    "scoring": ("weights", "reference"),
    "backward": ("weights",),
    "step": ("weights", "optimizer"),
}


def _with_what_stays(
    n: Need, states: States, phase: str, moving: Mapping[str, float], engine: float
) -> dict[str, float]:
    """Add to a phase's parts the states on the GPU, vLLM's share, the context and the memory lost
    to fragmentation.
    """
    sizes = {
        "weights": states.weights,
        "reference": states.reference,
        "optimizer": states.optimizer,
    }
    used = () if n.runtime.computes_offloaded else USES.get(phase, ())
    sizes |= dict.fromkeys(n.runtime.offloads.difference(used), 0.0)
    if phase == "load":
        sizes |= {"weights": states.weights, "optimizer": 0.0}
    # in other phases they are counted with the gradients
    buckets = states.buckets if phase in ("generation", "scoring", "sync") else 0
    groups = 1 + (n.sequence_ranks > 1) + (n.engine_ranks > 1 and n.engine_share > 0)
    asleep = ASLEEP_PARALLEL if n.engine_ranks > 1 else ASLEEP
    awake = (
        phase in ("load", "generation")
        or (phase == "sync" and n.runtime.wakes_whole)
        or not n.engine_sleeps
    )
    sizes |= {
        **moving,
        "gradients": moving.get("gradients", 0.0) + buckets,
        "engine": engine,
        "asleep": 0.0,
        "graphs": 0.0,
        "context": CONTEXT,
        "communication": 0.0,
        "fragmentation": sum(moving.values()) * FRAGMENTATION,
    }
    if phase == "sync" and not awake:
        # its cache is allocated later
        sizes["engine"] = n.model.weights * HALF / n.engine_ranks
    elif phase != "sync" and engine and not awake:
        sizes |= {"engine": 0.0, "asleep": asleep}
    elif phase != "sync" and engine and not n.runtime.eager:
        sizes["graphs"] = GRAPHS
    if n.processes > 1:
        sizes["communication"] = COMMUNICATION * groups
    return {name: size for name, size in sizes.items() if size}


def find_activations(n: Need) -> tuple[float, float]:
    """Return the bytes that a micro-batch's forward pass saves, and what one layer's backward pass
    needs in addition.

    With checkpointing each layer saves its input, and one layer is recomputed. The final norm saves
    like any other. The embedding's gradient is dense, as is that of the largest matrix before it is
    added to the others.
    """
    model = n.model
    width = n.width
    layer: float = n.tokens * parts.saved_by_layer(n)
    if not n.runtime.packs and n.lora is not None and n.compute < FLOAT:
        # autocast's copies of float32 adapters, saved for the backward pass
        layer += n.trained * n.compute / model.layers
    # for the gradient of the head
    kept = model.hidden * width if n.lora is None or n.runtime.head == "tiles" else 0
    last = n.tokens * (parts.saved_by_norm(n, model.hidden, width) + FLOAT + kept) + _tower(n)
    matrix = model.hidden * model.intermediate * max(model.experts, 1)
    # The gradient of the largest matrix, or a quantized one in half precision.
    dense = matrix * HALF if n.runtime.weight_bits else 0
    if n.lora is None:
        dense = matrix * width
    # per token the gradients of two widths of the MLP and two hidden widths (measured)
    passing = n.tokens * 2 * (model.computed_width + model.hidden) * width + dense
    halves = find_halves(n)
    if not n.checkpoints:
        return model.layers * layer + last + halves, passing
    inputs = n.tokens * model.layers * model.hidden * width * n.runtime.saved_hidden
    return inputs + last, layer + passing + halves / model.layers


def find_head(n: Need) -> float:
    """Return the head's working memory in the backward pass, in bytes.

    TRL 1.16 never holds all logits of a micro-batch. It processes tiles of 4,096 completion tokens
    x 32,768 vocabulary entries. The gradient of a head that is trained is gathered in float32, as
    large as the vocabulary. Source: trl kernels/chunked_logprob.py backward. Other versions hold
    all logits with their gradients.
    """
    if n.runtime.head != "tiles":
        # the gradient
        weight = _head_weight(n)
        return _head_tokens(n, n.batch) * n.model.vocabulary * _logit_bytes(n) + weight
    hidden = n.batch * n.completion * n.model.hidden * (FLOAT + n.width)
    weight = n.model.head_parameters * (FLOAT + n.width) if n.lora is None else 0
    return _tile(n, n.batch) + hidden + weight


def _logit_width(n: Need) -> int:
    """Return bytes per logit: accelerate converts outputs to float32, except DeepSpeed's
    (accelerator.py prepare_model).
    """
    if n.runtime.head == "packed" or (n.sharding in ZERO and n.compute == HALF):
        return HALF
    return FLOAT


def _logit_bytes(n: Need) -> int:
    if n.runtime.head == "whole":
        return WHOLE_LOGITS * _logit_width(n)
    return ENTROPY_LOGITS if n.runtime.has_entropy_loss else PACKED_LOGITS


def _head_tokens(n: Need, sequences: int) -> int:
    """Return the tokens whose logits are held: those of completions, or all tokens of packed
    sequences.

    Trainers that hold all logits also hold the prompt's if the model reads images: its forward pass
    takes no ``logits_to_keep`` (VLM-R1 and Video-R1 grpo_trainer.py _get_per_token_logps).
    """
    all_tokens = n.runtime.head == "packed" or n.model.vision_layers > 0
    return n.tokens_of(sequences) if all_tokens else sequences * n.completion


def _scored_logits(n: Need) -> float:
    if n.runtime.head == "tiles":
        return _tile(n, n.scored)
    return _head_tokens(n, n.scored) * n.model.vocabulary * SCORED_LOGITS * _logit_width(n)


def _tower(n: Need) -> float:
    """Return the bytes that the vision tower saves; frozen towers count too."""
    images = min(n.runtime.image_tokens, n.prompt)
    if not images or not n.model.vision_layers:
        return 0.0
    return n.batch * parts.saved_by_tower(n.model, images, n.compute, n.checkpoints)


def find_generation(n: Need) -> float:
    """Return bytes of a rollout's full key-value cache, one layer's copy while it grows, and a
    step's logits.

    transformers generates a rank's whole rollout at once and grows the cache by concatenation.
    Source: cache_utils.py.
    """
    if n.rollout == 0:
        return 0.0
    model = n.model
    cache = n.rollout * n.length * 2 * model.layers * model.kv_width * n.width
    logits = n.rollout * model.vocabulary * sampled_bytes(n.width, n.is_filtered, n.is_nucleus)
    prefill = n.rollout * n.prompt * parts.passing_forward(n)
    return cache + max(cache / model.layers + logits, prefill)


def sampled_bytes(width: int, is_filtered: bool, is_nucleus: bool) -> int:
    """Return bytes per vocabulary entry while a token is sampled: the logit, its float32 copy and
    its probability.

    A temperature or top_k makes another copy. top_p sorts them (values, int64 indices,
    probabilities, their sums, and a mask). Source: transformers generation/utils.py _sample,
    logits_process.py.
    """
    return width + FLOAT * (2 + is_filtered) + 18 * is_nucleus


def _tile(n: Need, completions: int) -> float:
    """Return the bytes of the logits held at once in training and scoring."""
    return (
        min(completions * n.completion, TILE_TOKENS) * min(TILE_WORDS, n.model.vocabulary) * n.width
    )


def _head_weight(n: Need) -> float:
    """Return the bytes of the head's gradient, which is computed first."""
    if n.lora is None:
        return n.model.head_parameters * n.width
    return 0


def find_halves(n: Need) -> float:
    """Return the bytes of autocast's copies of layer weights for the backward pass. Copies of
    trained weights stay until it ends.

    Source: torch ATen/autocast_mode.cpp cached_cast: of float32 leaves that need a gradient.
    """
    if n.compute < n.width:
        return n.model.layers * n.model.layer_parameters * n.compute
    return 0.0


def _gathered_whole(n: Need, gathered: float) -> float:
    """Return the bytes of weights gathered to generate, or to send them to vLLM."""
    if n.sharding != "zero3":
        return gathered
    if n.uses_vllm and n.lora is None:
        return n.model.head_parameters * n.width
    return n.model.weights * n.width


def _gathered(n: Need) -> float:
    """Return the bytes of weights that sharded passes gather: the head and two layers (one without
    other ranks).

    FSDP gathers everything outside of the layers together, so the embedding and an untied head are
    held at once.
    """
    if n.sharding not in WEIGHTS_SHARDED:
        return 0
    embeddings = 2 if n.sharding == "fsdp" and not n.model.tied_embeddings else 1
    # the next one is fetched ahead
    layers = min(n.processes, 2)
    return (embeddings * n.model.head_parameters + layers * n.model.layer_parameters) * n.width


@dataclass(frozen=True)
class Engine:
    """Bytes of one GPU: vLLM's share, and the parts that it must hold before vLLM starts.

    ``cache`` are keys and values of one sequence of ``tokens``, the longest that vLLM accepts.
    """

    share: float
    weights: float
    cache: float
    tokens: int

    @property
    def needed(self) -> float:
        """Return the bytes that the share must hold."""
        return self.weights + self.cache + ENGINE


def find_engine(s: Setting) -> Engine | None:
    """Return vLLM's share if its GPU and the model are known; None without vLLM, or with a server
    elsewhere.

    It splits weights and key-value heads among its tensor parallel ranks, and converts float32
    weights to half precision unless the type is set, as for a job's own server. Source: vllm
    v1/core/kv_cache_utils.py check_enough_kv_cache_memory.
    """
    model, gib, size = s.architecture, s.gpu_memory_gib, max(s.vllm_tensor_parallel_size, 1)
    is_here = s.vllm_mode == "colocate" or s.server_gpus or s.shared_server_gpus
    if not (s.use_vllm and is_here) or model is None or gib is None:
        return None
    # the memory is a trial's part of its GPU, and the server's share is not
    whole = s.gpu_trials if s.shared_server_gpus else 1
    is_float = (
        s.vllm_mode != "colocate" and s.weights_dtype == "float32" and s.autocast_dtype is None
    )
    width = FLOAT if is_float else HALF
    tokens = find_longest_sequence(s, model.positions)
    layers = -(-model.layers // model.kind.full_every)
    heads = max(model.kv_heads / size, 1)
    return Engine(
        share=(s.vllm_gpu_memory_utilization or DEFAULT_SHARE) * gib * whole * GIB,
        weights=model.weights * width / size,
        cache=2 * layers * heads * model.head_dim * width * tokens,
        tokens=tokens,
    )


def find_longest_sequence(s: Setting, positions: int) -> int:
    """Return vLLM's longest sequence in tokens: as set, as TRL derives it, or the model's
    ``positions`` if they are known.
    """
    if s.vllm_max_model_length is not None:
        return s.vllm_max_model_length
    # EasyR1 and verl pass prompt and response length to vLLM
    # (workers/rollout/vllm_rollout_spmd.py).
    is_derived = s.framework.unit == "prompts" or (
        s.version < OWN_LENGTH and s.max_prompt_length is not None
    )
    if is_derived or not positions:
        return (find_prompt(s) or ASSUMED_PROMPT_TOKENS) + s.max_completion_length
    return positions
