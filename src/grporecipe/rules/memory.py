"""GM: points that do not fit the GPU, with changes that fit, if the GPU's memory and the model's
shape are known.

Source: grporecipe.memory, whose formulas name theirs (trl 1.16, transformers 5.23, torch 2.13).
"""

from collections.abc import Iterator
from itertools import product

from grporecipe.files import Json
from grporecipe.memory.catalog import has_bfloat16
from grporecipe.memory.estimate import ENGINE, GIB, OWN_LENGTH, estimate, find_engine
from grporecipe.memory.host import HOST_READS, find_host_memory, loads_on_every_rank
from grporecipe.memory.parts import ASSUMED_PROMPT_TOKENS, FLOAT, READS, find_prompt
from grporecipe.model.planning import realise
from grporecipe.model.setting import EVERY, Setting
from grporecipe.rules.helpers import each, named
from grporecipe.rules.registry import ALL_COUNTS, Finding, by_trial, rule

FEWEST_GENERATIONS = 2
SEARCHED = (*READS, "gpu_trials", "auto", "framework", "num_generations")
ENGINE_READS = (
    "version",
    "framework",
    "architecture",
    "gpu_memory_gib",
    "weights_dtype",
    "autocast_dtype",
    "use_vllm",
    "vllm_mode",
    "server_gpus",
    "shared_server_gpus",
    "gpu_trials",
    "vllm_tensor_parallel_size",
    "vllm_gpu_memory_utilization",
    "vllm_max_model_length",
    "max_prompt_length",
    "prompt_tokens",
    "max_completion_length",
)
BLAMED = ("per_device_train_batch_size", "max_completion_length", "gpu_memory_gib")


def _fitting_counts(s: Setting) -> int:
    # More GPUs per node do not help if the trainer is told the GPUs of a node.
    if s.framework.unit == "prompts":
        return ALL_COUNTS
    return by_trial(s, a_point_fits_the_gpu)


def _suggest(s: Setting) -> Iterator[Json]:
    """Yield changes that fit by the estimate, in the order in which they should be tried."""
    limit = (s.gpu_memory_gib or 0) * GIB
    for change in _changes(s):
        memory = estimate(realise(s.replace(change)))
        if memory is not None and memory.peak <= limit:
            yield change


@rule(
    "GM101",
    "error",
    SEARCHED,
    _fitting_counts,
    of=EVERY,
    blames=BLAMED,
    what="{what}",
    why="{needed}, and a GPU has {s.gpu_memory_gib:g} GiB{shared}",
    to=_suggest,
    instead="Take a smaller model, shorter completions, more GPUs with {sharding}, or larger ones.",
)
def a_point_fits_the_gpu(s: Setting) -> Finding:
    """The largest phase of a rank (load, generation, scoring, backward, optimizer step) must fit
    its GPU.

    Otherwise torch raises OutOfMemoryError, minutes or hours after the job began. Estimated from
    the model's shape alone, see docs/explanation/memory.md. It is an error if even the lower end of
    the estimate's interval is more than the GPU has. The fixes fit by the estimate itself. They
    come in the order in which they cost least: smaller micro-batches at the same effective batch, a
    smaller share for vLLM, gradient checkpointing, LoRA, sharding, and fewer generations last.
    """
    return _find_excess(s, is_certain=True)


def _suggest_shares(s: Setting) -> Iterator[Json]:
    """Suggest shorter sequences if the model's own maximum counts, larger shares in steps of 0.05,
    more tensor parallel ranks.
    """
    engine = find_engine(s)
    if engine is None:
        return
    own = (find_prompt(s) or ASSUMED_PROMPT_TOKENS) + s.max_completion_length
    if s.vllm_max_model_length is None and s.version >= OWN_LENGTH and own < engine.tokens:
        yield {"vllm_max_model_length": own}
    for n in range(1, 19):
        share = n / 20
        if share * GIB * (s.gpu_memory_gib or 0) > engine.share:
            yield {"vllm_gpu_memory_utilization": share}
    larger = [n for n in (2, 4, 8) if n > s.vllm_tensor_parallel_size]
    yield from each("vllm_tensor_parallel_size", larger)


