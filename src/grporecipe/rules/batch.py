"""GB: the training batch holds whole groups of completions, and its sizes are positive, consistent
and effective.

Symbols as in ``plan``: B, W, A, S, G. Sources: TRL's own checks, read and run version by version:
trainer/grpo_trainer.py in
0.15-0.17, GRPOConfig.__post_init__ in trainer/grpo_config.py since 0.18. What TRL notices at the
first step or never was
measured; its messages are quoted in the docstrings.
"""

from collections.abc import Callable
from typing import Any

from grporecipe.model import planning
from grporecipe.model.setting import EVERY, TRL_LIKE, Setting
from grporecipe.rules.helpers import (
    each,
    every_count,
    named,
    no_field,
)
from grporecipe.rules.registry import (
    ALL_COUNTS,
    Change,
    F,
    Finding,
    Severity,
    Violation,
    by_trial,
    rule,
)

SIZES = planning.ROLLOUT_READS
# how many steps use a rollout
USES = (*SIZES, "unsolved", "num_iterations")
SOLVED = ("auto", "unsolved", "prompts_per_step")
# weights; smaller models are toys, with other learning rates
LARGE_MODEL = 1e8
# optimizer steps
FEW_STEPS = 20
# versions that changed the unit that must be whole
COMPLETIONS, ACCUMULATED, ROLLOUTS = (0, 15), (0, 17), (0, 18)
PRECEDENCE_FIXED = (0, 19, 1)
AUTO_FIND_REFUSED = (1, 9)


def judgeable(s: Setting) -> bool:
    """Return whether all sizes are known and at least one. Other rules report what is not."""
    if min(s.processes or 0, s.per_device_train_batch_size, s.gradient_accumulation_steps) < 1:
        return False
    return planning.micro_steps_per_generation(s) >= 1 and not s.unsolved & planning.TRAIN_SIZES


def only_tries(s: Setting) -> bool:
    """Return whether a run of so few steps, or of so small a model, only tries the code."""
    is_short = 0 < (s.max_steps or 0) <= FEW_STEPS
    return is_short or (s.parameters or LARGE_MODEL) < LARGE_MODEL


def per_process(s: Setting) -> int:
    """Return the completions that one process adds to the unit that must hold whole groups, by
    version: B, B A or B S.
    """
    if s.version < ACCUMULATED:
        return s.per_device_train_batch_size
    if s.version < ROLLOUTS or s.steps_per_generation is None:
        return s.per_device_train_batch_size * s.gradient_accumulation_steps
    return s.per_device_train_batch_size * s.steps_per_generation


@rule(
    "GB101",
    "error",
    ("framework", *SIZES, "unsolved", "num_generations"),
    "by trial",
    of=TRL_LIKE,
    blames=("num_generations", *SIZES[1:]),
    why="it does not divide the {total} completions of {made_of}; {trainer} needs whole groups",
    instead="Choose sizes whose product is a multiple of {s.num_generations}.",
)
def whole_groups(s: Setting) -> Finding:
    """The completions of a rollout, B W S, must be a multiple of ``num_generations``.

    Advantages compare the completions of one prompt, so a rollout holds whole groups. S is
    ``steps_per_generation`` and defaults to ``gradient_accumulation_steps``. TRL 1.16:
    "generation_batch_size (7) must be divisible by num_generations (8)." Older releases are
    stricter: in 0.15 and 0.16 B W itself must be whole ("The global train batch size (7 x 1) must
    be evenly divisible by the number of generations per prompt (8)"), so accumulation does not
    help; in
    0.17 B W A; in 0.14 B counts prompts and there is no such rule.
    """
    if s.processes is None or s.processes < 1 or s.num_generations < 1 or s.version < COMPLETIONS:
        return None
    total = s.processes * per_process(s)
    if s.version >= ROLLOUTS:
        total = s.generation_batch_size or total
    if total < 1 or total % s.num_generations == 0 or s.unsolved & planning.TRAIN_SIZES:
        return None
    return {"total": total, "made_of": _made_of(s)}


def process_noun(s: Setting) -> str:
    """Return the noun after the number of processes."""
    return "process" if s.processes == 1 else "processes"


