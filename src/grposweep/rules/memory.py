"""GM: whether a point fits the GPU, and what would make it fit, if the GPU's memory and the model's shape are known.

Source: grposweep.memory, whose formulas name theirs (trl 1.16, transformers 5.23, torch 2.13).
"""

from collections.abc import Iterator
from typing import Any

from grposweep.memory.estimate import GIB, Memory, estimate
from grposweep.memory.parts import ASSUMED_PROMPT_TOKENS, READS, find_prompt
from grposweep.rules.helpers import ALL_COUNTS
from grposweep.rules.registry import by_trial, rule
from grposweep.setting import Setting

NEAR = 0.9  # of the GPU's memory: the estimate is not better than that
FEWEST_GENERATIONS = 2
SEARCHED = (*READS, "auto", "num_generations")
Facts = dict[str, object]
BLAMED = ("per_device_train_batch_size", "max_completion_length", "gpu_memory_gib")


def _fitting_counts(s: Setting) -> int:
    known = s.architecture is not None and s.gpu_memory_gib is not None
    return by_trial(s, a_point_fits_the_gpu) if known else ALL_COUNTS


@rule("GM101", "error", SEARCHED, _fitting_counts, blames=BLAMED, what="{what}",
      why="{needed}, and a GPU has {s.gpu_memory_gib:g} GiB", to=lambda s: _suggest(s),
      instead="Take a smaller model, shorter completions, more GPUs with {sharding}, or larger ones.")  # fmt: skip
def a_point_fits_the_gpu(s: Setting) -> Facts | None:
    """The largest phase of a rank (load, generation, scoring, backward, optimizer step) must fit its GPU.

    Otherwise torch raises OutOfMemoryError, minutes or hours after the job began. Estimated from the model's shape alone,
    see docs/memory.md. The fixes come in the order in which they cost least: smaller micro-batches at the same effective
    batch, gradient checkpointing, LoRA, sharding, and fewer generations last.
    """
    memory = _known(s)
    if memory is None or memory.peak <= (s.gpu_memory_gib or 0) * GIB:
        return None
    return {"what": _what(s), "needed": _needs(memory)}


@rule("GM201", "warning", SEARCHED, blames=BLAMED, what="{what}",
      why="{needed}, which is {share:.0%} of a GPU's {s.gpu_memory_gib:g} GiB",
      instead="Smaller micro-batches or gradient checkpointing would make it safe.")  # fmt: skip
def a_point_leaves_some_memory_free(s: Setting) -> Facts | None:
    """Above nine tenths of the GPU's memory an estimate may be wrong on the wrong side: it is no measurement."""
    memory = _known(s)
    limit = (s.gpu_memory_gib or 0) * GIB
    if memory is None or not NEAR * limit < memory.peak <= limit:
        return None
    return {"what": _what(s), "needed": _needs(memory), "share": memory.peak / limit}


@rule("GM202", "warning", ("sharding", "processes"), blames=("sharding", "processes"),
      why="{processes=} has nobody to share with", instead="Set {sharding}=none, or more processes.")  # fmt: skip
def what_is_sharded_has_several_ranks(s: Setting) -> bool:
    """Sharding divides what each rank holds among the ranks of a trial, so one rank alone gains nothing by it."""
    return s.sharding != "none" and s.processes is not None and s.processes <= 1


def _known(s: Setting) -> Memory | None:
    """The estimate, if the GPU and the number of processes are known."""
    if s.gpu_memory_gib is None or s.architecture is None or s.processes is None:
        return None
    return estimate(s)


def _what(s: Setting) -> str:
    known = find_prompt(s)
    prompt = f"{ASSUMED_PROMPT_TOKENS} (assumed)" if known is None else str(known)
    size, length = "per_device_train_batch_size", "max_completion_length"
    return f"{s.key(size)}={getattr(s, size)} with {s.key(length)}={getattr(s, length)} and prompts of {prompt} tokens"


def _needs(memory: Memory) -> str:
    return f"needs about {memory.peak / GIB:.1f} GiB ({memory.peak_phase})"


def _suggest(s: Setting) -> Iterator[dict[str, Any]]:
    """Changes in the order in which they should be tried; alone first, then with smaller micro-batches."""
    sizes = list(_smaller(s))
    others = [change for change in ({"gradient_checkpointing": True}, {"lora": True}) if not _has(s, change)]
    yield from sizes
    yield from _shorter_rollouts(s)
    yield from others
    yield from ({**size, **change} for change in others for size in sizes)
    if len(others) > 1:
        yield from ({**size, **others[0], **others[1]} for size in sizes)
    if s.sharding == "none" and (s.processes or 1) > 1:
        yield from ({"sharding": sharding} for sharding in ("zero2", "fsdp", "zero3"))
        yield from ({**size, "gradient_checkpointing": True, "sharding": "fsdp"} for size in sizes)
    yield from ({"num_generations": n} for n in range(s.num_generations - 1, FEWEST_GENERATIONS - 1, -1))


def _has(s: Setting, change: dict[str, Any]) -> bool:
    return all(getattr(s, name) == value for name, value in change.items())


def _smaller(s: Setting) -> Iterator[dict[str, Any]]:
    """Smaller micro-batches, the largest first; more accumulation keeps the effective batch, and the rollout."""
    size, accumulation = s.per_device_train_batch_size, s.gradient_accumulation_steps
    if "per_device_train_batch_size" in s.auto:
        yield from ({"max_per_device_train_batch_size": n} for n in range(size - 1, 0, -1))
        return
    for n in (n for n in range(min(size, 1024) - 1, 0, -1) if size % n == 0):
        change = {"per_device_train_batch_size": n}
        if "gradient_accumulation_steps" not in s.auto:
            change["gradient_accumulation_steps"] = accumulation * size // n
        if s.steps_per_generation is not None:
            change["steps_per_generation"] = s.steps_per_generation * size // n
        yield change


def _shorter_rollouts(s: Setting) -> Iterator[dict[str, Any]]:
    """Several rollouts an optimizer step: fewer completions are generated at once, and the step averages over as many."""
    accumulation = min(s.gradient_accumulation_steps, 1024)
    if s.num_iterations == 1 and s.steps_per_generation in (None, accumulation) and s.generation_batch_size is None:
        yield from ({"steps_per_generation": n} for n in range(accumulation - 1, 0, -1) if accumulation % n == 0)
