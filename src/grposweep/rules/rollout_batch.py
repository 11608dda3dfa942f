"""GB, EasyR1 and verl: both size a rollout and an optimizer step in prompts, and split them over data ranks.

Symbols: P prompts a rollout, p prompts an optimizer step, G completions a prompt, W processes, R data ranks (W without
those that share a sequence or a model), m completions a micro-batch, g = p G / R completions a step and rank.
Sources: EasyR1 0.3.3 verl/trainer/ray_trainer.py and verl/workers/fsdp_workers.py (_init_dist_mesh), verl 0.9.1
utils/config.py (validate_config), workers/config/actor.py, workers/engine_workers.py, trainer/ppo/v1/trainer_base.py.

GS and GD, EasyR1 and verl: schedules counted in rollouts, and the prompts that go into them.

Sources: EasyR1 0.3.3 verl/trainer/ray_trainer.py, verl/trainer/data_loader.py, verl/workers/fsdp_workers.py (one scheduler
step an update_actor); verl 0.9.1 trainer/ppo/v1/trainer_base.py:765, workers/engine_workers.py:308.

GT and GL, EasyR1 and verl: processes shared out to generation engines, sequences and models; clips that act.

Sources: EasyR1 0.3.3 verl/workers/fsdp_workers.py (_build_rollout), verl/workers/rollout/vllm_rollout_spmd.py,
verl/trainer/core_algos.py (compute_policy_loss); verl 0.9.1 workers/engine_workers.py:659, utils/config.py,
trainer/ppo/core_algos.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from grposweep import plan
from grposweep.rules import process_counts as counts
from grposweep.rules.batch import SIZES, judgeable
from grposweep.rules.registry import Judge, Violation, rule
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
class CandidateCounts:
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


def offer(s: Setting, *names: str, accepts: Callable[[Setting], bool]) -> CandidateCounts:
    """Other sizes, one after the other."""
    return CandidateCounts(s, names, accepts)


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
def sizes_in_prompts_are_positive(s: Setting) -> Violation | None:
    """Prompts a rollout and a step, completions a prompt and a micro-batch, and passes count something: at least 1.

    EasyR1 and verl fail on 0 with a division by zero, or take no step at all.
    """
    if s.prompts_per_rollout is None:
        return None
    for name in COUNTED:
        value = getattr(s, name)
        if value is not None and value < 1:
            return Violation(
                what=f"{s.key(name)}={value}",
                why="it counts something that a step cannot do without, so it must be at least 1",
                instead=f"Set {s.key(name)}=1 or more.",
                fields=(name,),
                suggestions=tuple({name: n} for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
            )
    return None


@rule("GB302", "error", ("framework", "num_generations", "advantage_estimator"), of=IN_PROMPTS)
def a_group_of_prompts_has_two(s: Setting) -> Violation | None:
    """GRPO and RLOO compare the completions of a prompt, so they need at least two.

    EasyR1 refuses 1: "GRPO and RLOO algorithm need `config.worker.rollout.n > 1`." verl, where 1 is the default, says
    nothing: a group of one has mean 0 and deviation 1, so the advantage is the reward itself, without a baseline.
    """
    if s.num_generations >= 2 or s.num_generations < 1 or s.advantage_estimator not in GROUPED:
        return None
    late = "takes the reward itself for the advantage, without a word" if s.framework.name == "verl" else "refuses it"
    return Violation(
        what=f"{s.key('num_generations')}={s.num_generations}",
        why=f"{s.advantage_estimator} compares completions of the same prompt; with one of them {s.trainer} {late}",
        instead=f"Set {s.key('num_generations')}=8, a usual size.",
        fields=("num_generations", "advantage_estimator"),
        suggestions=tuple({"num_generations": n} for n in (8, 4, 5, 16, 2, 6, 3, 12, 10, 32)),
    )


@rule("GB312", "error", ("unsolved",), of=IN_PROMPTS)
def the_sizes_can_be_said_in_prompts(s: Setting) -> Violation | None:
    """A step holds whole groups, a rollout whole steps, and a step divides among the data ranks.

    Ours: sizes in completions (``batch=...`` of a sweep) are written in prompts for EasyR1 and verl, which count these. Sizes
    that do not come out even would be others without a word.
    """
    if "prompts_per_rollout" not in s.unsolved:
        return None
    return Violation(
        what=f"{s.key('num_generations')}={s.num_generations}",
        why=f"{s.framework.name} counts prompts, and these sizes are no whole prompts a step and whole steps a rollout",
        instead="Set batch=auto with batch.prompts_per_step, or sizes that are multiples of the generations.",
        fields=("num_generations",),
    )


ROLLOUT_ROLLOUTS = (*SIZES, "unsolved", "num_generations", "num_iterations")


@rule("GS301", "error", ("framework", "prompts_per_rollout", "prompts_per_generation", "train_prompts"), of=IN_PROMPTS)
def the_prompts_fill_a_rollout(s: Setting) -> Violation | None:
    """The training prompts must fill at least one rollout (with EasyR1, one portion of it).

    EasyR1 fails with a bare AssertionError, verl with a ZeroDivisionError after its first validation.
    """
    needed = s.prompts_per_rollout
    if s.framework.name == "easyr1" and s.prompts_per_generation is not None:
        needed = s.prompts_per_generation
    if s.train_prompts is None or needed is None or s.train_prompts >= needed:
        return None
    return Violation(
        what=f"{s.key('prompts_per_rollout')}={s.prompts_per_rollout}",
        why=f"there are only {s.train_prompts} training prompts, so not one rollout is filled",
        instead=f"Choose at most {s.train_prompts} prompts a rollout.",
        fields=("prompts_per_rollout", "train_prompts"),
    )


@rule("GD301", "warning", ("prompts_per_rollout", "train_prompts"), of=IN_PROMPTS)
def most_prompts_are_used(s: Setting) -> Violation | None:
    """D mod P prompts of each epoch do not fill a rollout and are left out; said where they are a tenth or more."""
    prompts, known = s.prompts_per_rollout, s.train_prompts
    if prompts is None or known is None or prompts < 1 or known < prompts or known % prompts * 10 < known:
        return None
    return Violation(
        what=f"{s.key('prompts_per_rollout')}={prompts}",
        why=f"{known % prompts} of {known} prompts ({known % prompts / known:.0%}) fill no rollout and are left out in each "
        "epoch",
        instead=f"Choose a number that divides {known} with a smaller rest.",
        fields=("prompts_per_rollout", "train_prompts"),
    )


@rule("GS302", "warning", (*ROLLOUT_ROLLOUTS, "warmup_steps"), of=IN_PROMPTS)
def the_first_rollout_is_learned_from(s: Setting) -> Violation | None:
    """A warmup starts at a learning rate of 0, and the rate moves once a rollout: the first one is wasted.

    With U optimizer steps a rollout all U of them are taken at 0, and the warmup is a staircase.
    """
    if s.warmup_steps <= 0 or not judgeable(s) or s.num_iterations < 1:
        return None
    steps = float(plan.steps_per_rollout(s))
    many = f"all {steps:g} optimizer steps of the first rollout are" if steps > 1 else "the first rollout is"
    return Violation(
        what=f"{s.key('warmup_steps')} is set",
        why=f"the learning rate moves once a rollout and starts at 0, so {many} trained at 0",
        instead="Leave the warmup out, or take one rollout more.",
        fields=("warmup_steps",),
    )


@rule("GS303", "warning", (*plan.TOTAL_STEPS_READS, "unsolved"), of=VERL)
def the_steps_fit_into_the_epochs(s: Setting) -> Violation | None:
    """``total_training_steps`` beyond ``total_epochs``: verl stops with the epochs.

    The learning rate's schedule is then never finished, and the last validation and checkpoint never happen.
    """
    if s.max_steps is None or s.epochs is None or not judgeable(s) or s.num_generations < 1 or s.num_iterations < 1:
        return None
    total = plan.total_steps(s)
    if total is None or total >= s.max_steps:
        return None
    return Violation(
        what=f"{s.key('max_steps')} asks for {s.max_steps} optimizer steps",
        why=f"{s.key('epochs')}={s.epochs:g} holds only {total}, where verl stops: no last validation, no last checkpoint, "
        "and a schedule that is not finished",
        instead=f"Raise {s.key('epochs')}.",
        fields=("max_steps", "epochs"),
    )


@rule("GS304", "warning", ("filters_groups", "max_steps"), of=EASYR1)
def epochs_are_epochs(s: Setting) -> Violation | None:
    """Online filtering takes further prompts in place of those it drops, and begins the data again when they end.

    EasyR1 counts its steps as if each took P prompts, so an epoch of steps is more than one pass over the data.
    """
    if not s.filters_groups or s.max_steps is not None:
        return None
    return Violation(
        what=f"{s.key('filters_groups')}=true",
        why="groups that are dropped are replaced by further prompts, so the epochs that are counted are more than epochs",
        instead=f"Set {s.key('max_steps')}, which counts rollouts.",
        fields=("filters_groups", "max_steps"),
    )


def _engine_counts(s: Setting) -> int:
    return counts.ALL if s.prompts_per_rollout is None else counts.multiples(max(s.vllm_tensor_parallel_size, 1))


ENGINE = ("prompts_per_rollout", "processes", "vllm_tensor_parallel_size")


@rule("GT301", "error", ENGINE, _engine_counts, of=IN_PROMPTS)
def engines_share_all_processes(s: Setting) -> Violation | None:
    """The processes are cut into generation engines of equal size, so their number is a multiple of an engine's GPUs.

    EasyR1: "rollout world size {W} is not divisible by tp size {tp}."; verl: "rollout world_size: {W} is not divisible by
    infer_world_size: {tp x dp x pp}". The default of both is 2, so one GPU needs ``tensor_parallel_size`` 1.
    """
    size, name = s.vllm_tensor_parallel_size, "vllm_tensor_parallel_size"
    if s.prompts_per_rollout is None or s.processes is None or s.processes < 1 or size < 1 or s.processes % size == 0:
        return None
    return Violation(
        what=f"{s.key(name)}={size}",
        why=f"the {s.processes} process{'' if s.processes == 1 else 'es'} cannot be cut into engines of {size}",
        instead=f"Choose a divisor of {s.processes}.",
        fields=(name, "processes"),
        suggestions=tuple({name: n} for n in near(size, lambda n: (s.processes or 1) % n == 0)),
    )


def _shared_counts(s: Setting) -> int:
    return counts.ALL if s.prompts_per_rollout is None else counts.multiples(shared(s))


@rule("GT302", "error", (*SPLIT, "prompts_per_rollout"), _shared_counts, of=IN_PROMPTS)
def sequences_share_all_processes(s: Setting) -> Violation | None:
    """Processes that share a sequence (Ulysses) or a model (Megatron) form groups of equal size.

    verl with Megatron at start: "n_gpus (8) must be divisible by model_parallel_size (3) times context_parallel_size (1)";
    otherwise both fail when the device mesh is made.
    """
    if s.prompts_per_rollout is None or s.processes is None or s.processes < 1 or s.processes % shared(s) == 0:
        return None
    names = [name for name in SPLIT[1:] if getattr(s, name) > 1]
    return Violation(
        what=" and ".join(f"{s.key(name)}={getattr(s, name)}" for name in names),
        why=f"the {s.processes} processes cannot be cut into groups of {shared(s)}",
        instead=f"Choose sizes whose product divides {s.processes}.",
        fields=(*names, "processes"),
        suggestions=tuple(
            {name: n} for name in names for n in near(getattr(s, name), lambda n: (s.processes or 1) % n == 0)
        ),
    )


LENGTHS = ("max_batched_tokens", "max_prompt_length", "max_completion_length")


@rule("GT303", "error", LENGTHS, of=EASYR1)
def a_sequence_fits_the_engine(s: Setting) -> Violation | None:
    """The engine must be able to take a whole prompt and response at once.

    EasyR1 when generation is set up: "max_num_batched_tokens should be greater than prompt_length + response_length."
    """
    longest = (s.max_prompt_length or 0) + s.max_completion_length
    if s.max_batched_tokens is None or s.max_batched_tokens >= longest:
        return None
    return Violation(
        what=f"{s.key('max_batched_tokens')}={s.max_batched_tokens}",
        why=f"a prompt and its response have up to {longest} tokens ({s.max_prompt_length} + {s.max_completion_length})",
        instead=f"Set {s.key('max_batched_tokens')}={longest} or more.",
        fields=LENGTHS,
        suggestions=({"max_batched_tokens": longest},),
    )


@rule("GL301", "error", ("framework", "delta"), of=IN_PROMPTS)
def the_dual_clip_is_above_one(s: Setting) -> Violation | None:
    """The dual clip bounds the loss of bad answers at so many times the advantage; at 1 and below they teach nothing.

    verl at the first update: "The lower bound of the clip_ratio_c for dual-clip PPO should be greater than 1.0". EasyR1
    accepts it. Neither can switch it off; a large value does the same.
    """
    if s.delta is None or s.delta > 1:
        return None
    return Violation(
        what=f"{s.key('delta')}={s.delta:g}",
        why="it clips even where policy and old policy agree, so answers with a negative advantage teach nothing",
        instead=f"Set {s.key('delta')}=3.0, the default.",
        fields=("delta",),
        suggestions=({"delta": 3.0},),
    )


@rule("GL302", "warning", ("loss_average",), of=EASYR1)
def the_mean_over_sequences_is_one(s: Setting) -> Violation | None:
    """``loss_avg_mode=seq`` is weighed by tokens again: EasyR1 multiplies each micro-batch by its share of the tokens.

    So it is no mean over sequences as in the GRPO paper, and long micro-batches count more.
    """
    if s.loss_average != "seq":
        return None
    return Violation(
        what=f"{s.key('loss_average')}=seq",
        why="EasyR1 weighs each micro-batch by its number of tokens, so this is not the mean over sequences",
        instead=f"Set {s.key('loss_average')}=token, whose weights are exact.",
        fields=("loss_average",),
    )


@rule("GL303", "warning", ("advantage_estimator",), of=VERL)
def grpo_is_asked_for(s: Setting) -> Violation | None:
    """The default ``adv_estimator`` of verl is ``gae``, which trains a critic: GRPO must be asked for."""
    if s.advantage_estimator != "gae":
        return None
    return Violation(
        what=f"{s.key('advantage_estimator')}=gae",
        why="this is PPO with a critic; verl takes it where nothing else is set",
        instead=f"Set {s.key('advantage_estimator')}=grpo.",
        fields=("advantage_estimator",),
    )
