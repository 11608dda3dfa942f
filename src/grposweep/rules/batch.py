"""GB: the training batch must hold whole groups of completions, in sizes that exist.

Sources: trl 1.16 trainer/grpo_config.py GRPOConfig.__post_init__; where TRL finds out late (first step), its message
is named in the docstring.
"""

from grposweep import plan
from grposweep.rules.registry import Broken, rule
from grposweep.setting import Setting

SIZES = (
    "processes",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
)
SOLVED = ("auto", "unsolved", "prompts_per_step")


def judgeable(s: Setting) -> bool:
    """Sizes are known and at least one; other rules report what is not."""
    sizes = (s.per_device_train_batch_size, s.gradient_accumulation_steps, plan.micro_steps_per_generation(s))
    return s.processes is not None and s.processes >= 1 and min(sizes) >= 1 and not s.unsolved & plan.TRAIN_SIZES


@rule("GB101", "error", (*SIZES, "unsolved", "num_generations"))
def whole_groups(s: Setting) -> Broken | None:
    """The completions of a rollout, B W S, must be a multiple of ``num_generations``.

    Advantages compare the completions of one prompt, so a rollout holds whole groups. S is ``steps_per_generation`` and
    defaults to ``gradient_accumulation_steps``. TRL 1.16: "generation_batch_size (7) must be divisible by
    num_generations (8)."
    """
    rollout = plan.completions_per_rollout(s)
    if not judgeable(s) or rollout is None or s.num_generations < 1 or rollout % s.num_generations == 0:
        return None
    size, per = s.per_device_train_batch_size, plan.micro_steps_per_generation(s)
    return Broken(
        what=f"{s.key('num_generations')}={s.num_generations}",
        why=(
            f"it does not divide the {rollout} completions of a rollout ({s.processes} "
            f"{'process' if s.processes == 1 else 'processes'} x {size} per device x {per} micro-steps); "
            f"TRL needs whole groups"
        ),
        instead=f"Choose sizes whose product is a multiple of {s.num_generations}.",
        fields=("num_generations", *SIZES),
    )


@rule("GB102", "error", ("num_generations",))
def a_group_has_two(s: Setting) -> Broken | None:
    """A group needs at least two completions: the advantage of a single one is always zero.

    TRL 1.16: "GRPO requires at least 2 generations per prompt to calculate the advantages." 0 is a ZeroDivisionError.
    """
    if s.num_generations >= 2:
        return None
    return Broken(
        what=f"{s.key('num_generations')}={s.num_generations}",
        why="GRPO compares completions of the same prompt, so a group needs at least 2",
        instead=f"Set {s.key('num_generations')}=8, the usual size.",
        fields=("num_generations",),
        suggestions=(
            *({"num_generations": size} for size in (8, 4, 2)),
            {"num_generations": 8, "per_device_train_batch_size": 8},  # where no group fits the sizes as they are
            {"num_generations": 8, "per_device_eval_batch_size": 8},
            {"num_generations": 8, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8},
        ),
    )


@rule("GB103", "error", (*SIZES, "num_iterations", "auto"))
def sizes_are_positive(s: Setting) -> Broken | None:
    """Processes, per-device size, accumulation, steps per generation and iterations are at least 1.

    TRL 1.16 accepts 0 and below at construction and fails at train() with messages such as "batch_size should be a
    positive integer value, but got batch_size=0" or a misleading one about max_steps.
    """
    for name in (*SIZES, "num_iterations"):
        value = getattr(s, name)
        if value is not None and value < 1 and name not in s.auto:
            return Broken(
                what=f"{s.key(name)}={value}",
                why="it counts something that a step cannot do without, so it must be at least 1",
                instead=f"Set {s.key(name)}=1 or more.",
                fields=(name,),
                suggestions=({name: 1},),
            )
    return None


@rule("GB104", "error", (*SIZES, *SOLVED, "num_generations"))
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


@rule("GB105", "error", (*SIZES, *SOLVED, "num_generations", "max_per_device_train_batch_size"))
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


def _near(value: int) -> list[int]:
    """Positive neighbours, nearest first."""
    return [n for step in range(1, 65) for n in (value + step, value - step) if n >= 1]
