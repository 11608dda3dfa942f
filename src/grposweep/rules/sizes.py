"""GB: sizes that exist, agree with each other, and mean what they say.

What TRL notices late (first step) or not at all; its messages are named in the docstrings.
"""

from grposweep import plan
from grposweep.rules import counts
from grposweep.rules.batch import PRECEDENCE_FIXED, ROLLOUTS, SIZES, SOLVED, judgeable
from grposweep.rules.registry import Broken, rule
from grposweep.setting import EVERY, TRL_LIKE, Setting

COUNTED = (*SIZES[1:], "num_iterations")  # what counts something, in the order of SIZES


@rule("GB103", "error", (*COUNTED, "auto"), counts.every, of=TRL_LIKE)
def sizes_are_positive(s: Setting) -> Broken | None:
    """Processes, per-device size, accumulation, steps per generation and iterations are at least 1.

    TRL 1.16 accepts 0 and below at construction and fails at train() with messages such as "batch_size should be a
    positive integer value, but got batch_size=0" or a misleading one about max_steps.
    """
    for name in COUNTED:
        value = getattr(s, name)
        if value is not None and value < 1 and name not in s.auto:
            return Broken(
                what=f"{s.key(name)}={value}",
                why="it counts something that a step cannot do without, so it must be at least 1",
                instead=f"Set {s.key(name)}=1 or more.",
                fields=(name,),
                suggestions=_counting(name),
            )
    return None


def _counting(name: str) -> tuple[dict[str, int | None], ...]:
    """Counts from 1 up; a size that TRL can derive may also be left out."""
    values = [None, *range(1, 65)] if name in SIZES[4:] else [*range(1, 65)]
    return tuple({name: value} for value in values)


@rule("GB104", "error", (*SIZES, *SOLVED, "num_generations"), lambda s: _agreeing_counts(s), of=TRL_LIKE)
def prompts_per_step_agrees(s: Setting) -> Broken | None:
    """``prompts_per_step`` written beside fixed sizes must be what those sizes make: B W A / G.

    Ours: TRL has no such key. With ``auto`` sizes the planner makes them agree.
    """
    if s.prompts_per_step is None or s.auto & plan.TRAIN_SIZES or not judgeable(s):
        return None
    step = plan.completions_per_step(s)
    if step is None or step == s.prompts_per_step * s.num_generations:
        return None
    return Broken(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"the sizes beside it make {step} completions a step, not {s.prompts_per_step} x {s.num_generations}",
        instead=f"Set {s.key('per_device_train_batch_size')}=auto and {s.key('gradient_accumulation_steps')}=auto, "
        f"or leave {s.key('prompts_per_step')} out.",
        fields=("prompts_per_step",),
        suggestions=({"prompts_per_step": None},),
    )


def _agreeing_counts(s: Setting) -> int:
    if s.prompts_per_step is None or s.auto & plan.TRAIN_SIZES:
        return counts.ALL
    return counts.by_trial(s, prompts_per_step_agrees)


@rule(
    "GB105",
    "error",
    (*SIZES, *SOLVED, "num_generations", "max_per_device_train_batch_size"),
    lambda s: _solvable_counts(s),
    of=EVERY,
)
def auto_finds_a_size(s: Setting) -> Broken | None:
    """``auto`` sizes need ``prompts_per_step``, and B W A = prompts_per_step G must have a solution.

    Ours: the planner keeps prompts_per_step x num_generations exactly, so their product is split over the processes.
    """
    if not s.unsolved & plan.TRAIN_SIZES or s.processes is None or s.processes < 1 or s.num_generations < 1:
        return None
    if not s.prompts_per_step or s.prompts_per_step < 1:
        return Broken(
            what=f"{s.key('per_device_train_batch_size')}=auto",
            why=f"{s.key('prompts_per_step')} is {s.prompts_per_step}, so there is nothing to solve for",
            instead=f"Set {s.key('prompts_per_step')}=8, say, or a size in place of auto.",
            fields=("prompts_per_step",),
            suggestions=({"prompts_per_step": 8},),
        )
    wanted = s.prompts_per_step * s.num_generations
    return Broken(
        what=f"{s.key('prompts_per_step')}={s.prompts_per_step}",
        why=f"{wanted} completions a step cannot be split over {s.processes} processes in the sizes left to choose",
        instead=f"Choose prompts_per_step x num_generations as a multiple of {s.processes}.",
        fields=("prompts_per_step", "processes"),
        suggestions=tuple({"prompts_per_step": n} for n in _near(s.prompts_per_step)),
    )


