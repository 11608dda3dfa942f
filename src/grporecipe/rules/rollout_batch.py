"""GB, GS, GD, GT and GL of frameworks that size a rollout and a step in prompts, and count steps in
rollouts.

Symbols: P prompts per rollout, p prompts per optimizer step, G completions per prompt, W processes,
R data ranks; R is W without those that share a sequence or a model; m completions per micro-batch,
g = floor(p G / R) completions per step and rank. Sources: EasyR1 0.3.3 verl/trainer/ray_trainer.py,
verl/trainer/data_loader.py, verl/trainer/core_algos.py (compute_policy_loss),
verl/workers/fsdp_workers.py (_init_dist_mesh, _build_rollout; one scheduler step an update_actor);
verl 0.9.1 utils/config.py (validate_config), workers/config/actor.py, workers/engine_workers.py,
trainer/ppo/v1/trainer_base.py, trainer/ppo/core_algos.py.
"""

from collections.abc import Iterator

from grporecipe.model import planning
from grporecipe.model.planning import shared
from grporecipe.model.setting import IN_PROMPTS, Setting
from grporecipe.rules.batch import COUNTS_SOMETHING, SIZES, judgeable, process_noun
from grporecipe.rules.helpers import each, named, near, no_field
from grporecipe.rules.registry import Change, Finding, Violation, rule

SHARED = (
    "tensor_parallel_size",
    "sequence_parallel_size",
    "context_parallel_size",
    "pipeline_parallel_size",
)
SPLIT = ("processes", *SHARED)
SIZED = (
    "num_generations",
    "prompts_per_rollout",
    "prompts_per_step",
    "per_device_train_batch_size",
)
COUNTED = (
    *SIZED,
    "num_iterations",
    "experience_batch_size",
    "reference_batch_size",
    "prompts_per_generation",
)
# these compare within a group
GROUPED = ("grpo", "rloo", "grpo_passk", "grpo_vectorized", "rloo_vectorized", "gdpo")


def ranks(s: Setting) -> int | None:
    """Return R; None if it is unknown or no rank is left."""
    return max(s.processes or 0, 0) // shared(s) or None


def is_sized(s: Setting) -> bool:
    """Return whether all sizes are set and at least one. GB301 reports what is not."""
    sizes = (
        s.num_generations,
        s.prompts_per_rollout,
        s.prompts_per_step,
        s.per_device_train_batch_size,
    )
    return all(size is not None and size > 0 for size in sizes)


def is_shared(s: Setting) -> bool:
    """Return whether all sizes and the data ranks are known."""
    return is_sized(s) and ranks(s) is not None


def is_whole_steps(s: Setting) -> bool:
    """Return whether P is a multiple of p."""
    return (s.prompts_per_rollout or 0) % (s.prompts_per_step or 1) == 0


def rollout_completions(s: Setting) -> int:
    """Return P G."""
    return (s.prompts_per_rollout or 0) * s.num_generations


def step_completions(s: Setting) -> int:
    """Return p G."""
    return (s.prompts_per_step or 0) * s.num_generations


def per_rank(s: Setting) -> int:
    """Return g = floor(p G / R)."""
    return step_completions(s) // (ranks(s) or 1)


def on_ranks(s: Setting) -> str:
    """Describe the processes, if some of them share their data."""
    words = f"{s.processes} processes"
    return f"{words} / {shared(s)} that share a sequence or a model" if shared(s) > 1 else words


