"""The sizes behind a rank's memory (`Need`), and its parts in bytes: states that stay, and what a
layer holds per token.

States: torch optim/adam.py; torch nn/parallel/distributed.py (DDP's buckets are a second copy of
the gradients, since accelerate leaves gradient_as_bucket_view off); deepspeed runtime/zero (a
float32 copy of the trained weights and two float32 moments, divided among the ranks; gradients from
stage 2 on, weights in stage 3); accelerate utils/fsdp_utils.py (with bf16 the trained weights are
kept, and stepped, in float32 shards). Sharded states are derived only, not measured.

Layers: derived from transformers 5.23's modules operation by operation (what each saves for its
backward pass), and compared with torch's own count: benchmarks/memory/architectures.py. Attention
is SDPA with a padding mask, as TRL calls it: keys and values are repeated for every query head, and
the boolean mask becomes a bias of the model's type. Flash attention does neither (flash_attn
flash_attn_interface.py: it saves queries, keys, values, its output and a log-sum-exp per head).
"""

from dataclasses import dataclass
from math import ceil

from grporecipe.model.architecture import Architecture
from grporecipe.model.planning import micro_steps_per_generation
from grporecipe.model.setting import OF_TRL, Runtime, Setting

# bytes of a float32, and of a bfloat16
FLOAT, HALF = 4, 2
# if they are not counted
ASSUMED_PROMPT_TOKENS = 512
# the fields that an estimate reads, for the ``reads`` of rules
READS = (
    "architecture",
    "weights_dtype",
    "gradient_checkpointing",
    "lora",
    "lora_rank",
    "lora_targets",
    "autocast_dtype",
    "sharding",
    "optim",
    "processes",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_iterations",
    "evaluates",
    "per_device_eval_batch_size",
    "beta",
    "prompt_tokens",
    "max_prompt_length",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "use_vllm",
    "vllm_mode",
    "vllm_gpu_memory_utilization",
    "vllm_enable_sleep_mode",
    "vllm_tensor_parallel_size",
    "gpu_memory_gib",
    "memory_factors",
    "runtime",
    "sequence_parallel_size",
    "experience_batch_size",
    "use_liger_kernel",
    "loads_reference",
)
ZERO = frozenset({"zero1", "zero2", "zero3"})
WEIGHTS_SHARDED = frozenset({"zero3", "fsdp"})
# elements that ZeRO reduces and gathers at once, as train/trl.py sets it
BUCKET = 100_000_000
# Moments per parameter, by an optimizer's first word (after "paged_"); unknown names count as Adam.
MOMENTS = {
    "sgd": 0.0,
    "adafactor": 0.1,
    "lion": 1.0,
    "adagrad": 1.0,
    "rmsprop": 1.0,
    "ademamix": 3.0,
}
# a weight, for scales: nf4 with double quantization (QLoRA, arXiv 2305.14314, section 3)
QUANTIZED_BITS = 0.13
# modules that share their input
INPUTS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


@dataclass(frozen=True)
class Lora:
    """LoRA adapters of this rank on these modules; ``("all-linear",)`` means every linear one."""

    rank: int
    targets: tuple[str, ...] = ("all-linear",)

    def has(self, module: str) -> bool:
        """Return whether a module has an adapter."""
        return self.targets == ("all-linear",) or module in self.targets


