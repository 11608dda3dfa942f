"""GB, EasyR1 and verl: both size a rollout and an optimizer step in prompts, and split them over data ranks.

Symbols: P prompts a rollout, p prompts an optimizer step, G completions a prompt, W processes, R data ranks (W without
those that share a sequence or a model), m completions a micro-batch, g = p G / R completions a step and rank.
Sources: EasyR1 0.3.3 verl/trainer/ray_trainer.py and verl/workers/fsdp_workers.py (_init_dist_mesh), verl 0.9.1
utils/config.py (validate_config), workers/config/actor.py, workers/engine_workers.py, trainer/ppo/v1/trainer_base.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from grposweep.rules import counts
from grposweep.rules.registry import Broken, Judge, rule
from grposweep.setting import IN_PROMPTS, Setting

EASYR1, VERL = frozenset({"easyr1"}), frozenset({"verl"})
SHARED = ("tensor_parallel_size", "sequence_parallel_size", "context_parallel_size", "pipeline_parallel_size")
SPLIT = ("processes", *SHARED)
STEP = ("num_generations", "prompts_per_step")
ROLLOUT = ("num_generations", "prompts_per_rollout")
COUNTED = ("num_generations", "prompts_per_rollout", "prompts_per_step", "per_device_train_batch_size", "num_iterations",
           "experience_batch_size", "reference_batch_size", "prompts_per_generation")  # fmt: skip
GROUPED = ("grpo", "rloo", "grpo_passk", "grpo_vectorized", "rloo_vectorized", "gdpo")  # they compare within a group
FARTHEST = 1024  # how far from a number its neighbours are looked for
MOST = 24  # neighbours offered for verification


def shared(s: Setting) -> int:
    """The processes that work on one data rank's completions together."""
    sizes = (s.tensor_parallel_size, s.sequence_parallel_size, s.context_parallel_size, s.pipeline_parallel_size)
    product = 1
    for size in sizes:
        product *= max(size, 1)
    return product


def ranks(s: Setting) -> int | None:
    """R, or None while it is unknown or none is left."""
    return None if s.processes is None or s.processes < 1 else s.processes // shared(s) or None


def is_sized(s: Setting) -> bool:
    """Sizes are there and at least one; GB301 reports what is not."""
    sizes = (s.num_generations, s.prompts_per_rollout, s.prompts_per_step, s.per_device_train_batch_size)
    return all(size is not None and size > 0 for size in sizes)


SIZED = ("num_generations", "prompts_per_rollout", "prompts_per_step", "per_device_train_batch_size")


def near(value: int, accepts: Callable[[int], bool], least: int = 1) -> list[int]:
    """Other numbers that satisfy a condition, nearest first, the smaller of two first."""
    outward = (n for far in range(1, FARTHEST) for n in (value - far, value + far))
    return list(islice((n for n in outward if n >= least and accepts(n)), MOST))


@dataclass(frozen=True)
class Offer:
    """Changes of one size each to the nearest values that a condition accepts; looked for when somebody wants a fix."""

    setting: Setting
    names: tuple[str, ...]
    accepts: Callable[[Setting], bool]

    def __iter__(self) -> Iterator[dict[str, int]]:
        for name in self.names:
            now = getattr(self.setting, name)
            if now is not None:
                yield from ({name: n} for n in near(now, partial(self._fits, name)))

    def _fits(self, name: str, value: int) -> bool:
        return self.accepts(self.setting.altered({name: value}))


def offer(s: Setting, *names: str, accepts: Callable[[Setting], bool]) -> Offer:
    """Other sizes, one after the other."""
    return Offer(s, names, accepts)


def by_trial(s: Setting, judge: Judge) -> int:
    """The numbers of processes that a rule accepts, found by asking."""
    return counts.ALL if s.prompts_per_rollout is None else counts.by_trial(s, judge)


def per_rank(s: Setting) -> int:
    """floor(p G / R)."""
    return (s.prompts_per_step or 0) * s.num_generations // (ranks(s) or 1)


def on_ranks(s: Setting) -> str:
    """The processes in words, where some of them share their data."""
    return f"{s.processes} processes" + (f" / {shared(s)} that share a sequence or a model" if shared(s) > 1 else "")