rule(
    "GB301",
    "error",
    COUNTED,
    of=IN_PROMPTS,
    title="sizes in prompts are positive",
    text="""Prompts a rollout and a step, completions per prompt and a micro-batch, and passes count
    something: at least 1.

    EasyR1 and verl fail on 0 with a division by zero, or take no step at all.
    """,
)(
    no_field(
        COUNTED,
        lambda s, _, value: value < 1 and s.prompts_per_rollout is not None,
        COUNTS_SOMETHING,
        "Set {}=1 or more.",
        lambda name: each(name, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
    )
)


@rule(
    "GB302",
    "error",
    ("framework", "num_generations", "advantage_estimator"),
    of=IN_PROMPTS,
    blames=("num_generations", "advantage_estimator"),
    why=(
        "{s.advantage_estimator} compares completions of the same prompt; with one of them "
        "{consequence}"
    ),
    instead="Set {num_generations}=8, a usual size.",
    to=each("num_generations", (8, 4, 5, 16, 2, 6, 3, 12, 10, 32)),
)
def a_group_of_prompts_has_two(s: Setting) -> Finding:
    """GRPO and RLOO compare the completions of a prompt, so they need at least two.

    EasyR1 refuses 1: "GRPO and RLOO algorithm need `config.worker.rollout.n > 1`." verl, where 1 is
    the default, says nothing: a group of one has mean 0 and deviation 1, so the advantage is the
    reward itself, without a baseline.
    """
    return find_lone_completion(s, "there is nothing to compare")


def find_lone_completion(s: Setting, consequence: str) -> Finding:
    """Find a group of one completion if the estimator compares within groups, and describe the
    consequence.
    """
    if s.num_generations == 1 and s.advantage_estimator in GROUPED:
        return {"consequence": consequence}
    return None


@rule(
    "GB312",
    "error",
    ("unsolved",),
    of=IN_PROMPTS,
    blames=("num_generations",),
    why=(
        "{s.framework.name} counts prompts, and these sizes are no whole prompts per step and "
        "whole steps per rollout"
    ),
    instead=(
        "Set batch=auto with batch.prompts_per_step, or sizes that are multiples of the "
        "generations."
    ),
)
def the_sizes_can_be_said_in_prompts(s: Setting) -> bool:
    """A step holds whole groups, a rollout whole steps, and a step divides among the data ranks.

    Sizes in completions (``batch=...`` of a sweep) are written in prompts for EasyR1 and verl,
    which count prompts. Sizes that do not divide evenly would silently become others.
    """
    return "prompts_per_rollout" in s.unsolved


@rule(
    "GS301",
    "error",
    ("framework", "prompts_per_rollout", "prompts_per_generation", "train_prompts"),
    of=IN_PROMPTS,
    blames=("prompts_per_rollout", "train_prompts"),
    why="there are only {s.train_prompts} training prompts, so not one rollout is filled",
    instead="Choose at most {s.train_prompts} prompts per rollout.",
)
def the_prompts_fill_a_rollout(s: Setting) -> bool:
    """The training prompts must fill at least one rollout (with EasyR1, one portion of it).

    EasyR1 fails with a bare AssertionError, verl with a ZeroDivisionError after its first
    validation.
    """
    return is_unfilled(s, s.prompts_per_rollout)


def is_unfilled(s: Setting, needed: int | None) -> bool:
    """Return whether there are fewer training prompts than needed."""
    return s.train_prompts is not None and needed is not None and s.train_prompts < needed


@rule(
    "GD301",
    "warning",
    ("prompts_per_rollout", "train_prompts"),
    of=IN_PROMPTS,
    blames=("prompts_per_rollout", "train_prompts"),
    why=(
        "{lost} of {s.train_prompts} prompts ({share:.0%}) fill no rollout and are left out in "
        "each epoch"
    ),
    instead="Choose a number that divides {s.train_prompts} with a smaller rest.",
)
def most_prompts_are_used(s: Setting) -> Finding:
    """Every epoch leaves out the D mod P prompts that fill no rollout; reported from a tenth of the
    data.
    """
    prompts = s.prompts_per_rollout or 0
    known = s.train_prompts or 0
    if not 1 <= prompts <= known:
        return None
    lost = known % prompts
    return {"lost": lost, "share": lost / known} if lost * 10 >= known else None


# share of a training
NOTICEABLE = 0.05


@rule(
    "GS302",
    "warning",
    (*SIZES, *planning.TOTAL_STEPS_READS, "unsolved", "warmup_steps"),
    of=IN_PROMPTS,
    blames=("warmup_steps",),
    what="{warmup_steps} is set",
    why=(
        "the learning rate changes once per rollout and starts at 0, so {wasted} trained at 0: "
        "{share:.0%} of all"
    ),
    instead="Leave the warmup out, or take one rollout more.",
)
def the_first_rollout_is_learned_from(s: Setting) -> Finding:
    """A warmup starts at a learning rate of 0, and the rate changes once per rollout, so the first
    rollout is wasted.

    With U optimizer steps per rollout all U of them are taken at 0, and the warmup is a staircase.
    Reported if the first rollout is at least a twentieth of all steps, where their number is known.
    """
    if s.warmup_steps <= 0 or not judgeable(s) or s.num_iterations < 1:
        return None
    steps = float(planning.steps_per_rollout(s))
    total = planning.total_steps(s)
    # so short a training tests the program
    if not total or steps / total < NOTICEABLE or total <= 2 * steps:
        return None
    wasted = "the first rollout is"
    if steps > 1:
        wasted = f"all {steps:g} optimizer steps of the first rollout are"
    return {"share": min(steps / total, 1.0), "wasted": wasted}


@rule(
    "GT301",
    "error",
    ("prompts_per_rollout", "processes", "vllm_tensor_parallel_size"),
    "by trial",
    of=IN_PROMPTS,
    blames=("vllm_tensor_parallel_size", "processes"),
    why="the {s.processes} {count} cannot be cut into engines of {s.vllm_tensor_parallel_size}",
    instead="Choose a divisor of {s.processes}.",
    to=lambda s: _divisors(s, "vllm_tensor_parallel_size"),
)
def engines_share_all_processes(s: Setting) -> Finding:
    """The processes are cut into generation engines of equal size, so their number is a multiple of
    an engine's GPUs.

    EasyR1: "rollout world size {W} is not divisible by tp size {tp}."; verl: "rollout world_size:
    {W} is not divisible by infer_world_size: {tp x dp x pp}". The default of both is 2, so one GPU
    needs ``tensor_parallel_size`` 1.
    """
    size = s.vllm_tensor_parallel_size
    count = s.processes or 0
    if s.prompts_per_rollout is None or min(count, size) < 1 or count % size == 0:
        return None
    return {"count": process_noun(s)}


def _divisors(s: Setting, *names: str) -> Iterator[Change]:
    """Return other sizes that divide the processes, nearest first."""
    for name in names:
        yield from each(name, near(getattr(s, name), lambda n: (s.processes or 1) % n == 0))


@rule("GT302", "error", (*SPLIT, "prompts_per_rollout"), "by trial", of=IN_PROMPTS)
def sequences_share_all_processes(s: Setting) -> Violation | None:
    """Processes that share a sequence (Ulysses) or a model (Megatron) form groups of equal size.

    verl with Megatron at start: "n_gpus (8) must be divisible by model_parallel_size (3) times
    context_parallel_size (1)"; otherwise both fail when they create the device mesh.
    """
    count = s.processes or 0
    if s.prompts_per_rollout is None or count < 1 or count % shared(s) == 0:
        return None
    names = [name for name in SHARED if getattr(s, name) > 1]
    return Violation(
        named(s, names),
        f"the {s.processes} processes cannot be cut into groups of {shared(s)}",
        f"Choose sizes whose product divides {s.processes}.",
        (*names, "processes"),
        _divisors(s, *names),
    )


@rule(
    "GL301",
    "error",
    ("framework", "delta"),
    of=IN_PROMPTS,
    blames=("delta",),
    why=(
        "it clips even if policy and old policy agree, so answers with a negative advantage "
        "teach nothing"
    ),
    instead="Set {delta}=3.0, the default.",
    to=({"delta": 3.0},),
)
def the_dual_clip_is_above_one(s: Setting) -> bool:
    """The dual clip bounds the loss of bad answers at so many times the advantage; at 1 and below
    they teach nothing.

    verl at the first update: "The lower bound of the clip_ratio_c for dual-clip PPO should be
    greater than 1.0". EasyR1 accepts it. Neither can switch it off; a large value does the same.
    """
    return s.delta is not None and s.delta <= 1