@dataclass(frozen=True)
class Need:
    """Sizes of one rank: ``batch`` completions per micro-step, ``rollout`` completions that it
    generates at once.

    ``scored`` completions pass through the model at once without gradients: a micro-batch, or an
    evaluation's batch. ``length`` is that of prompt and completion, in tokens. ``width`` is the
    bytes of an element of the model, ``compute`` of what its matrices are multiplied in (less under
    autocast).
    """

    model: Architecture
    width: int
    compute: int
    batch: int
    rollout: int
    scored: int
    prompt: int
    completion: int
    processes: int
    accumulates: bool
    checkpoints: bool
    has_reference: bool
    optim: str
    sharding: str
    lora: Lora | None
    uses_vllm: bool
    # of the GPU's memory that vLLM takes
    engine_share: float
    # while nothing is generated
    engine_sleeps: bool
    # the distribution that is sampled from: by a temperature or the k likeliest
    is_filtered: bool
    # by top_p, which sorts the vocabulary
    is_nucleus: bool
    gpu_gib: float | None
    # bytes of an element of FSDP's shards that are not trained
    stored: int = FLOAT
    # ranks that one vLLM engine is divided among
    engine_ranks: int = 1
    # ranks that one sequence is divided among (Ulysses)
    sequence_ranks: int = 1
    # the prompt's tokens are a limit and were not counted
    is_limit: bool = False
    runtime: Runtime = OF_TRL

    @property
    def length(self) -> int:
        """Return the tokens of a sequence."""
        return self.prompt + self.completion

    @property
    def tokens(self) -> int:
        """Return the tokens of a micro-batch on this rank."""
        return self.tokens_of(self.batch)

    def tokens_of(self, sequences: int) -> int:
        """Return the tokens of this many sequences on this rank, padded or packed.

        A dynamic micro-batch holds ``tokens_per_batch`` for each rank that shares it, but no less
        than one sequence.
        """
        runtime = self.runtime
        if not runtime.packs:
            return sequences * self.length
        if runtime.tokens_per_batch is not None:
            return max(runtime.tokens_per_batch, ceil(self.length / self.sequence_ranks))
        tokens = self.length
        if runtime.mean_tokens and not runtime.fills:
            tokens = min(runtime.mean_tokens, tokens)
        return ceil(sequences * tokens / self.sequence_ranks)

    @property
    def trained(self) -> int:
        """Return the number of trained parameters."""
        if self.lora is None:
            return self.model.weights
        return self.model.adapters(self.lora.rank, self.lora.targets)

    @property
    def whole(self) -> int:
        """Return the bytes of all weights, not quantized."""
        width = self.stored if self.sharding == "fsdp" else self.width
        return self.model.weights * width

    @property
    def frozen(self) -> float:
        """Return the bytes of frozen weights under adapters. Quantized ones keep embedding, head
        and norms in half precision.
        """
        if self.lora is None:
            return 0.0
        bits = self.runtime.weight_bits
        if not bits:
            return self.whole
        matrices = self.model.layers * self.model.layer_parameters
        return matrices * (bits + QUANTIZED_BITS) / 8 + (self.model.weights - matrices) * HALF

    @property
    def trained_width(self) -> int:
        """Return the bytes of a trained element: peft keeps adapters in float32, except under
        ZeRO-3.

        Source: trl grpo_trainer.py:461.
        """
        return self.width if self.lora is None or self.sharding == "zero3" else FLOAT


def find_prompt(s: Setting) -> int | None:
    """Return the tokens of the longest prompt, as counted or as the recipe's limit; None if neither
    is known.
    """
    return s.prompt_tokens or s.max_prompt_length


def read_need(s: Setting) -> Need | None:
    """Return the need of a setting; None if its model's shape is unknown or its sizes are
    invalid.
    """
    model = s.architecture
    if model is None or min(s.per_device_train_batch_size, s.gradient_accumulation_steps) < 1:
        return None
    if s.generation_batch_size is not None and s.processes is None:
        return None
    micro_steps = max(micro_steps_per_generation(s), 1)
    stored = FLOAT if s.weights_dtype == "float32" else HALF
    # DeepSpeed casts the model (runtime/engine.py), and FSDP what it gathers (accelerate
    # FullyShardedDataParallelPlugin .set_mixed_precision); both keep float32 masters.
    width = HALF if s.autocast_dtype and s.sharding in {*ZERO, "fsdp"} else stored
    # verl and EasyR1 evaluate in the engine, without a forward pass of the model.
    evaluated = s.per_device_eval_batch_size if s.evaluates and not s.runtime.packs else 0
    compute = HALF if s.autocast_dtype else width
    lora = Lora(s.lora_rank, s.lora_targets) if s.lora else None
    loads_reference = s.beta != 0 if s.loads_reference is None else s.loads_reference
    rollout = max(s.per_device_train_batch_size * micro_steps, evaluated)
    engine_share = 0.0
    if s.use_vllm:
        rollout = 0
    if s.use_vllm and s.vllm_mode == "colocate":
        engine_share = s.vllm_gpu_memory_utilization or 0.3
    return Need(
        model=model,
        width=width,
        compute=compute,
        batch=s.per_device_train_batch_size,
        rollout=rollout,
        scored=max(s.experience_batch_size or s.per_device_train_batch_size, evaluated),
        prompt=find_prompt(s) or ASSUMED_PROMPT_TOKENS,
        completion=s.max_completion_length,
        processes=max(s.processes or 1, 1),
        accumulates=s.gradient_accumulation_steps > 1,
        checkpoints=s.gradient_checkpointing,
        has_reference=loads_reference and not s.lora,
        optim=s.optim or "adamw_torch",
        sharding=s.sharding,
        lora=lora,
        uses_vllm=s.use_vllm,
        engine_share=engine_share,
        engine_sleeps=s.vllm_enable_sleep_mode,
        is_filtered=s.temperature != 1 or bool(s.top_k),
        is_nucleus=s.top_p is not None and s.top_p < 1,
        gpu_gib=s.gpu_memory_gib,
        stored=stored,
        engine_ranks=max(s.vllm_tensor_parallel_size, 1),
        sequence_ranks=max(s.sequence_parallel_size, 1),
        is_limit=s.prompt_tokens is None
        and s.max_prompt_length is not None
        and not s.runtime.packs,
        runtime=s.runtime,
    )