@rule("GB301", "error", (*COUNTED, "prompts_per_rollout"), of=IN_PROMPTS)
def sizes_in_prompts_are_positive(s: Setting) -> Broken | None:
    """Prompts a rollout and a step, completions a prompt and a micro-batch, and passes count something: at least 1.

    EasyR1 and verl fail on 0 with a division by zero, or take no step at all.
    """
    if s.prompts_per_rollout is None:
        return None
    for name in COUNTED:
        value = getattr(s, name)
        if value is not None and value < 1:
            return Broken(
                what=f"{s.key(name)}={value}",
                why="it counts something that a step cannot do without, so it must be at least 1",
                instead=f"Set {s.key(name)}=1 or more.",
                fields=(name,),
                suggestions=tuple({name: n} for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
            )
    return None


@rule("GB302", "error", ("framework", "num_generations", "advantage_estimator"), of=IN_PROMPTS)
def a_group_of_prompts_has_two(s: Setting) -> Broken | None:
    """GRPO and RLOO compare the completions of a prompt, so they need at least two.

    EasyR1 refuses 1: "GRPO and RLOO algorithm need `config.worker.rollout.n > 1`." verl, where 1 is the default, says
    nothing: a group of one has mean 0 and deviation 1, so the advantage is the reward itself, without a baseline.
    """
    if s.num_generations >= 2 or s.num_generations < 1 or s.advantage_estimator not in GROUPED:
        return None
    late = "takes the reward itself for the advantage, without a word" if s.framework == "verl" else "refuses it"
    return Broken(
        what=f"{s.key('num_generations')}={s.num_generations}",
        why=f"{s.advantage_estimator} compares completions of the same prompt; with one of them {s.trainer} {late}",
        instead=f"Set {s.key('num_generations')}=8, a usual size.",
        fields=("num_generations", "advantage_estimator"),
        suggestions=tuple({"num_generations": n} for n in (8, 4, 5, 16, 2, 6, 3, 12, 10, 32)),
    )


@rule("GB303", "error", SIZED, of=EASYR1)
def a_rollout_is_whole_steps(s: Setting) -> Broken | None:
    """P must be a multiple of p: both count prompts.

    EasyR1: "Rollout batch size must be divisible by actor global batch size."
    """
    if not is_sized(s) or (s.prompts_per_rollout or 0) % (s.prompts_per_step or 1) == 0:
        return None
    return Broken(
        what=f"{s.key('prompts_per_rollout')}={s.prompts_per_rollout}",
        why=f"it is no multiple of {s.key('prompts_per_step')}={s.prompts_per_step} (both count prompts)",
        instead=f"Choose a multiple of {s.prompts_per_step}.",
        fields=("prompts_per_rollout", "prompts_per_step"),
        suggestions=offer(s, "prompts_per_step", "prompts_per_rollout", accepts=_is_whole),
    )


def _is_whole(s: Setting) -> bool:
    return (s.prompts_per_rollout or 0) % (s.prompts_per_step or 1) == 0


@rule("GB304", "error", (*SIZED, "experience_batch_size"), of=EASYR1)
def experience_is_whole_micro_batches(s: Setting) -> Broken | None:
    """P G, the completions of a rollout, must be a multiple of the micro-batch for log-probabilities.

    EasyR1, counting the rollout of all processes, and with dynamic batching too: "Rollout batch size * rollout.n must be
    divisible by actor micro batch size for experience."
    """
    size = s.experience_batch_size
    if not is_sized(s) or size is None or size < 1 or _experience_fits(s):
        return None
    return Broken(
        what=f"{s.key('experience_batch_size')}={size}",
        why=f"it does not divide the {(s.prompts_per_rollout or 0) * s.num_generations} completions of a rollout "
        f"({s.prompts_per_rollout} prompts x {s.num_generations})",
        instead=f"Choose a divisor, such as {s.num_generations}.",
        fields=("experience_batch_size", *ROLLOUT),
        suggestions=offer(s, "experience_batch_size", "prompts_per_rollout", accepts=_experience_fits),
    )


def _experience_fits(s: Setting) -> bool:
    return (s.prompts_per_rollout or 0) * s.num_generations % (s.experience_batch_size or 1) == 0


@rule("GB305", "error", (*SIZED, *SPLIT), lambda s: by_trial(s, every_rank_has_a_completion), of=EASYR1)
def every_rank_has_a_completion(s: Setting) -> Broken | None:
    """A step must hold a completion for every data rank: g = floor(p G / R) is at least 1.

    EasyR1, in each worker: "actor global batch size * ulysses size must be larger than num gpus." (it means p G).
    """
    count = ranks(s)
    if not is_sized(s) or count is None or per_rank(s) >= 1:
        return None
    return Broken(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"{s.prompts_per_step} x {s.num_generations} completions a step are fewer than {on_ranks(s)}",
        instead=f"Choose at least {-(-count // s.num_generations)} prompts.",
        fields=("prompts_per_step", "num_generations", "processes"),
        suggestions=offer(s, "prompts_per_step", "num_generations", accepts=lambda t: per_rank(t) >= 1),
    )


@rule("GB306", "error", (*SIZED, *SPLIT), lambda s: by_trial(s, a_rank_has_whole_micro_batches), of=EASYR1)
def a_rank_has_whole_micro_batches(s: Setting) -> Broken | None:
    """G = floor(p G / R), the completions of a step on one data rank, must be a multiple of m.

    EasyR1, in each worker, with dynamic batching too: "actor global batch size per device must be divisible by the micro
    batch size." With sequences shared by two processes there are half as many data ranks, so g is twice as large.
    """
    size = s.per_device_train_batch_size
    if not is_sized(s) or ranks(s) is None or per_rank(s) < 1 or per_rank(s) % size == 0:
        return None
    return Broken(
        what=f"{s.key('per_device_train_batch_size')}={size}",
        why=f"it does not divide the {per_rank(s)} completions of a step on each rank "
        f"({s.prompts_per_step} prompts x {s.num_generations} / {on_ranks(s)})",
        instead=f"Choose a divisor of {per_rank(s)}.",
        fields=("per_device_train_batch_size", "prompts_per_step", "num_generations", "processes"),
        suggestions=offer(s, "per_device_train_batch_size", "prompts_per_step", accepts=_micro_fits),
    )


def _micro_fits(s: Setting) -> bool:
    return per_rank(s) >= 1 and per_rank(s) % s.per_device_train_batch_size == 0


@rule(
    "GB307",
    "error",
    (*SIZED, *SPLIT, "offloads_parameters"),
    lambda s: by_trial(s, offloading_does_not_accumulate),
    of=EASYR1,
)
def offloading_does_not_accumulate(s: Setting) -> Broken | None:
    """FSDP's own CPU offload knows no gradient accumulation: a step must be one micro-batch, g = m.

    EasyR1: "actor cannot use FSDP's CPU offload when gradient accumulation is enabled." Its own ``offload.offload_params``
    is another switch, which does.
    """
    size = s.per_device_train_batch_size
    if not s.offloads_parameters or not is_sized(s) or ranks(s) is None or per_rank(s) in (0, size):
        return None
    return Broken(
        what=f"{s.key('offloads_parameters')}=true",
        why=f"a step takes {per_rank(s)} completions on each rank in micro-batches of {size}, and FSDP cannot accumulate "
        "gradients with the weights offloaded",
        instead=f"Set {s.key('offloads_parameters')}=false (worker.actor.offload.offload_params=true saves memory too).",
        fields=("offloads_parameters", "per_device_train_batch_size", "prompts_per_step"),
        suggestions=({"offloads_parameters": False}, {"per_device_train_batch_size": per_rank(s)}),
        without_effect=frozenset({"offloads_parameters"}),
    )


PORTIONS = (*SIZED, "prompts_per_generation", "processes")


@rule("GB308", "error", PORTIONS, lambda s: by_trial(s, every_process_generates_alike), of=EASYR1)
def every_process_generates_alike(s: Setting) -> Broken | None:
    """The prompts of a generation call (``mini_rollout_batch_size``, or all of P) are cut into W equal parts.

    EasyR1 at the first rollout: "only support equal chunk. Got size of DataProto {n} and chunk {W}."
    """
    if not is_sized(s) or s.processes is None or s.processes < 1 or _chunks(s):
        return None
    name = "prompts_per_rollout" if s.prompts_per_generation is None else "prompts_per_generation"
    if getattr(s, name) % s.processes == 0:
        name = "prompts_per_rollout"
    return Broken(
        what=f"{s.key(name)}={getattr(s, name)}",
        why=f"the {s.processes} processes generate equal parts of it, and it is no multiple of {s.processes}",
        instead=f"Choose a multiple of {s.processes}.",
        fields=(name, "processes"),
        suggestions=offer(s, name, accepts=_chunks),
    )


def _chunks(s: Setting) -> bool:
    prompts, count = s.prompts_per_generation or s.prompts_per_rollout or 0, s.processes or 1
    return prompts % count == 0 and (s.prompts_per_rollout or 0) * s.num_generations % count == 0


@rule("GB309", "error", (*SIZED, *SPLIT), lambda s: by_trial(s, a_rank_has_whole_steps), of=EASYR1)
def a_rank_has_whole_steps(s: Setting) -> Broken | None:
    """The completions of a rollout on one data rank, P G / R, must be whole steps of g = floor(p G / R).

    Where p G is no multiple of R, g is rounded down, and then the rollout may not be whole steps any more. EasyR1 at the
    first update: "only support equal split. Got size of DataProto {n} and split {g}."
    """
    if not _divides(s) or _splits(s):
        return None
    return Broken(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"{s.prompts_per_step} x {s.num_generations} completions over {on_ranks(s)} are rounded down to {per_rank(s)} a "
        f"rank, which do not divide its {_held(s)} completions of a rollout",
        instead=f"Choose {s.key('prompts_per_step')} x {s.key('num_generations')} as a multiple of {ranks(s)}.",
        fields=("prompts_per_step", "num_generations", "processes"),
        suggestions=offer(s, "prompts_per_step", "num_generations", accepts=lambda t: _is_whole(t) and _splits(t)),
    )


def _held(s: Setting) -> int:
    """A rollout's completions on one data rank."""
    return (s.prompts_per_rollout or 0) * s.num_generations // (s.processes or 1) * shared(s)


def _divides(s: Setting) -> bool:
    """Whether sizes, processes and ranks are such that a rollout comes to be split into steps at all."""
    return is_sized(s) and ranks(s) is not None and per_rank(s) >= 1 and _is_whole(s)


def _splits(s: Setting) -> bool:
    return per_rank(s) >= 1 and _held(s) % per_rank(s) == 0


@rule("GB310", "warning", (*SIZED, *SPLIT), of=EASYR1)
def a_step_is_not_rounded_down(s: Setting) -> Broken | None:
    """P G should be a multiple of R: EasyR1 rounds g = p G / R down without a word, and takes more and smaller steps.

    Run on its own arithmetic: two processes, one prompt a step, five completions a prompt, four prompts a rollout make
    five steps of 4 completions instead of four steps of 5.
    """
    count = ranks(s)
    if not _divides(s) or not _splits(s) or count is None:
        return None
    wanted = (s.prompts_per_step or 0) * s.num_generations
    if wanted % count == 0:
        return None
    return Broken(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"{wanted} completions a step over {on_ranks(s)} are rounded down: steps of {per_rank(s) * count}, and "
        f"{_held(s) // per_rank(s)} of them a rollout",
        instead=f"Choose {s.key('prompts_per_step')} x {s.key('num_generations')} as a multiple of {count}.",
        fields=("prompts_per_step", "num_generations", "processes"),
    )


@rule("GB311", "warning", (*SIZED, "prompts_per_generation", "filters_groups"), of=EASYR1)
def nothing_is_generated_for_the_bin(s: Setting) -> Broken | None:
    """``mini_rollout_batch_size`` should divide P: what is generated beyond a rollout is thrown away.

    EasyR1 generates portions until there are enough, and keeps ``batch[: P * n]``. With online filtering it has to.
    """
    size, prompts = s.prompts_per_generation, s.prompts_per_rollout or 0
    if size is None or size < 1 or not is_sized(s) or s.filters_groups or prompts % size == 0:
        return None
    surplus = -prompts % size
    return Broken(
        what=f"{s.key('prompts_per_generation')}={size}",
        why=f"it does not divide {s.key('prompts_per_rollout')}={prompts}: {surplus * s.num_generations} completions a "
        "rollout are generated and thrown away",
        instead=f"Choose a divisor of {prompts}.",
        fields=("prompts_per_generation", "prompts_per_rollout"),
    )


@rule("GB312", "error", ("unsolved",), of=IN_PROMPTS)
def the_sizes_can_be_said_in_prompts(s: Setting) -> Broken | None:
    """A step holds whole groups, a rollout whole steps, and a step divides among the data ranks.

    Ours: sizes in completions (``batch=...`` of a sweep) are written in prompts for EasyR1 and verl, which count these. Sizes
    that do not come out even would be others without a word.
    """
    if "prompts_per_rollout" not in s.unsolved:
        return None
    return Broken(
        what=f"{s.key('num_generations')}={s.num_generations}",
        why=f"{s.framework} counts prompts, and these sizes are no whole prompts a step and whole steps a rollout",
        instead="Set batch=auto with batch.prompts_per_step, or sizes that are multiples of the generations.",
        fields=("num_generations",),
    )