@rule(
    "GM102",
    "error",
    ENGINE_READS,
    blames=("vllm_gpu_memory_utilization", "vllm_max_model_length", "gpu_memory_gib"),
    why="vLLM's share of a GPU is {share:.1f} of {s.gpu_memory_gib:g} GiB, and it needs "
    "{needed:.1f} to start: {weights:.1f} "
    "of weights, {cache:.1f} of keys and values for one sequence of {tokens:,} tokens, about "
    "{own:g} of its own",
    instead=(
        "Set a larger {vllm_gpu_memory_utilization} or {vllm_tensor_parallel_size}, or a "
        "smaller {vllm_max_model_length}."
    ),
    to=_suggest_shares,
)
def the_share_of_vllm_holds_the_model(s: Setting) -> Finding:
    """vLLM's share of each GPU must hold the weights, keys and values of one longest sequence, and
    the engine itself.

    Weights and keys are divided by ``vllm_tensor_parallel_size``. The longest sequence is
    ``vllm_max_model_length``, or the model's own maximum: 40,960 tokens for Qwen3. vLLM 0.31 ends
    at its start: "To serve at least one request with the model's max seq len (40960), 4.38 GiB KV
    cache is needed", or "No available memory for the cache blocks". A sweep of ours takes the
    longest prompt and a completion. TRL before 0.26 took ``max_prompt_length`` and a completion.
    About 1 GiB is assumed for activations, a step's logits and CUDA graphs.
    """
    engine = find_engine(s)
    if engine is None or engine.needed <= engine.share:
        return None
    share = engine.share / GIB
    needed = engine.needed / GIB
    parts = {"weights": engine.weights / GIB, "cache": engine.cache / GIB, "own": ENGINE / GIB}
    return {"share": share, "needed": needed, "tokens": engine.tokens, **parts}


@rule(
    "GM201",
    "warning",
    SEARCHED,
    of=EVERY,
    blames=BLAMED,
    what="{what}",
    why="{needed}, so it may not fit a GPU's {s.gpu_memory_gib:g} GiB{shared}",
    instead="Smaller micro-batches or gradient checkpointing would make it safe.",
)
def a_point_leaves_some_memory_free(s: Setting) -> Finding:
    """A GPU with a memory inside the estimate's interval may be too small: the estimate is not a
    measurement.

    The interval adds up the possible error of each part (docs/explanation/memory.md).
    """
    return _find_excess(s, is_certain=False)


@rule(
    "GM202",
    "warning",
    ("sharding", "processes", "given"),
    blames=("sharding", "processes"),
    why="{processes=} has no rank to share with",
    instead="Set {sharding}=none, or more processes.",
)
def what_is_sharded_has_several_ranks(s: Setting) -> bool:
    """Sharding divides states among the ranks of a trial, so a single rank gains nothing from it.

    A launch that only names a file of accelerate is not told: one file serves launches on one GPU
    and on several.
    """
    if s.given and "sharding" not in s.given:
        return False
    return s.sharding != "none" and s.processes is not None and s.processes <= 1


