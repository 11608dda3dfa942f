"""Peak GPU memory of one rank, phase by phase, from a setting alone; and how far its sizes can go on a GPU."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import gcd
from typing import Any

from grposweep.memory import parts
from grposweep.memory.catalog import GPUS
from grposweep.memory.parts import (
    ASSUMED_PROMPT_TOKENS,
    FLOAT,
    HALF,
    WEIGHTS_SHARDED,
    Need,
    States,
    find_prompt,
    find_states,
    read_need,
)
from grposweep.planning import micro_steps_per_generation
from grposweep.setting import Setting

GIB = 2**30
CONTEXT = 0.6 * GIB  # CUDA's context and cuBLAS's workspaces: an assumption until measured, and so are these two
COMMUNICATION = 0.4 * GIB  # NCCL's buffers, with several ranks
ENGINE = 1.0 * GIB  # vLLM's own: activations of 4,096 tokens, a step's logits, CUDA graphs: an assumption as well
DEFAULT_SHARE = 0.3  # trl 0.18 and later
OWN_LENGTH = (0, 26)  # before, TRL told vLLM max_prompt_length + max_completion_length
FRAGMENTATION = 0.06  # of what is allocated and freed again
TILE_TOKENS, TILE_WORDS = 4096, 32_768  # trl 1.16 kernels/chunked_logprob.py and trainer/utils.py
MOST_COMPLETIONS, MOST_TOKENS, MOST_GENERATIONS = 4096, 1 << 18, 4096  # more is no realistic question
PARTS = ("weights", "gradients", "optimizer", "reference", "activations", "logits", "generation", "peak")


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank: what each part takes at its largest, and what each phase comes to.

    ``activations`` and ``logits`` are of the backward phase, ``generation`` of the key-value cache and its logits, or
    vLLM's share. ``phases`` include the context, fragmentation and everything that stays.
    """

    weights: float
    gradients: float
    optimizer: float
    reference: float
    activations: float
    logits: float
    generation: float
    phases: Mapping[str, float]

    @property
    def peak(self) -> float:
        """The largest phase."""
        return max(self.phases.values())

    @property
    def peak_phase(self) -> str:
        """Its name."""
        return max(self.phases, key=lambda name: self.phases[name])

    def as_gib(self) -> dict[str, float]:
        """The parts and the peak in GiB, as the plan's JSON shows them."""
        return {name: round(getattr(self, name) / GIB, 3) for name in PARTS}


def estimate(s: Setting) -> Memory | None:
    """The memory of one rank; None where the model's shape is not known.

    ``memory_factor`` is what a sweep's own peaks have shown the estimate to be off by.
    """
    need = read_need(s)
    return None if need is None else build_memory(need, s.memory_factor)


def memory_gib(s: Setting) -> dict[str, float] | None:
    """The parts and the peak in GiB, a rank; None where the model's shape is not known."""
    memory = estimate(s)
    return None if memory is None else memory.as_gib()


def build_memory(n: Need, factor: float = 1.0) -> Memory:
    """The memory behind a need.

    Gradients are there from the first micro-batch on where several accumulate, and then in every later one; otherwise only
    the head's are while activations are at their largest. They are freed before the next rollout (transformers trainer.py).
    To generate itself TRL gathers all weights that ZeRO-3 has divided, and FSDP a layer at a time (trl models/utils.py). To
    vLLM it sends them one parameter at a time, but all at once with adapters, which it merges
    (trl generation/vllm_generation.py _iter_named_params).
    """
    states = find_states(n)
    engine = n.engine_share * (n.gpu_gib or 0.0) * GIB
    scored = n.scored * n.length
    saved, passing = find_activations(n)
    head, generation = find_head(n), find_generation(n)
    kept = states.gradients if n.accumulates or n.processes > 1 else _head_weight(n)
    gathered = _gathered(n)
    halves = find_halves(n)
    cached = (
        halves if n.lora is None else halves / n.model.layers
    )  # until a forward pass has ended; frozen ones are not
    moving = {
        "load": 0.0,
        "generation": generation + _gathered_to_generate(n, gathered),
        "scoring": scored * parts.passing_forward(n.model, n.width) + _tile(n, n.scored) + gathered + cached,
        "backward": kept + saved + max(head, passing, cached if n.checkpoints else 0) + gathered,
        "step": states.gradients + states.stepping,
    }
    phases = {name: _with_overhead(n, states, name, bytes_, engine) * factor for name, bytes_ in moving.items()}
    return Memory(
        weights=states.weights,
        gradients=states.gradients,
        optimizer=states.optimizer,
        reference=states.reference,
        activations=saved + passing,
        logits=head,
        generation=generation + engine,
        phases=phases,
    )