def _made_of(s: Setting) -> str:
    """Describe what must hold whole groups, and its factors."""
    if s.generation_batch_size is not None and s.version >= ROLLOUTS:
        return f"a rollout ({s.key('generation_batch_size')}={s.generation_batch_size})"
    words = f"{s.processes} {process_noun(s)} x {s.per_device_train_batch_size} per device"
    if s.version < ACCUMULATED:
        return f"a micro-step ({words}; before TRL 0.17 accumulation does not count)"
    return f"a rollout ({words} x {planning.micro_steps_per_generation(s)} micro-steps)"


@rule(
    "GB102",
    "error",
    ("num_generations", "distils"),
    of=TRL_LIKE,
    blames=("num_generations",),
    why="GRPO compares completions of the same prompt, so a group needs at least 2",
    instead="Set {num_generations}=8, the usual size.",
    to=(
        *each("num_generations", (8, 4, 2, 16, 6, 3, 12, 5, 7)),
        # if no group fits the present sizes
        {"num_generations": 8, "per_device_train_batch_size": 8},
        {"num_generations": 8, "per_device_eval_batch_size": 8},
        {"num_generations": 8, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8},
    ),
)
def a_group_has_two(s: Setting) -> bool:
    """A group needs at least two completions: the advantage of a single one is always zero.

    TRL 1.16: "GRPO requires at least 2 generations per prompt to calculate the advantages." 0 is a
    ZeroDivisionError. TRL 0.14 checks nothing and divides by the standard deviation of one number,
    which is NaN. ms-swift 4.6.0: "num_generations must be greater than 1 for GRPO", unless a
    teacher gives the signal; 0 fails later with a division by zero.
    """
    return s.num_generations < 2 and not (s.distils and s.num_generations == 1)


@rule(
    "GB106",
    "error",
    SIZES,
    "by trial",
    of=TRL_LIKE,
    blames=("generation_batch_size", "per_device_train_batch_size", "processes"),
    why=(
        "it is not a multiple of the {unit} completions of a micro-step ({s.processes} x "
        "{s.per_device_train_batch_size})"
    ),
    instead="Choose a multiple of {unit}, or leave {generation_batch_size} out.",
)
def a_rollout_is_whole_micro_steps(s: Setting) -> Finding:
    """``generation_batch_size`` must be a multiple of B W, the completions of one micro-step of all
    processes.

    TRL 1.16: "generation_batch_size (8) must be divisible by the global batch size (7)." TRL 0.18.0
    to 0.19.0 compute ``generation_batch_size % B * W``, which is 0 whenever B divides it: GB201 and
    GB110 describe what happens there.
    """
    total = s.generation_batch_size or 0
    size = s.per_device_train_batch_size
    processes = s.processes or 0
    if s.steps_per_generation is not None or s.version < ROLLOUTS:
        return None
    if min(total, size, processes) < 1:
        return None
    unit = size * processes
    checked = unit if s.version >= PRECEDENCE_FIXED else size
    return {"unit": unit} if total % checked else None


@rule("GB107", "error", SIZES, every_count)
def the_rollout_is_sized_once(s: Setting) -> Violation | None:
    """``generation_batch_size`` and ``steps_per_generation`` set the same size in two units; TRL
    takes only one of them.

    TRL since 0.18, even if the two agree: "'generation_batch_size' and 'steps_per_generation' can
    not be both configured at the same time".
    """
    if s.generation_batch_size is None or s.steps_per_generation is None or s.version < ROLLOUTS:
        return None
    names = ("generation_batch_size", "steps_per_generation")
    agree = (
        s.generation_batch_size
        == (s.processes or 0) * s.per_device_train_batch_size * s.steps_per_generation
    )
    same = frozenset(names) if agree else frozenset[str]()
    return Violation(
        named(s, names),
        "both size the rollout, and TRL refuses the two together even if they agree",
        f"Leave {s.key('generation_batch_size')} out.",
        names,
        ({"generation_batch_size": None}, {"steps_per_generation": None}),
        same,
    )