def _solvable_counts(s: Setting) -> int:
    if not s.auto & plan.TRAIN_SIZES:
        return counts.ALL
    open_sizes = s.altered({"auto": s.auto & plan.TRAIN_SIZES})
    return counts.by_trial(open_sizes, lambda tried: auto_finds_a_size(plan.realise(tried)))


def _near(value: int) -> list[int]:
    """Positive neighbours, nearest first."""
    return [n for step in range(1, 65) for n in (value + step, value - step) if n >= 1]


@rule("GB109", "error", ("framework", "split_batches"), of=TRL_LIKE)
def batches_are_not_split(s: Setting) -> Broken | None:
    """``accelerator_config.split_batches`` leaves half of the data or more untrained, without a message.

    TRL sizes its rollouts as B W S, but every process then receives B S / W rows. Measured with trl 1.16 on two processes:
    each rollout used half of its prompts, and half of the data set was never seen.
    """
    if not s.split_batches:
        return None
    return Broken(
        what=f"{s.key('split_batches')}=true",
        why=f"{s.trainer} computes rollouts as if batches were not split, so prompts are silently left out",
        instead=f"Set {s.key('split_batches')}=false.",
        fields=("split_batches",),
        suggestions=({"split_batches": False},),
    )


def _misread(s: Setting) -> int | None:
    """The rollout that TRL 0.18.0-0.19.0 accept although it is no multiple of B W; None where nothing is misread."""
    total, size = s.generation_batch_size, s.per_device_train_batch_size
    if total is None or s.processes is None or not ROLLOUTS <= s.version < PRECEDENCE_FIXED:
        return None
    if s.steps_per_generation is not None or min(total, size, s.processes) < 1 or total % size:
        return None
    return total if total % (size * s.processes) else None


@rule("GB110", "error", SIZES, lambda s: _filled_counts(s))
def a_rollout_fills_a_micro_step(s: Setting) -> Broken | None:
    """A ``generation_batch_size`` below B W leaves no micro-step: TRL 0.18.0-0.19.0 accept it and fail at train().

    S = generation_batch_size // (B W) is 0 there; from 0.19.1 on the configuration is refused (GB106).
    """
    total = _misread(s)
    if total is None or s.processes is None or total >= s.per_device_train_batch_size * s.processes:
        return None
    return Broken(
        what=f"{s.key('generation_batch_size')}={total}",
        why=f"a micro-step takes {s.per_device_train_batch_size * s.processes} completions, so a rollout has none",
        instead=f"Choose a multiple of {s.per_device_train_batch_size * s.processes}.",
        fields=("generation_batch_size",),
    )


def _filled_counts(s: Setting) -> int:
    if s.generation_batch_size is None or not ROLLOUTS <= s.version < PRECEDENCE_FIXED:
        return counts.ALL
    if s.steps_per_generation is not None or min(s.generation_batch_size, s.per_device_train_batch_size) < 1:
        return counts.ALL
    whole, rest = divmod(s.generation_batch_size, s.per_device_train_batch_size)
    return counts.ALL if rest else counts.up_to(whole)


@rule("GB201", "warning", SIZES)
def a_rollout_is_not_misread(s: Setting) -> Broken | None:
    """TRL 0.18.0-0.19.0 check ``generation_batch_size % B * W`` without parentheses, and accept what they should not.

    The rollout is cut to whole micro-steps, S = generation_batch_size // (B W), while prompts are still drawn by the whole
    number: rows of one group fall into different rollouts. From 0.19.1 on the same recipe is refused:
    "generation_batch_size (8) must be divisible by the global batch size (7)."
    """
    total = _misread(s)
    if total is None or s.processes is None or total < (unit := s.per_device_train_batch_size * s.processes):
        return None
    return Broken(
        what=f"{s.key('generation_batch_size')}={total}",
        why=f"this TRL accepts it but takes {total // unit * unit} of them into a rollout, so groups are torn apart; "
        "TRL 0.19.1 and later refuse it",
        instead=f"Choose a multiple of {unit}.",
        fields=("generation_batch_size",),
    )
