"""Compute the plan of a setting, exactly as TRL and transformers compute it.

Every function takes a setting and reads only the fields that its formula names. So a rule that uses
it can declare what it reads. Symbols: B per_device_train_batch_size, W processes, A
gradient_accumulation_steps, S steps_per_generation (micro-steps), G num_generations, mu
num_iterations, D train_prompts, E epochs. Sources: trl 1.16 trainer/utils.py RepeatSampler,
grpo_trainer.py get_train_dataloader; transformers 5.23 trainer.py set_initial_training_values.
"""

from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, gcd

from grporecipe.files import Json
from grporecipe.model.setting import Setting


def micro_steps_per_generation(s: Setting) -> int:
    """Return S in micro-steps: as set, or from ``generation_batch_size``, or the accumulation
    (TRL's default).
    """
    if s.steps_per_generation is not None:
        return s.steps_per_generation
    if s.generation_batch_size is not None and s.processes is not None:
        return s.generation_batch_size // max(s.per_device_train_batch_size * s.processes, 1)
    return s.gradient_accumulation_steps


def completions_per_micro_step(s: Setting) -> int | None:
    """Return B W, in completions. Before TRL 0.15 B counts prompts, so B W G. W counts the ranks
    that split a batch.
    """
    if s.processes is None:
        return None
    if s.data_processes is not None:
        return s.per_device_train_batch_size * s.data_processes
    samples = s.per_device_train_batch_size * s.processes
    return samples if s.version >= (0, 15) else samples * s.num_generations


def completions_per_rollout(s: Setting) -> int | None:
    """Return TRL's generation batch in completions: as set, or B W S; None if the processes are
    unknown.

    Before TRL 0.17 each micro-step generates its own completions. Prompts are still drawn, reused
    and dropped per accumulation, as with S = A.
    """
    if s.generation_batch_size is not None:
        return s.generation_batch_size
    micro_step = completions_per_micro_step(s)
    if micro_step is None:
        return None
    return micro_step * micro_steps_per_generation(s)


def completions_per_step(s: Setting) -> int | None:
    """Return B W A: the completions that one optimizer step averages over."""
    micro_step = completions_per_micro_step(s)
    if micro_step is None:
        return None
    return micro_step * s.gradient_accumulation_steps


def stated_completions_per_step(s: Setting) -> int | None:
    """Return the completions of a step as a recipe in prompts states them, which B W A may not
    make; otherwise B W A.

    None if the processes are unknown, as for the other numbers of a plan.
    """
    product = completions_per_step(s)
    if product is None or s.prompts_per_rollout is None or s.prompts_per_step is None:
        return product
    return s.prompts_per_step * s.num_generations


def prompts_per_rollout(s: Setting) -> int | None:
    """Return B W S / G, in prompts; None if groups are not whole."""
    completions = completions_per_rollout(s)
    if completions is None or s.num_generations < 1 or completions % s.num_generations:
        return None
    return completions // s.num_generations


def steps_per_rollout(s: Setting) -> Fraction:
    """Return mu S / A optimizer steps; a fraction where steps straddle rollouts."""
    return Fraction(s.num_iterations * micro_steps_per_generation(s), s.gradient_accumulation_steps)


def rollouts_per_epoch(s: Setting) -> int | None:
    """Return floor(D / P)."""
    prompts = prompts_per_rollout(s)
    if s.train_prompts is None or not prompts:
        return None
    return s.train_prompts // prompts


def dropped_prompts(s: Setting) -> int | None:
    """Return D mod P: the last prompts of each epoch's permutation, which are not generated in that
    epoch.
    """
    prompts = prompts_per_rollout(s)
    if s.train_prompts is None or not prompts:
        return None
    return s.train_prompts % prompts


def steps_per_epoch(s: Setting) -> int | None:
    """Return max(ceil(N mu S / A), 1) optimizer steps. The last step of an epoch may be short."""
    rollouts = rollouts_per_epoch(s)
    if rollouts is None:
        return None
    return max(ceil(rollouts * steps_per_rollout(s)), 1)


