"""GS and GD: the run has a length, a step is taken, and no data is lost unnoticed.

Sources: transformers 5.23 trainer.py, trl 1.16 trainer/utils.py RepeatSampler.
"""

from grposweep import plan
from grposweep.rules.batch import SIZES, judgeable
from grposweep.rules.registry import Broken, rule
from grposweep.setting import Setting

LENGTHS = ("budget_completions", "max_steps", "epochs")
ROLLOUT = (*SIZES, "unsolved", "num_generations")


@rule("GS101", "error", LENGTHS)
def one_length(s: Setting) -> Broken | None:
    """A schedule has exactly one of a budget in completions, optimizer steps, or epochs.

    Ours: TRL lets max_steps override epochs silently; which of two was meant cannot be known.
    """
    given = [name for name in LENGTHS if getattr(s, name) is not None]
    if len(given) == 1:
        return None
    if not given:
        return Broken(
            what="schedule",
            why="neither a budget in completions, nor steps, nor epochs are set, so the run has no length",
            instead="Choose schedule=completions, schedule=steps or schedule=epochs.",
            fields=LENGTHS,
            suggestions=({"budget_completions": 6400},),
        )
    others = [{other: None for other in given if other != name} for name in reversed(given)]
    return Broken(
        what=" and ".join(f"{s.key(name)}={getattr(s, name)}" for name in given),
        why=f"a run has one length, and these are {len(given)}",
        instead="Choose the matching option (schedule=completions, steps or epochs).",
        fields=tuple(given),
        suggestions=tuple(others),
    )


@rule("GS102", "error", LENGTHS)
def the_length_is_positive(s: Setting) -> Broken | None:
    """Budget, steps and epochs are above 0. TRL takes max_steps=0 as one optimizer step at learning rate 0."""
    for name in LENGTHS:
        value = getattr(s, name)
        if value is not None and value <= 0:
            return Broken(
                what=f"{s.key(name)}={value}",
                why="a run without a step trains nothing",
                instead=f"Set {s.key(name)} above 0.",
                fields=(name,),
                suggestions=({name: 1},),
            )
    return None


@rule("GS103", "error", (*ROLLOUT, "budget_completions", "max_steps", "num_iterations"))
def the_budget_holds_a_step(s: Setting) -> Broken | None:
    """The budget must pay for at least one rollout and one optimizer step; rollouts are not cut short.

    Ours: steps = floor(budget / (B W S)) mu S / A.
    """
    if not judgeable(s) or s.num_iterations < 1 or s.max_steps is not None or not s.budget_completions:
        return None
    steps, rollout = plan.budget_steps(s), plan.completions_per_rollout(s)
    if s.budget_completions < 0 or steps is None or rollout is None or steps >= 1:
        return None
    needed = rollout * -(-1 // plan.steps_per_rollout(s))
    return Broken(
        what=f"{s.key('budget_completions')}={s.budget_completions}",
        why=f"the first optimizer step needs {needed} completions ({rollout} a rollout)",
        instead=f"Set {s.key('budget_completions')}={needed} or more.",
        fields=("budget_completions",),
        suggestions=({"budget_completions": int(needed)},),
    )


@rule("GS104", "error", (*ROLLOUT, "train_prompts"))
def the_data_fill_a_rollout(s: Setting) -> Broken | None:
    """The training prompts must fill one rollout, or no step is taken.

    TRL 1.16 with max_steps: no error and 0 optimizer steps; with epochs: "args.max_steps must be set to a positive
    value if dataloader does not have a length".
    """
    if not judgeable(s) or s.train_prompts is None or plan.rollouts_per_epoch(s) != 0:
        return None
    return Broken(
        what=f"{s.train_prompts} training prompts",
        why=f"one rollout takes {plan.prompts_per_rollout(s)}, so TRL would finish without a single step",
        instead="Use more prompts, or a smaller batch.",
        fields=SIZES,
    )


@rule("GS105", "error", ("learning_rate", "warmup_steps"))
def the_learning_rate_is_positive(s: Setting) -> Broken | None:
    """A learning rate of 0 trains nothing; a negative learning rate or warmup is refused late by torch or transformers."""
    if s.learning_rate <= 0:
        return Broken(
            what=f"{s.key('learning_rate')}={s.learning_rate:g}",
            why="the optimizer needs a learning rate above 0",
            instead=f"Set {s.key('learning_rate')}=1e-6, TRL's default, or more.",
            fields=("learning_rate",),
            suggestions=({"learning_rate": 1e-6},),
        )
    if s.warmup_steps < 0:
        return Broken(
            what=f"{s.key('warmup_steps')}={s.warmup_steps:g}",
            why="warmup cannot be negative",
            instead=f"Set {s.key('warmup_steps')}=0.",
            fields=("warmup_steps",),
            suggestions=({"warmup_steps": 0.0},),
        )
    return None


@rule("GS201", "warning", (*SIZES, "unsolved", "num_iterations"))
def steps_end_on_rollouts(s: Setting) -> Broken | None:
    """Mu S and A divide neither way: optimizer steps straddle rollouts, and the last step of an epoch is short."""
    if not judgeable(s) or s.num_iterations < 1:
        return None
    micro, accumulation = plan.micro_steps_per_generation(s) * s.num_iterations, s.gradient_accumulation_steps
    if micro % accumulation == 0 or accumulation % micro == 0:
        return None
    return Broken(
        what=f"{s.key('gradient_accumulation_steps')}={accumulation}",
        why=f"a rollout has {micro} micro-steps, so optimizer steps straddle rollouts",
        instead="Choose an accumulation that divides them.",
        fields=("gradient_accumulation_steps", "steps_per_generation"),
    )


@rule("GS202", "warning", (*ROLLOUT, *LENGTHS, "num_iterations", "train_prompts", "warmup_steps"))
def warmup_ends(s: Setting) -> Broken | None:
    """A warmup of as many steps as the run: the learning rate never reaches its value."""
    if not judgeable(s) or s.num_iterations < 1 or s.warmup_steps < 1:
        return None
    total = plan.total_steps(s)
    if not total or s.warmup_steps < total:
        return None
    return Broken(
        what=f"{s.key('warmup_steps')}={s.warmup_steps:g}",
        why=f"the run has {total} optimizer steps, so the learning rate never reaches its value",
        instead=f"Set {s.key('warmup_steps')}=0.05 (a share), or fewer steps than {total}.",
        fields=("warmup_steps",),
    )


@rule("GD201", "warning", (*ROLLOUT, "train_prompts"))
def few_prompts_are_dropped(s: Setting) -> Broken | None:
    """D mod P prompts are dropped every epoch (others each time, when shuffled); reported from a tenth of the data."""
    if not judgeable(s) or not s.train_prompts or not plan.rollouts_per_epoch(s):
        return None
    dropped = plan.dropped_prompts(s) or 0
    if dropped * 10 < s.train_prompts:
        return None
    return Broken(
        what=f"{s.train_prompts} training prompts",
        why=f"{dropped} of them are dropped every epoch: a rollout takes {plan.prompts_per_rollout(s)}",
        instead="Choose a rollout size that divides them, or a smaller one.",
        fields=SIZES,
    )
