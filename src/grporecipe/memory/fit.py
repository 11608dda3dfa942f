"""Find the largest sizes that fit a GPU, and the single changes that free most memory."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import gcd

from grporecipe.files import Config, Json
from grporecipe.memory.catalog import GPUS
from grporecipe.memory.estimate import GIB, Memory, estimate, find_engine
from grporecipe.memory.parts import find_prompt
from grporecipe.model.defects import load_defects
from grporecipe.model.planning import micro_steps_per_generation
from grporecipe.model.setting import Setting

# larger sizes are unrealistic
MOST_COMPLETIONS, MOST_TOKENS, MOST_GENERATIONS = 4096, 1 << 18, 4096
# tokens of the longest prompt between which its length is assumed if it is not known
PROMPTS = (64, 1024)
# GiB
SMALLEST_SAVING = 0.05
VERDICTS = {True: "fits", None: "may fit", False: "does not fit"}


@dataclass(frozen=True)
class Fit:
    """The fit of one GPU: its memory and the setting's peak in GiB, and the largest value of each
    size with the others fixed.

    ``low`` and ``high`` are the interval of the peak in GiB, over `PROMPTS` if their length is
    unknown. ``phase`` is its phase. ``batch`` are completions per micro-step at the same effective
    batch, ``completion`` tokens; None if even the smallest does not fit. ``engine_share`` is vLLM's
    share in GiB, ``engine_needs`` what it must hold for vLLM to start; None without vLLM.
    """

    gib: float
    peak: float
    low: float
    high: float
    phase: str
    batch: int | None
    completion: int | None
    generations: int | None
    engine_share: float | None = None
    engine_needs: float | None = None

    @property
    def starts(self) -> bool:
        """Return whether vLLM's share is large enough for vLLM to start."""
        return (self.engine_needs or 0.0) <= (self.engine_share or 0.0)

    @property
    def fits(self) -> bool:
        """Return whether the setting fits, by the estimate."""
        return self.peak <= self.gib and self.starts

    @property
    def verdict(self) -> str:
        """Return the verdict of the interval: fits, may fit, or does not fit. If vLLM does not
        start, it does not fit.
        """
        if not self.starts:
            return VERDICTS[False]
        return VERDICTS[judge(self.low, self.high, self.gib)]

    def as_dict(self) -> Json:
        """Return the fields, whether it fits, and the verdict of the interval."""
        # Once, from the exact value.
        rounded = {name: round(getattr(self, name), 2) for name in ("peak", "low", "high")}
        return {"fits": self.fits, "verdict": self.verdict, **asdict(self), **rounded}


def judge(low: float, high: float, limit: float) -> bool | None:
    """Return whether a peak fits a limit; None if the limit is inside its interval."""
    if low <= limit < high:
        return None
    return high <= limit