def shrinks(code: str, severity: Severity, **texts: Any) -> Callable[[F], F]:
    """Register a rule on ``auto_find_batch_size``; ``why`` is its consequence."""
    advice = (
        "Set {auto_find_batch_size}=false, and a smaller {per_device_train_batch_size} if "
        "memory runs out."
    )
    return rule(
        code,
        severity,
        ("auto_find_batch_size", "version"),
        blames=("auto_find_batch_size",),
        instead=advice,
        to=({"auto_find_batch_size": False},),
        harmless=("auto_find_batch_size",),
        **texts,
    )


@shrinks(
    "GB108",
    "error",
    why=(
        "TRL refuses it, because a batch that shrinks on out-of-memory no longer holds whole groups"
    ),
)
def the_batch_does_not_shrink(s: Setting) -> bool:
    """``auto_find_batch_size`` halves the batch when memory runs out, after which groups are no
    longer whole.

    TRL since 1.9: "auto_find_batch_size is not supported by GRPO". Before, see GB202.
    """
    return s.auto_find_batch_size and s.version >= AUTO_FIND_REFUSED


@shrinks(
    "GB202",
    "warning",
    why=(
        "a batch that shrinks on out-of-memory no longer holds whole groups (TRL 1.9 refuses "
        "the key)"
    ),
)
def the_batch_does_not_shrink_unnoticed(s: Setting) -> bool:
    """Before TRL 1.9 ``auto_find_batch_size`` is accepted: a batch halved on out-of-memory splits
    groups unnoticed.

    The generation batch keeps the size that it was computed with. TRL 1.9 refuses the key for this
    reason.
    """
    return s.auto_find_batch_size and s.version < AUTO_FIND_REFUSED


# counts, in the order of SIZES
COUNTED = (*SIZES[1:], "num_iterations", "max_completion_length")


def _counting(name: str) -> tuple[Change, ...]:
    """Return counts from 1 up, for a length usual ones. A size that TRL derives may also be left
    out.
    """
    if name == "max_completion_length":
        return each(name, (256,))
    counts = each(name, range(1, 65))
    return ({name: None}, *counts) if name in SIZES[4:] else counts


COUNTS_SOMETHING = "a training step needs it, so it must be at least 1"
rule(
    "GB103",
    "error",
    (*COUNTED, "auto"),
    every_count,
    of=TRL_LIKE,
    title="sizes are positive",
    text="""Processes, per-device size, accumulation, steps per generation, iterations and tokens of
    a completion are at least 1.

    TRL 1.16 accepts 0 and below at construction and fails at train() with messages such as
    "batch_size should be a positive integer value, but got batch_size=0" or a misleading one about
    max_steps. Completions of 0 tokens fail at the first rollout: "`max_new_tokens` must be greater
    than 0" (transformers), "max_tokens must be at least 1" (vLLM).
    """,
)(
    no_field(
        COUNTED,
        lambda s, name, value: value < 1 and name not in s.auto,
        COUNTS_SOMETHING,
        "Set {}=1 or more.",
        _counting,
    )
)


@rule(
    "GB104",
    "error",
    (*SIZES, *SOLVED, "num_generations"),
    "by trial",
    of=TRL_LIKE,
    blames=("prompts_per_step",),
    why=(
        "the sizes given with it make {step} completions per step, not {s.prompts_per_step} x "
        "{s.num_generations}"
    ),
    instead="Set {per_device_train_batch_size}=auto and {gradient_accumulation_steps}=auto, "
    "or leave {prompts_per_step} out.",
    to=({"prompts_per_step": None},),
)
def prompts_per_step_agrees(s: Setting) -> Finding:
    """``prompts_per_step`` written with fixed sizes must be what those sizes make: B W A / G.

    A grposweep key; TRL has none. With ``auto`` sizes the planner makes them agree.
    """
    if s.prompts_per_step is None or s.auto & planning.TRAIN_SIZES or not judgeable(s):
        return None
    step = planning.completions_per_step(s)
    if step is None or step == s.prompts_per_step * s.num_generations:
        return None
    return {"step": step}


def _solvable_counts(s: Setting) -> int:
    if not s.auto & planning.TRAIN_SIZES:
        return ALL_COUNTS
    open_sizes = s.replace({"auto": s.auto & planning.TRAIN_SIZES})
    return by_trial(open_sizes, lambda tried: auto_finds_a_size(planning.realise(tried)))


