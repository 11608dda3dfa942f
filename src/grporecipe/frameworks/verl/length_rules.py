"""GB and GT, verl: token limits of micro-batches that a sequence must fit, and sizes that the
rollout engine refuses.

Sources: verl utils/seqlen_balancing.py (rearrange_micro_batches, the same assertion from 0.2 to
0.9.1), workers/actor/dp_actor.py
0.2 to 0.7 and workers/engine/utils.py since 0.8, which multiply a limit by the ranks that share a
sequence;
workers/config/rollout.py (__post_init__), workers/rollout/vllm_rollout/utils.py
(get_vllm_max_lora_rank).
"""

from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from grporecipe.fields.reading import values_of
from grporecipe.frameworks.verl import keys as verl
from grporecipe.frameworks.verl.recipes import TOKENS, derive_topology, kl_places
from grporecipe.frameworks.verl.rules import DYNAMIC, ONE_ENGINE, VERL
from grporecipe.model.framework import Values
from grporecipe.model.recipe import Recipe
from grporecipe.model.setting import Version
from grporecipe.rules.helpers import of_key, show
from grporecipe.rules.registry import Severity, Violation, recipe_rule

LENGTHS = ("data.max_prompt_length", "data.max_response_length")
PREFILL = ("max_num_batched_tokens", "enable_chunked_prefill", "max_model_len", "mode", "name")
# of each limit
DEFAULT_TOKENS = 16384
# of vLLM's MaxLoRARanks
LARGEST_RANK = 512


def _limits(values: Values) -> Iterator[tuple[str, str]]:
    """Yield the limits that apply, each with its switch: of updates, and of log-probabilities of
    policy and reference.
    """
    yield DYNAMIC, TOKENS
    places = (verl.ROLLOUT, verl.REF) if any(kl_places(values)) else (verl.ROLLOUT,)
    for place in places:
        yield f"{place}.log_prob_use_dynamic_bsz", f"{place}.log_prob_max_token_len_per_gpu"


@recipe_rule("GB413", "error", of=VERL)
def a_sequence_fits_a_micro_batch(recipe: Recipe) -> Iterator[Violation]:
    """With dynamic micro-batches each token limit, times the ranks that share a sequence, holds
    prompt plus response.

    verl: "max_token_len must be greater than the sequence length. Got max_token_len=16384 and
    max_seq_len=40960". Before 0.8 all samples are padded to full length, so the first step stops.
    Since 0.8 the first sample above the limit stops the run, so it is a warning.
    """
    values = values_of(recipe)
    if (
        values.bad & {*LENGTHS, DYNAMIC}
        or not verl.is_own_trainer(recipe)
        or not values.flag(DYNAMIC)
    ):
        return
    size = sum(values.whole(key, 512) for key in LENGTHS)
    sizes = derive_topology(values, {})
    shared = max(sizes["sequence_parallel_size"], sizes.get("context_parallel_size", 1), 1)
    enough = ceil(size / shared)
    seen = set[int]()
    for switch, key in _limits(values):
        limit = values.whole(key, DEFAULT_TOKENS)
        # the limits for log-probabilities follow that of updates
        is_followed = key not in values.given and limit in seen
        if (
            key in values.bad
            or not values.flag(switch, True)
            or limit * shared >= size
            or limit < 1
            or is_followed
        ):
            continue
        seen.add(limit)
        by = f" x {shared} ranks that share a sequence" if shared > 1 else ""
        stop = "the first step stops"
        severity: Severity | None = None
        if recipe.version >= ONE_ENGINE:
            stop = "the first longer sample stops the run"
            severity = "warning"
        yield Violation(
            f"{key}={limit}",
            f"{limit}{by} tokens do not hold a prompt and a response ({size}), and {stop}",
            f"Set {key}={enough} or more.",
            (key, *LENGTHS),
            ({key: enough},),
            severity=severity,
        )