def _with_overhead(n: Need, states: States, phase: str, moving: float, engine: float) -> float:
    """A phase with what stays: the states, vLLM's share, the context; and what fragmentation wastes."""
    stays = states.weights + states.reference + (0 if phase == "load" else states.optimizer)
    buckets = states.buckets if phase in ("generation", "scoring") else 0  # elsewhere they are among the gradients
    fixed = CONTEXT + (COMMUNICATION if n.processes > 1 else 0)
    awake = engine if phase in ("load", "generation") or not n.engine_sleeps else 0
    return stays + buckets + moving * (1 + FRAGMENTATION) + fixed + awake


def find_activations(n: Need) -> tuple[float, float]:
    """What the forward pass of a micro-batch saves, and what one layer's backward pass needs besides, in bytes.

    With checkpointing each layer saves its input, and one layer is computed again. The final norm saves as any other; the
    embedding's gradient is dense, and so is that of the largest matrix before it is added to the others.
    """
    model, width = n.model, n.width
    layer = n.tokens * parts.saved_by_layer(model, width, n.length, n.lora, n.compute) + _casts(n) / model.layers
    last = n.tokens * (parts.saved_by_norm(model, model.hidden, width, n.lora) + FLOAT + model.hidden * width)
    dense = max(model.hidden * model.intermediate * width, 0) if n.lora is None else 0
    passing = n.tokens * parts.passing_backward(model, width) + dense
    halves = find_halves(n)
    if not n.checkpoints:
        return model.layers * layer + last + halves, passing
    return n.tokens * model.layers * model.hidden * width + last, layer + passing + halves / model.layers


def find_head(n: Need) -> float:
    """The head's working memory in the backward pass, in bytes: a tile of logits, and gradients in float32 and then again.

    TRL 1.16 never holds all logits of a micro-batch: it goes over tiles of 4,096 completion tokens x 32,768 words. The
    gradient of a head that is trained is gathered in float32, as large as the vocabulary. Source: trl
    kernels/chunked_logprob.py backward.
    """
    hidden = n.batch * n.completion * n.model.hidden * (FLOAT + n.width)
    weight = n.model.head_parameters * (FLOAT + n.width) if n.lora is None else 0
    return _tile(n, n.batch) + hidden + weight


def find_generation(n: Need) -> float:
    """The key-value cache of a rollout at its longest, one layer's copy while it grows, and a step's logits, in bytes.

    transformers generates all of a rank's rollout at once, and grows the cache by concatenation. Source: cache_utils.py.
    """
    if n.rollout == 0:
        return 0.0
    model, width = n.model, n.width
    cache = n.rollout * n.length * parts.cached(model, width)
    logits = n.rollout * model.vocabulary * sampled_bytes(width, n.is_filtered, n.is_nucleus)
    prefill = n.rollout * n.prompt * parts.passing_forward(model, width)
    return cache + max(cache / model.layers + logits, prefill)


def sampled_bytes(width: int, is_filtered: bool, is_nucleus: bool) -> int:
    """Bytes a word of the vocabulary while a token is drawn: the logit, and in float32 its copy and its probability.

    A temperature or top_k makes another copy; top_p sorts them (values, places as int64, probabilities, their sums, and
    which to leave out). Source: transformers generation/utils.py _sample, logits_process.py.
    """
    return width + 2 * FLOAT + (FLOAT if is_filtered else 0) + (18 if is_nucleus else 0)


def _tile(n: Need, completions: int) -> float:
    """The logits that are there at once in training and scoring, in bytes."""
    return min(completions * n.completion, TILE_TOKENS) * min(TILE_WORDS, n.model.vocabulary) * n.width


def _head_weight(n: Need) -> float:
    """The gradient of the head, the first to be there."""
    return n.model.head_parameters * n.width if n.lora is None else 0


def _casts(n: Need) -> float:
    """Autocast's copies of float32 adapters, saved for the backward pass."""
    return n.trained * n.compute if n.lora is not None and n.compute < FLOAT else 0


def find_halves(n: Need) -> float:
    """Autocast's copies of the layers' weights, which a backward pass needs; those that are trained are kept till a pass ends.

    Source: torch ATen/autocast_mode.cpp cached_cast: of float32 leaves that need a gradient.
    """
    return n.model.layers * n.model.layer_parameters * n.compute if n.compute < n.width else 0.0


def _gathered_to_generate(n: Need, gathered: float) -> float:
    """Weights that a rank has gathered to generate, or to send them to vLLM."""
    if n.sharding != "zero3":
        return gathered
    return (n.model.weights if n.lora is not None or not n.uses_vllm else n.model.head_parameters) * n.width


def _gathered(n: Need) -> float:
    """Weights that a sharded forward and backward pass has gathered: the head and two layers.

    FSDP gathers what lies outside of the layers together, so a head of its own and the embedding are there at once.
    """
    if n.sharding not in WEIGHTS_SHARDED:
        return 0
    embeddings = 2 if n.sharding == "fsdp" and not n.model.tied_embeddings else 1
    return (embeddings * n.model.head_parameters + 2 * n.model.layer_parameters) * n.width


# vLLM's share of a GPU.