@rule(
    "GB105",
    "error",
    (*SIZES, *SOLVED, "num_generations", "max_per_device_train_batch_size"),
    _solvable_counts,
    of=EVERY,
)
def auto_finds_a_size(s: Setting) -> Violation | None:
    """``auto`` sizes need ``prompts_per_step``, and B W A = prompts_per_step G must have a
    solution.

    A grposweep feature: the planner keeps prompts_per_step x num_generations exactly and splits it
    over the processes.
    """
    if not s.unsolved & planning.TRAIN_SIZES or min(s.processes or 0, s.num_generations) < 1:
        return None
    if not s.prompts_per_step or s.prompts_per_step < 1:
        key = s.key("prompts_per_step")
        return Violation(
            f"{s.key('per_device_train_batch_size')}=auto",
            f"{key} is {s.prompts_per_step}, so there is nothing to solve for",
            f"Set {key}=8, say, or a size in place of auto.",
            ("prompts_per_step",),
            ({"prompts_per_step": 8},),
        )
    prompts = s.prompts_per_step
    wanted = prompts * s.num_generations
    near: list[int] = []
    for step in range(1, 65):
        near += (prompts + step, prompts - step)
    return Violation(
        f"{s.key('prompts_per_step')}={prompts}",
        f"{wanted} completions per step cannot be split over {s.processes} processes in the sizes "
        "left to choose",
        f"Choose prompts_per_step x num_generations as a multiple of {s.processes}.",
        ("prompts_per_step", "processes"),
        each("prompts_per_step", (n for n in near if n >= 1)),
    )


@rule(
    "GB109",
    "error",
    ("framework", "split_batches"),
    of=TRL_LIKE,
    blames=("split_batches",),
    why=(
        "{trainer} computes rollouts as if batches were not split, so prompts are silently left out"
    ),
    instead="Set {split_batches}=false.",
    to=({"split_batches": False},),
)
def batches_are_not_split(s: Setting) -> bool:
    """``accelerator_config.split_batches`` leaves half of the data or more untrained, without a
    message.

    TRL sizes its rollouts as B W S, but every process then receives B S / W rows. Measured with trl
    1.16 on two processes: each rollout used half of its prompts, and half of the data set was never
    seen.
    """
    return s.split_batches


def _misread(s: Setting) -> Finding:
    """Return what TRL 0.18.0-0.19.0 take of a rollout that is not a multiple of B W, and B W; None
    if nothing is misread.
    """
    total = s.generation_batch_size or 0
    size = s.per_device_train_batch_size
    processes = s.processes or 0
    if s.steps_per_generation is not None or not ROLLOUTS <= s.version < PRECEDENCE_FIXED:
        return None
    if min(total, size, processes) < 1 or total % size:
        return None
    unit = size * processes
    return {"taken": total // unit * unit, "unit": unit} if total % unit else None


@rule(
    "GB110",
    "error",
    SIZES,
    "by trial",
    blames=("generation_batch_size",),
    why="a micro-step takes {unit} completions, so a rollout has none",
    instead="Choose a multiple of {unit}.",
)
def a_rollout_fills_a_micro_step(s: Setting) -> Finding:
    """A ``generation_batch_size`` below B W leaves no micro-step: TRL 0.18.0-0.19.0 accept it and
    fail at train().

    S = generation_batch_size // (B W) is 0 there; from 0.19.1 on the configuration is refused
    (GB106).
    """
    misread = _misread(s)
    return None if misread and misread["taken"] else misread


@rule(
    "GB201",
    "warning",
    SIZES,
    blames=("generation_batch_size",),
    why="this TRL accepts it but takes {taken} of them into a rollout, so groups are torn apart; "
    "TRL 0.19.1 and later refuse it",
    instead="Choose a multiple of {unit}.",
)
def a_rollout_is_not_misread(s: Setting) -> Finding:
    """TRL 0.18.0-0.19.0 check ``generation_batch_size % B * W`` without parentheses, and accept
    wrong sizes.

    The rollout is cut to whole micro-steps, S = generation_batch_size // (B W), while prompts are
    still drawn by the whole number: rows of one group fall into different rollouts. From 0.19.1 on
    the same recipe is refused: "generation_batch_size (8) must be divisible by the global batch
    size (7)."
    """
    misread = _misread(s)
    return misread if misread and misread["taken"] else None