@rule(
    "GM204",
    "warning",
    (
        "sharding",
        "loads_on_every_rank",
        "processes",
        "nodes",
        "gpus_per_node",
        "server_gpus",
        "host_memory_gib",
        "architecture",
        "beta",
        "lora",
    ),
    blames=("host_memory_gib", "sharding"),
    why=(
        "{ranks} of a node load {models} of {weights:.0f} GiB in float32 before it is divided: "
        "{needed:.0f} GiB of main memory"
    ),
    instead=(
        "Set {host_memory_gib}={enough:.0f} or more, or {sharding}=zero3, which divides "
        "weights as it loads."
    ),
)
def the_model_fits_main_memory(s: Setting) -> Finding:
    """FSDP loads the whole model into the main memory of ranks, in float32, before it divides it.

    Every rank of a node does, unless ``cpu_ram_efficient_loading`` leaves it to the first one; a
    reference model is loaded as well. A 7B model on 8 ranks takes 227 GiB; beyond the job's memory
    the kernel kills it. ZeRO-3 divides weights as it loads them. Sources: transformers 5.23
    training_args.py (fsdp_config), accelerate 1.15 utils/fsdp_utils.py fsdp2_prepare_model.
    """
    if (
        s.sharding != "fsdp"
        or s.host_memory_gib is None
        or s.architecture is None
        or s.processes is None
    ):
        return None
    models = 2 if s.beta != 0 and not s.lora else 1
    ranks = min(s.processes, s.gpus_per_node or s.processes) if loads_on_every_rank(s) else 1
    weights = s.architecture.weights * FLOAT / GIB
    needed = ranks * models * weights
    if needed <= s.host_memory_gib:
        return None
    loading = "one rank" if ranks == 1 else f"{ranks} ranks"
    loaded = "a model" if models == 1 else "a model and its reference"
    return {
        "ranks": loading,
        "models": loaded,
        "weights": weights,
        "needed": needed,
        "enough": needed * 1.2,
    }


@rule(
    "GM206",
    "warning",
    (*HOST_READS, "host_memory_gib"),
    blames=("host_memory_gib",),
    why=(
        "a node keeps about {needed:.0f} GiB in main memory ({parts}), apart from what its "
        "processes need"
    ),
    instead="Set {host_memory_gib}={enough:.0f} or more, or keep less in main memory.",
)
def what_is_offloaded_fits_main_memory(s: Setting) -> Finding:
    """States that are offloaded, and the weights of a vLLM that sleeps, must fit the main memory of
    a node.

    ``trainer.offload`` keeps optimizer states (8 bytes per parameter in float32) and weights there.
    vLLM's sleep mode copies its weights there. Beyond the job's memory the kernel kills it. See
    docs/explanation/memory.md; loading is GM204's.
    """
    if s.host_memory_gib is None:
        return None
    host = find_host_memory(s)
    if host is None or host.kept <= s.host_memory_gib * GIB:
        return None
    named = {"offloaded": host.offloaded, "vLLM asleep": host.asleep, "swap space": host.swap}
    parts = ", ".join(f"{name} {size / GIB:.0f}" for name, size in named.items() if size)
    return {"needed": host.kept / GIB, "parts": parts, "enough": host.peak / GIB * 1.1}


@rule(
    "GM205",
    "warning",
    ("gpu", "weights_dtype", "autocast_dtype"),
    blames=("weights_dtype", "gpu"),
    what="{weights_dtype=}{under}",
    why=(
        "a {s.gpu} has no bfloat16 arithmetic: torch emulates it, many times slower, and vLLM "
        "refuses it"
    ),
    instead="Train in float32, or use GPUs from Ampere (A100, A10, RTX 3090) on.",
)
def the_gpu_computes_in_bfloat16(s: Setting) -> Finding:
    """GPUs before Ampere (V100, T4) have no arithmetic for bfloat16.

    torch.cuda.is_bf16_supported() counts its emulation, so transformers says nothing. vLLM:
    "Bfloat16 is only supported on GPUs with compute capability of at least 8.0."
    """
    if (
        s.gpu is None
        or has_bfloat16(s.gpu)
        or "bfloat16" not in (s.weights_dtype, s.autocast_dtype)
    ):
        return None
    under = "" if s.weights_dtype == "bfloat16" else " under bfloat16 autocast"
    return {"under": under}