# States: bytes that stay with a rank between micro-steps, whole or sharded.


@dataclass(frozen=True)
class States:
    """Bytes of states on a rank; ``stepping`` is the optimizer step's additional need.

    ``buckets`` are the bytes of gradients that stay when the gradients are freed.
    """

    weights: float
    gradients: float
    optimizer: float
    reference: float
    stepping: float
    buckets: float = 0.0


def find_states(n: Need) -> States:
    """Return the states of one rank."""
    frozen = n.frozen
    parts = n.processes if n.sharding in WEIGHTS_SHARDED else 1
    reference = 0.0
    if n.has_reference:
        # verl and EasyR1 load the reference in half precision (fsdp_workers.py: float32 for the
        # actor only).
        held = n.whole if n.runtime.upcasts else n.model.weights * HALF
        reference = held / parts
    if n.sharding in ZERO:
        return _zero(n, frozen, reference)
    if n.sharding == "fsdp":
        width = FLOAT if n.runtime.upcasts else n.stored
        mine = n.trained * width / parts
        return States(
            frozen / parts + mine,
            mine,
            _moments(n.optim, n.trained, width) / parts,
            reference,
            mine,
        )
    mine = n.trained * n.trained_width
    copies = min(n.processes, 2)
    # square roots of all second moments at once
    stepping = mine if n.optim == "adamw_torch" else 0
    optimizer = _moments(n.optim, n.trained, n.trained_width) + _kept_whole(n)
    return States(
        frozen + mine, copies * mine, optimizer, reference, stepping, buckets=(copies - 1) * mine
    )


def _zero(n: Need, frozen: float, reference: float) -> States:
    """Return DeepSpeed's states: 12 bytes per trained parameter for the optimizer, divided, and
    float32 gradients that step.
    """
    parts = n.processes
    mine = n.trained * n.trained_width
    bucket = min(BUCKET, n.trained) * n.trained_width
    weights = frozen + mine
    if n.sharding == "zero3":
        weights /= parts
    gradients = mine if n.sharding == "zero1" else mine / parts
    optimizer = n.trained * (FLOAT / parts) + _moments(n.optim, n.trained, FLOAT) / parts
    return States(
        weights, gradients + bucket, optimizer, reference, n.trained * FLOAT / parts + bucket
    )


def _moments(optim: str, parameters: int, width: int) -> float:
    """Return the bytes of optimizer states: in the parameters' type, but bitsandbytes' in 8 bits or
    float32.

    Source: transformers training_args.py OptimizerNames; bitsandbytes optim/optimizer.py
    init_state. Paged states count as if they stayed on the GPU.
    """
    first = optim.removeprefix("paged_").split("_")[0]
    if _is_bitsandbytes(optim):
        width = FLOAT
    if "8bit" in optim:
        width = 1
    return MOMENTS.get(first, 2.0) * parameters * width


def _is_bitsandbytes(optim: str) -> bool:
    """Return whether bitsandbytes provides an optimizer of transformers."""
    is_its_own = optim.startswith(("paged_", "ademamix", "lion", "rmsprop_bnb")) or "bnb" in optim
    return is_its_own or optim == "adamw_8bit"