@recipe_rule("GT403", "error", of=VERL)
def a_sequence_fits_a_prefill(recipe: Recipe) -> Iterator[Violation]:
    """With chunked prefill, verl's default, the engine's token limit holds prompt plus response.

    verl 0.3 to 0.6, vllm_rollout_spmd.py: "Enable chunked prefill, max_num_batched_tokens is
    smaller than max_model_len". From 0.7 on nothing checks it, and ``mode=async`` never did.
    """
    values = values_of(recipe)
    tokens, chunked, longest, mode, name = (f"{verl.ROLLOUT}.{key}" for key in PREFILL)
    limit = values.whole(tokens, 8192)
    size = values.whole(longest) or sum(values.whole(key, 512) for key in LENGTHS)
    if (
        (0, 3) <= recipe.version < (0, 7)
        and limit < size
        and values.word(mode) != "async"
        and values.word(name) == "vllm"
        and values.flag(chunked, True)
        and verl.is_own_trainer(recipe)
        and not values.bad & {tokens, chunked, longest, mode, name, *LENGTHS}
    ):
        yield Violation(
            f"{tokens}={limit}",
            f"with chunked prefill vLLM's workers refuse sequences of {size} tokens at start",
            f"Set {tokens}={size} or more.",
            (tokens, *LENGTHS),
            ({tokens: size},),
        )


class Refused(NamedTuple):
    """A size that the rollout engine refuses: the first release that checks it, key, reason, and
    the value to set instead.
    """

    since: Version
    key: str
    reason: str
    new: Any


@recipe_rule("GT402", "error", of=VERL)
def the_engine_takes_its_sizes(recipe: Recipe) -> Iterator[Violation]:
    """Sizes of the rollout engine that verl refuses at start.

    Pipeline parallelism ("not implemented pipeline_model_parallel_size > 1 yet"), an expert
    parallel size that is not tensor x data parallel size, disaggregation with an engine that has
    none, and a LoRA rank above 512 with vLLM.
    """
    values = values_of(recipe)
    for row in _refused(values):
        if recipe.version >= row.since and row.key in values.given and row.key not in values.bad:
            advice = f"Set {row.key}={show(row.new)}."
            value = values.get(row.key)
            yield of_key(row.key, value, row.reason, advice, {row.key: row.new})


def _refused(values: Values) -> Iterator[Refused]:
    name = values.word(f"{verl.ROLLOUT}.name")
    names = (
        "pipeline_model_parallel_size",
        "expert_parallel_size",
        "tensor_model_parallel_size",
        "data_parallel_size",
    )
    stages, experts, tensor, data = (f"{verl.ROLLOUT}.{each}" for each in names)
    if values.whole(stages, 1) > 1 and name in ("vllm", "sglang", "trtllm"):
        reason = f"verl's {name} rollouts have no pipeline parallelism, and stop at start"
        yield Refused((0, 6, 0), stages, reason, 1)
    whole = values.whole(tensor, 1) * values.whole(data, 1)
    if (
        values.whole(experts, 1) > 1
        and values.whole(experts) != whole
        and name != "trtllm"
        and not values.bad & {tensor, data}
    ):
        reason = f"verl asserts that it is {tensor} x {data}, {whole}"
        yield Refused((0, 6, 0), experts, reason, whole)
    apart = f"{verl.ROLLOUT}.disaggregation.enabled"
    if values.flag(apart) and name not in ("", "vllm", "sglang"):
        reason = f"prefill and decoding are apart in vllm and sglang only, and the engine is {name}"
        yield Refused((0, 9, 0), apart, reason, False)
    rank = f"{verl.MODEL}.lora_rank"
    if values.whole(rank) > LARGEST_RANK and name == "vllm":
        reason = f"vLLM takes adapters up to rank {LARGEST_RANK}, and verl stops"
        yield Refused((0, 6, 1), rank, reason, LARGEST_RANK)