def _find_excess(s: Setting, is_certain: bool) -> Finding:
    """Describe a point whose peak exceeds the GPU by its estimate's lower end, or may exceed it.

    None if it does not, or if the GPU, the model or the number of processes is unknown.
    """
    if s.gpu_memory_gib is None or s.processes is None:
        return None
    memory = estimate(s)
    limit = s.gpu_memory_gib * GIB
    if memory is None or (memory.peak > limit and memory.low > limit) != is_certain:
        return None
    if memory.high <= limit:
        return None
    known = find_prompt(s)
    prompt = f"{ASSUMED_PROMPT_TOKENS} (assumed)" if known is None else known
    sizes = " with ".join(named(s, (name,)) for name in BLAMED[:2])
    low = memory.low / GIB
    high = memory.high / GIB
    shared = ""
    if s.gpu_trials > 1:
        shared = f" for each of the {s.gpu_trials} trials that share it"
    return {
        "what": f"{sizes} and prompts of {prompt} tokens",
        "needed": f"needs about {memory.peak / GIB:.1f} GiB, between {low:.1f} and {high:.1f} "
        f"({memory.peak_phase})",
        "shared": shared,
    }


def _changes(s: Setting) -> Iterator[Json]:
    """Yield single changes first, then with smaller micro-batches. If a step is sized in prompts,
    micro-batches alone keep it.
    """
    if s.framework.unit == "prompts":
        yield from each("per_device_train_batch_size", _divisors(s.per_device_train_batch_size))
        return
    sizes = list(_smaller(s))
    shares = list(_smaller_shares(s))
    others: list[Json] = []
    if not s.gradient_checkpointing:
        others.append({"gradient_checkpointing": True})
    if not s.lora:
        others.append({"lora": True})
    yield from sizes
    yield from shares
    yield from (size | share for share, size in product(shares, sizes))
    yield from _shorter_rollouts(s)
    yield from others
    yield from (size | change for change, size in product(others, sizes))
    if len(others) > 1:
        yield from (size | others[0] | others[1] for size in sizes)
    if s.sharding == "none" and (s.processes or 1) > 1:
        yield from each("sharding", ("zero2", "fsdp", "zero3"))
        yield from (size | {"gradient_checkpointing": True, "sharding": "fsdp"} for size in sizes)
    fewer = range(s.num_generations - 1, FEWEST_GENERATIONS - 1, -1)
    yield from each("num_generations", fewer)


def _smaller_shares(s: Setting) -> Iterator[Json]:
    """Yield smaller shares of a GPU for a vLLM inside training, the largest first, in which it
    still starts.
    """
    engine = find_engine(s)
    if engine is None or s.vllm_mode != "colocate":
        return
    for n in range(18, 0, -1):
        share = n / 20
        if engine.needed <= share * (s.gpu_memory_gib or 0) * GIB < engine.share:
            yield {"vllm_gpu_memory_utilization": share}


def _smaller(s: Setting) -> Iterator[Json]:
    """Yield smaller micro-batches, the largest first. More accumulation keeps the effective batch
    and the rollout.
    """
    size = s.per_device_train_batch_size
    accumulation = s.gradient_accumulation_steps
    if "per_device_train_batch_size" in s.auto:
        yield from each("max_per_device_train_batch_size", range(size - 1, 0, -1))
        return
    for n in _divisors(size):
        change = {"per_device_train_batch_size": n}
        if "gradient_accumulation_steps" not in s.auto:
            change["gradient_accumulation_steps"] = accumulation * size // n
        if s.steps_per_generation is not None:
            change["steps_per_generation"] = s.steps_per_generation * size // n
        yield change


def _shorter_rollouts(s: Setting) -> Iterator[Json]:
    """Yield several rollouts per optimizer step: fewer completions are generated at once for the
    same effective batch.
    """
    accumulation = min(s.gradient_accumulation_steps, 1024)
    if (
        s.num_iterations == 1
        and s.steps_per_generation in (None, accumulation)
        and s.generation_batch_size is None
    ):
        yield from each("steps_per_generation", _divisors(accumulation))


def _divisors(size: int) -> Iterator[int]:
    """Yield the smaller numbers below 1,024 that divide a size, the largest first."""
    return (n for n in range(min(size, 1024) - 1, 0, -1) if size % n == 0)