def budget_steps(s: Setting) -> int | None:
    """Return the optimizer steps that a budget in generated completions buys. Rollouts are not
    cut.
    """
    completions = completions_per_rollout(s)
    if s.budget_completions is None or not completions:
        return None
    return int(s.budget_completions // completions * steps_per_rollout(s))


def total_steps(s: Setting) -> int | None:
    """Return max_steps, the budget's steps, or ceil(E U); 0 if an epoch holds no whole rollout, as
    in TRL.
    """
    if s.max_steps is None and s.budget_completions is not None:
        return budget_steps(s)
    if rollouts_per_epoch(s) == 0:
        return 0
    if s.max_steps is not None and not s.ends_with_epochs:
        return s.max_steps
    steps = steps_per_epoch(s)
    if s.epochs is None or steps is None:
        return s.max_steps
    whole = ceil(s.epochs * steps)
    return whole if s.max_steps is None else min(whole, s.max_steps)


def total_completions(s: Setting) -> int | None:
    """Return the completions of all rollouts that the run's steps begin. An epoch's last step takes
    what is left of it.
    """
    total = total_steps(s)
    rollout = completions_per_rollout(s)
    if total is None or rollout is None:
        return None
    steps = steps_per_epoch(s)
    rollouts = rollouts_per_epoch(s)
    # the data are unknown: count as one long epoch
    if not steps or not rollouts:
        return ceil(total / steps_per_rollout(s)) * rollout
    epochs, rest = divmod(total, steps)
    return (epochs * rollouts + ceil(rest / steps_per_rollout(s))) * rollout


def boundary_steps(s: Setting) -> int:
    """Return the fewest optimizer steps that end on a rollout boundary, where TRL resumes exactly.

    TRL resumes exactly iff save_steps A % (S mu) == 0.
    """
    micro = micro_steps_per_generation(s) * s.num_iterations
    return micro // gcd(micro, s.gradient_accumulation_steps)


def spread(total: int, count: int) -> tuple[int, ...]:
    """Spread ``count`` steps evenly over ``total`` optimizer steps, the last at the end."""
    marks = {max(round(total * i / count), 1) for i in range(1, count)}
    marks = {mark for mark in marks if mark < total}
    if count > 0 and total > 0:
        marks.add(total)
    return tuple(sorted(marks))


def stated_interval(steps: float | None, total: int | None) -> int | None:
    """Return an interval in optimizer steps as it is set; below 1 it is a share of all steps."""
    if steps is None:
        return None
    if steps >= 1:
        return int(steps)
    if total:
        return ceil(total * steps)
    return None


def evaluate_every(s: Setting) -> int | None:
    """Return optimizer steps between a recipe's evaluations; None if it has none, or unknown."""
    if not s.evaluates:
        return None
    if s.eval_strategy == "epoch":
        return steps_per_epoch(s)
    return stated_interval(s.eval_steps, total_steps(s))


def save_every(s: Setting) -> int | None:
    """Return optimizer steps between checkpoints: as set (below 1: a share of all steps), or about
    total / checkpoints, on a rollout boundary; None for no checkpoints.
    """
    total = total_steps(s)
    if s.save_steps is not None or not total or s.checkpoints < 1:
        return stated_interval(s.save_steps, total)
    boundary = boundary_steps(s)
    return max(total // s.checkpoints // boundary, 1) * boundary


def generations_of_evaluation(s: Setting) -> int:
    """Return the completions of a held-out prompt."""
    return s.num_generations_eval or s.num_generations


def evaluation_batches(s: Setting) -> int | None:
    """Return ceil(D_eval G_eval / (B_eval W)) forward batches per evaluation."""
    if s.processes is None or s.eval_prompts is None or not s.evaluates:
        return None
    completions = s.eval_prompts * generations_of_evaluation(s)
    return ceil(completions / (s.per_device_eval_batch_size * s.processes))


def evaluated_completions(s: Setting) -> int | None:
    """Return E D_eval G_eval: the completions of all E evaluations, including the one before the
    first step.
    """
    if s.eval_prompts is None or not s.evaluates:
        return None
    return (s.evaluations + s.eval_at_start) * s.eval_prompts * generations_of_evaluation(s)


def evaluation_share(s: Setting) -> float | None:
    """Return the share of evaluations in all generated completions, from 0 to 1."""
    trained = total_completions(s)
    evaluated = evaluated_completions(s)
    if trained and evaluated:
        return evaluated / (trained + evaluated)
    return None


@dataclass(frozen=True)
class Plan:
    """The numbers of a setting's plan; None if something is unknown."""

    processes: int | None
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_generations: int
    completions_per_rollout: int | None
    prompts_per_rollout: int | None
    completions_per_step: int | None
    prompts_per_step: float | None
    steps_per_rollout: float
    rollouts_per_epoch: int | None
    dropped_prompts: int | None
    total_steps: int | None
    total_completions: int | None
    evaluation_steps: tuple[int, ...]
    evaluation_batches: int | None
    evaluation_share: float | None
    save_steps: int | None

    def as_dict(self) -> Json:
        """Return the plan in JSON types."""
        return asdict(self)


def build_plan(s: Setting) -> Plan:
    """Compute all numbers of a valid setting whose ``auto`` sizes are solved."""
    step = stated_completions_per_step(s)
    prompts = None if step is None else step / s.num_generations
    total = total_steps(s)
    return Plan(
        processes=s.processes,
        per_device_train_batch_size=s.per_device_train_batch_size,
        gradient_accumulation_steps=s.gradient_accumulation_steps,
        steps_per_generation=micro_steps_per_generation(s),
        num_generations=s.num_generations,
        completions_per_rollout=completions_per_rollout(s),
        prompts_per_rollout=prompts_per_rollout(s),
        completions_per_step=step,
        prompts_per_step=prompts,
        steps_per_rollout=float(steps_per_rollout(s)),
        rollouts_per_epoch=rollouts_per_epoch(s),
        dropped_prompts=dropped_prompts(s),
        total_steps=total,
        total_completions=total_completions(s),
        evaluation_steps=spread(total or 0, s.evaluations),
        evaluation_batches=evaluation_batches(s),
        evaluation_share=evaluation_share(s),
        save_steps=save_every(s),
    )


def realise(s: Setting) -> Setting:
    """Solve the ``auto`` sizes of a setting for its processes; ``unsolved`` names sizes that no
    value fits.

    prompts_per_step G = B W A is kept exactly; the largest B within the bound wins. The evaluation
    size is the largest within the bound whose global batch holds whole groups.
    """
    if s.processes is None or not s.auto:
        return s
    s = s.replace({"unsolved": frozenset()})
    if s.auto & TRAIN_SIZES:
        s = _realise_train(s)
    if "per_device_eval_batch_size" in s.auto:
        s = _realise_eval(s)
    return s


# The fields behind completions_per_rollout() and total_steps(), for the ``reads`` of rules.
ROLLOUT_READS = (
    "version",
    "processes",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "data_processes",
)
TOTAL_STEPS_READS = (
    *ROLLOUT_READS,
    "num_generations",
    "num_iterations",
    "ends_with_epochs",
    "train_prompts",
    "max_steps",
    "epochs",
    "budget_completions",
)
TRAIN_SIZES = frozenset({"per_device_train_batch_size", "gradient_accumulation_steps"})


def _realise_train(s: Setting) -> Setting:
    """Return B and A for prompts_per_step G completions per step, largest B first."""
    unsolved = s.replace({"unsolved": s.auto & TRAIN_SIZES})
    if not s.prompts_per_step or not s.processes or s.processes < 1:
        return unsolved
    per_rank, rest = divmod(s.prompts_per_step * s.num_generations, s.processes)
    if rest or per_rank < 1:
        return unsolved
    sizes = list(range(min(per_rank, s.max_per_device_train_batch_size or per_rank), 0, -1))
    if "per_device_train_batch_size" not in s.auto:
        sizes = [s.per_device_train_batch_size]
    if "gradient_accumulation_steps" not in s.auto:
        sizes = [size for size in sizes if size * s.gradient_accumulation_steps == per_rank]
    for size in sizes:
        if size > 0 and per_rank % size == 0:
            return s.replace(
                {
                    "per_device_train_batch_size": size,
                    "gradient_accumulation_steps": per_rank // size,
                }
            )
    return unsolved


def _realise_eval(s: Setting) -> Setting:
    """Return B_eval: the largest within the bound with whole groups, and no larger than the
    held-out set needs.
    """
    group = generations_of_evaluation(s)
    if group < 1 or not s.processes or s.processes < 1:
        return s.replace({"unsolved": s.unsolved | {"per_device_eval_batch_size"}})
    unit = group // gcd(group, s.processes)
    bound = s.max_per_device_train_batch_size or s.per_device_train_batch_size
    if s.eval_prompts:
        bound = min(bound, ceil(s.eval_prompts * group / s.processes))
    return s.replace({"per_device_eval_batch_size": max(bound // unit, 1) * unit})


def shared(s: Setting) -> int:
    """Return the number of processes that work on one data rank's completions together."""
    product = 1
    for size in (
        s.tensor_parallel_size,
        s.sequence_parallel_size,
        s.context_parallel_size,
        s.pipeline_parallel_size,
    ):
        product *= max(size, 1)
    return product


RESIZED = frozenset(
    {
        "gradient_accumulation_steps",
        "steps_per_generation",
        "generation_batch_size",
        "data_processes",
    }
)


def resize(s: Setting) -> Setting:
    """Return A, S, completions of a rollout and data ranks, for a framework that counts prompts
    instead of micro-steps.

    A data rank takes floor(prompts_per_step G / ranks) completions per step, in micro-batches of B;
    the last step of a rollout that is not a multiple of a step is padded to one (verl) or refused
    (EasyR1). Unknown ranks count as one. Sources: EasyR1 verl/workers/fsdp_workers.py
    _init_dist_mesh, verl workers/engine_workers.py update_actor.
    """
    if s.prompts_per_rollout is None or s.prompts_per_step is None:
        return s
    ranks = None if s.processes is None else s.processes // shared(s)
    completions = s.prompts_per_rollout * s.num_generations
    size = max(s.per_device_train_batch_size, 1)
    per_step = s.prompts_per_step * s.num_generations // max(ranks or 1, 1)
    accumulation = max(per_step // size, 1)
    if s.prompts_per_step > 0 and s.prompts_per_rollout % s.prompts_per_step:
        micro_steps = accumulation * ceil(s.prompts_per_rollout / s.prompts_per_step)
    else:
        micro_steps = completions // max(ranks or 1, 1) // size
    sizes = {"generation_batch_size": completions, "gradient_accumulation_steps": accumulation}
    return s.replace({"data_processes": ranks, "steps_per_generation": micro_steps, **sizes})