def _kept_whole(n: Need) -> float:
    """Return the states that 8-bit optimizers keep in float32: the embedding's.

    Source: transformers trainer.py create_optimizer.
    """
    if n.lora is not None or "8bit" not in n.optim or not _is_bitsandbytes(n.optim):
        return 0.0
    parameters = n.model.head_parameters
    return _moments(n.optim.replace("8bit", "32bit"), parameters, FLOAT) - _moments(
        n.optim, parameters, FLOAT
    )


# Bytes that a decoder layer holds per token: what autograd saves, intermediate values, and the
# cache.


def saved_by_layer(n: Need) -> int:
    """Return bytes per token that one layer's forward pass saves.

    These are norms; queries, keys, values, their attention with a log-sum-exp per head, and the
    mask's row for the token; gate, its activation and up; the inputs of the linear modules. All but
    the norms have elements of ``compute`` bytes if autocast makes them smaller than the weights'.
    Autocast then copies a shared input for each of its modules.
    """
    a = n.model
    compute = n.compute
    norms = a.kind.norms * (saved_by_norm(n, a.hidden, n.width) + FLOAT)
    if a.kind.query_key_norms:
        norms += saved_by_norm(n, a.query_width + a.kv_width, compute)
        norms += FLOAT * (a.heads + a.kv_heads)
    attention = 2 * (a.query_width + a.kv_width) * compute + FLOAT * a.heads
    if not n.runtime.flash:
        attention += n.length * compute
        # a single head is repeated as a view
        if a.kv_heads > 1:
            attention += 2 * (a.query_width - a.kv_width) * compute
    saved = norms + attention + 3 * a.computed_width * compute + _inputs(n)
    if compute < n.width and n.lora is None:
        saved += 3 * a.hidden * compute
    return saved


def saved_by_norm(n: Need, elements: int, width: int) -> int:
    """Return bytes of an RMSNorm: a float32 copy of its input (if that is not float32), and the
    normalised values.

    The values are kept for the gradient of the norm's weight, which adapters leave frozen.
    """
    if n.lora is not None:
        return elements * FLOAT
    if n.model.kind.keeps_float_norm:
        width = FLOAT
    return elements * (FLOAT + width)


def _inputs(n: Need) -> int:
    """Return bytes that linear modules keep for their weights' gradients, without the attention
    that o_proj reads.

    A frozen module keeps nothing. Its adapter keeps its ``rank`` values and the input: one copy for
    modules that share it, but in half precision one each unless sequences are packed, because peft
    casts to the adapter's float32 and autocast back. Source: peft tuners/lora/layer.py
    Linear.forward.
    """
    a = n.model
    lora = n.lora
    elements = {
        "q_proj": a.hidden,
        "o_proj": 0,
        "gate_proj": a.hidden,
        "down_proj": a.computed_width,
    }
    if lora is None:
        return sum(elements.values()) * n.compute
    modules = {name: inputs for name, (inputs, _) in a.linear().items() if lora.has(name)}
    if n.compute < FLOAT and not n.runtime.packs:
        kept = sum(modules.values())
    else:
        kept = sum(elements[group[0]] for group in INPUTS if not modules.keys().isdisjoint(group))
    return (kept + lora.rank * len(modules)) * n.compute


def passing_forward(n: Need) -> int:
    """Return bytes per token while one layer runs without gradients: three widths of the MLP at
    once, or attention's.
    """
    a = n.model
    largest = max(3 * a.computed_width, 5 * a.query_width)
    return largest * n.width + a.hidden * (2 * n.width + FLOAT)


def saved_by_tower(a: Architecture, tokens: int, width: int, checkpoints: bool) -> float:
    """Return the bytes that a vision tower saves for images of ``tokens`` tokens, each of
    ``vision_merge`` squared patches.

    A layer saves two norms in float32 and in its type, queries, keys, values, attention and its
    MLP; with checkpointing only its input. Source: transformers
    models/qwen2_5_vl/modeling_qwen2_5_vl.py, derived like the decoder's layers.
    """
    patches = tokens * a.vision_merge**2
    layer = (
        2 * a.vision_hidden * (FLOAT + width)
        + (5 * a.vision_hidden + 3 * a.vision_intermediate) * width
    )
    if not checkpoints:
        return float(patches * a.vision_layers * layer)
    return float(patches * (a.vision_layers * a.vision_hidden * width + layer))
