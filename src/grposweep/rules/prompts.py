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