@dataclass(frozen=True)
class Engine:
    """Bytes of one GPU: vLLM's share, and what must fit into it before vLLM starts.

    ``cache`` are keys and values of one sequence of ``tokens``, the longest that vLLM may be asked for.
    """

    share: float
    weights: float
    cache: float
    tokens: int

    @property
    def needed(self) -> float:
        """What the share must hold."""
        return self.weights + self.cache + ENGINE


def find_engine(s: Setting) -> Engine | None:
    """vLLM's share where its GPU and the model are known; None without vLLM, or with a server that runs elsewhere.

    It splits weights and key-value heads among its tensor parallel ranks, and makes half precision of float32 weights unless
    it is told their type, as a job's own server is. Source: vllm v1/core/kv_cache_utils.py check_enough_kv_cache_memory.
    """
    model, gib, size = s.architecture, s.gpu_memory_gib, max(s.vllm_tensor_parallel_size, 1)
    if not s.use_vllm or model is None or gib is None or (s.vllm_mode != "colocate" and not s.server_gpus):
        return None
    is_float = s.vllm_mode != "colocate" and s.weights_dtype == "float32" and s.autocast_dtype is None
    width, tokens = FLOAT if is_float else HALF, find_longest_sequence(s)
    layers = -(-model.layers // model.kind.full_every)
    heads = max(model.kv_heads / size, 1)
    return Engine(
        share=(s.vllm_gpu_memory_utilization or DEFAULT_SHARE) * gib * GIB,
        weights=model.weights * width / size,
        cache=2 * layers * heads * model.head_dim * width * tokens,
        tokens=tokens,
    )


def find_longest_sequence(s: Setting) -> int:
    """The tokens of the longest sequence that vLLM keeps room for: as set, as TRL derives them, or the model's own."""
    prompt, positions = find_prompt(s), s.architecture.positions if s.architecture else 0
    own = (prompt or ASSUMED_PROMPT_TOKENS) + s.max_completion_length
    if s.vllm_max_model_length is not None:
        return s.vllm_max_model_length
    is_derived = s.version < OWN_LENGTH and s.max_prompt_length is not None
    return own if is_derived or not positions else positions


# How far sizes can go.


@dataclass(frozen=True)
class Fit:
    """One GPU: its memory and the setting's peak in GiB, and each size at its largest with the others as they are.

    ``batch`` are completions a micro-step at the same effective batch, ``completion`` tokens; None where even the smallest
    does not fit.
    """

    gib: float
    peak: float
    batch: int | None
    completion: int | None
    generations: int | None

    @property
    def fits(self) -> bool:
        """Whether the setting fits as it is."""
        return self.peak <= self.gib

    def as_dict(self) -> dict[str, Any]:
        """The fields, and whether it fits."""
        return {"fits": self.fits, **asdict(self)}


def fit(s: Setting, gib: float) -> Fit:
    """The sizes that fit a GPU of so many GiB; the model's shape must be known."""
    s = s.replace({"gpu_memory_gib": gib, "auto": frozenset()})

    def fits(change: dict[str, Any]) -> bool:
        return _peak(s.replace(change)) <= gib

    group = max(s.num_generations // gcd(s.num_generations, max(s.processes or 1, 1)), 1)
    return Fit(
        gib=gib,
        peak=round(_peak(s), 2),
        batch=_largest(lambda n: fits(with_batch(s, n)), MOST_COMPLETIONS),
        completion=_largest(lambda n: fits({"max_completion_length": n}), MOST_TOKENS),
        generations=_largest(lambda n: fits(with_generations(s, n * group)), MOST_GENERATIONS // group, group),
    )


def fit_gpus(s: Setting) -> list[tuple[str, Fit]]:
    """The same for every GPU of the table, smallest first."""
    return [(name, fit(s, gib)) for name, gib in sorted(GPUS.items(), key=lambda item: item[1])]


def with_batch(s: Setting, size: int) -> dict[str, Any]:
    """Micro-batches of this size; the rollout and the effective batch stay as they are, as nearly as whole numbers let."""
    step = s.per_device_train_batch_size * s.gradient_accumulation_steps
    rollout = s.per_device_train_batch_size * micro_steps_per_generation(s)
    return {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": max(step // size, 1),
        "steps_per_generation": max(rollout // size, 1),
    }


def with_generations(s: Setting, generations: int) -> dict[str, Any]:
    """So many generations of as many prompts: longer rollouts, more accumulation."""
    rollout = max(s.per_device_train_batch_size * micro_steps_per_generation(s) // max(s.num_generations, 1), 1)
    micro_steps = -(-rollout * generations // s.per_device_train_batch_size)
    return {
        "num_generations": generations,
        "steps_per_generation": micro_steps,
        "gradient_accumulation_steps": micro_steps,
    }


def _peak(s: Setting) -> float:
    memory = estimate(s)
    assert memory is not None  # the caller has seen to it
    return memory.peak / GIB


def _largest(fits: Callable[[int], bool], most: int, unit: int = 1) -> int | None:
    """The largest number that fits, times the unit, by bisection; None where 1 does not."""
    if not fits(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * unit