def fit(s: Setting, gib: float) -> Fit:
    """Return the largest sizes that fit a GPU of ``gib`` GiB; the model's shape must be known."""
    s = s.replace({"gpu_memory_gib": gib, "auto": frozenset()})
    memory = _memory(s)

    def fits(change: Json) -> bool:
        return _memory(s.replace(change)).peak <= gib * GIB

    shortest = longest = memory
    if not find_prompt(s):
        shortest, longest = (_memory(s.replace({"prompt_tokens": n})) for n in PROMPTS)
    group = max(s.num_generations // gcd(s.num_generations, max(s.processes or 1, 1)), 1)
    found = Fit(
        gib=gib,
        peak=memory.peak / GIB,
        low=shortest.low / GIB,
        high=longest.high / GIB,
        phase=memory.peak_phase,
        batch=_largest(lambda n: fits(with_batch(s, n)), MOST_COMPLETIONS),
        completion=_largest(lambda n: fits({"max_completion_length": n}), MOST_TOKENS),
        generations=_largest(
            lambda n: fits(with_generations(s, n * group)), MOST_GENERATIONS // group, group
        ),
    )
    engine = find_engine(s)
    if engine is None:
        return found
    return replace(
        found,
        engine_share=round(engine.share / GIB, 2),
        engine_needs=round(engine.needed / GIB, 2),
    )


def fit_gpus(s: Setting) -> list[tuple[str, Fit]]:
    """Return the fit of every GPU in the table, smallest first."""
    return [(name, fit(s, gib)) for name, gib in sorted(GPUS.items(), key=lambda item: item[1])]


def with_batch(s: Setting, size: int) -> Json:
    """Return the setting with micro-batches of this size. Rollout and effective batch stay as near
    as whole numbers allow.
    """
    step = s.per_device_train_batch_size * s.gradient_accumulation_steps
    rollout = s.per_device_train_batch_size * micro_steps_per_generation(s)
    return {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": max(step // size, 1),
        "steps_per_generation": max(rollout // size, 1),
    }


def with_generations(s: Setting, generations: int) -> Json:
    """Return the setting with this many generations of the same prompts: longer rollouts, more
    accumulation.
    """
    rollout = max(
        s.per_device_train_batch_size * micro_steps_per_generation(s) // max(s.num_generations, 1),
        1,
    )
    steps = -(-rollout * generations // s.per_device_train_batch_size)
    return {
        "num_generations": generations,
        "steps_per_generation": steps,
        "gradient_accumulation_steps": steps,
    }


@dataclass(frozen=True)
class Saving:
    """A single change under the recipe's keys, and the GiB by which it lowers the peak."""

    change: str
    gib: float


def find_savings(s: Setting) -> list[Saving]:
    """Return the single changes that lower the peak, largest saving first."""
    before = _memory(s).peak
    saved = [
        Saving(label, round((before - _memory(s.replace(change)).peak) / GIB, 1))
        for label, change in _changes(s)
    ]
    return sorted(
        (saving for saving in saved if saving.gib >= SMALLEST_SAVING),
        key=lambda saving: -saving.gib,
    )


def _changes(s: Setting) -> Iterator[tuple[str, Config]]:
    """Yield every single change that the setting does not have yet, with its label."""
    size = s.per_device_train_batch_size
    is_sharded = s.sharding != "none"
    if not s.gradient_checkpointing:
        yield "gradient checkpointing", {"gradient_checkpointing": True}
    if s.runtime.tokens_per_batch is not None:
        half = s.runtime.tokens_per_batch // 2
        yield (
            f"micro-batches of {half:,} tokens",
            {"runtime": replace(s.runtime, tokens_per_batch=half)},
        )
    elif size > 1:
        yield f"micro-batch {size} to {size // 2}", with_batch(s, size // 2)
    if s.max_completion_length > 1:
        half = s.max_completion_length // 2
        yield f"completions of {half:,} tokens", {"max_completion_length": half}
    if not s.lora:
        yield "LoRA", {"lora": True}
    elif not s.runtime.weight_bits and not s.use_vllm:
        yield "QLoRA (4 bits)", {"runtime": replace(s.runtime, weight_bits=4)}
    if (s.processes or 1) > 1 and s.framework.unit != "prompts":
        others = {"none": ("zero2", "zero3"), "zero1": ("zero2", "zero3"), "zero2": ("zero3",)}.get(
            s.sharding, ()
        )
        yield from ((f"ZeRO-{name[-1]}", {"sharding": name}) for name in others)
    if s.beta and not s.lora and s.loads_reference is None:
        yield f"{s.key('beta')}=0 (no reference)", {"beta": 0.0}
    if s.weights_dtype == "float32" and not is_sharded:
        yield "bfloat16 weights", {"weights_dtype": "bfloat16", "autocast_dtype": None}
    if not is_sharded and not s.lora and (s.optim or "adamw_torch").startswith("adamw_torch"):
        yield "8-bit AdamW", {"optim": "adamw_8bit"}
    if s.runtime.head == "whole":
        yield "logits in tiles (TRL 1.15 or Liger)", {"runtime": replace(s.runtime, head="tiles")}
    if s.use_vllm and s.vllm_mode == "colocate":
        yield from _engine_changes(s)
    for part in ("weights", "optimizer"):
        if s.runtime.head == "packed" and part not in s.runtime.offloads:
            yield (
                f"offload of {part}",
                {"runtime": replace(s.runtime, offloads=s.runtime.offloads | {part})},
            )


def _engine_changes(s: Setting) -> Iterator[tuple[str, Config]]:
    share = s.vllm_gpu_memory_utilization or 0.3
    loses_weights = s.framework.follows_trl and any(
        "vllm_enable_sleep_mode" in defect.when and defect.first <= s.version <= defect.last
        for defect in load_defects()
    )
    if not (s.vllm_enable_sleep_mode or loses_weights):
        yield "vLLM's sleep mode", {"vllm_enable_sleep_mode": True}
    if share > 0.2:
        less = round(share - 0.1, 2)
        yield f"vLLM's share {share:g} to {less:g}", {"vllm_gpu_memory_utilization": less}


def _memory(s: Setting) -> Memory:
    memory = estimate(s)
    # the caller has verified it
    assert memory is not None
    return memory


def _largest(fits: Callable[[int], bool], most: int, unit: int = 1) -> int | None:
    """Return the largest number that fits, times the unit, by bisection; None if 1 does not fit."""
    if not fits(1):
        return None
    low = 1
    high = most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low * unit
