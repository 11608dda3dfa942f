"""GS and GD, EasyR1 and verl: schedules counted in rollouts, and the prompts that go into them.

Sources: EasyR1 0.3.3 verl/trainer/ray_trainer.py, verl/trainer/data_loader.py, verl/workers/fsdp_workers.py (one scheduler
step an update_actor); verl 0.9.1 trainer/ppo/v1/trainer_base.py:765, workers/engine_workers.py:308.
"""

from grposweep import plan
from grposweep.rules.batch import SIZES, judgeable
from grposweep.rules.prompts import EASYR1, VERL
from grposweep.rules.registry import Broken, rule
from grposweep.setting import IN_PROMPTS, Setting

ROLLOUT = (*SIZES, "unsolved", "num_generations", "num_iterations")


@rule("GS301", "error", ("framework", "prompts_per_rollout", "prompts_per_generation", "train_prompts"), of=IN_PROMPTS)
def the_prompts_fill_a_rollout(s: Setting) -> Broken | None:
    """The training prompts must fill at least one rollout (with EasyR1, one portion of it).

    EasyR1 fails with a bare AssertionError, verl with a ZeroDivisionError after its first validation.
    """
    needed = s.prompts_per_rollout
    if s.framework == "easyr1" and s.prompts_per_generation is not None:
        needed = s.prompts_per_generation
    if s.train_prompts is None or needed is None or s.train_prompts >= needed:
        return None
    return Broken(
        what=f"{s.key('prompts_per_rollout')}={s.prompts_per_rollout}",
        why=f"there are only {s.train_prompts} training prompts, so not one rollout is filled",
        instead=f"Choose at most {s.train_prompts} prompts a rollout.",
        fields=("prompts_per_rollout", "train_prompts"),
    )


@rule("GD301", "warning", ("prompts_per_rollout", "train_prompts"), of=IN_PROMPTS)
def most_prompts_are_used(s: Setting) -> Broken | None:
    """D mod P prompts of each epoch do not fill a rollout and are left out; said where they are a tenth or more."""
    prompts, known = s.prompts_per_rollout, s.train_prompts
    if prompts is None or known is None or prompts < 1 or known < prompts or known % prompts * 10 < known:
        return None
    return Broken(
        what=f"{s.key('prompts_per_rollout')}={prompts}",
        why=f"{known % prompts} of {known} prompts ({known % prompts / known:.0%}) fill no rollout and are left out in each "
        "epoch",
        instead=f"Choose a number that divides {known} with a smaller rest.",
        fields=("prompts_per_rollout", "train_prompts"),
    )


@rule("GS302", "warning", (*ROLLOUT, "warmup_steps"), of=IN_PROMPTS)
def the_first_rollout_is_learned_from(s: Setting) -> Broken | None:
    """A warmup starts at a learning rate of 0, and the rate moves once a rollout: the first one is wasted.

    With U optimizer steps a rollout all U of them are taken at 0, and the warmup is a staircase.
    """
    if s.warmup_steps <= 0 or not judgeable(s) or s.num_iterations < 1:
        return None
    steps = float(plan.steps_per_rollout(s))
    many = f"all {steps:g} optimizer steps of the first rollout are" if steps > 1 else "the first rollout is"
    return Broken(
        what=f"{s.key('warmup_steps')} is set",
        why=f"the learning rate moves once a rollout and starts at 0, so {many} trained at 0",
        instead="Leave the warmup out, or take one rollout more.",
        fields=("warmup_steps",),
    )


@rule("GS303", "warning", (*plan.TOTAL_STEPS_READS, "unsolved"), of=VERL)
def the_steps_fit_into_the_epochs(s: Setting) -> Broken | None:
    """``total_training_steps`` beyond ``total_epochs``: verl stops with the epochs.

    The learning rate's schedule is then never finished, and the last validation and checkpoint never happen.
    """
    if s.max_steps is None or s.epochs is None or not judgeable(s) or s.num_generations < 1 or s.num_iterations < 1:
        return None
    total = plan.total_steps(s)
    if total is None or total >= s.max_steps:
        return None
    return Broken(
        what=f"{s.key('max_steps')} asks for {s.max_steps} optimizer steps",
        why=f"{s.key('epochs')}={s.epochs:g} holds only {total}, where verl stops: no last validation, no last checkpoint, "
        "and a schedule that is not finished",
        instead=f"Raise {s.key('epochs')}.",
        fields=("max_steps", "epochs"),
    )


@rule("GS304", "warning", ("filters_groups", "max_steps"), of=EASYR1)
def epochs_are_epochs(s: Setting) -> Broken | None:
    """Online filtering takes further prompts in place of those it drops, and begins the data again when they end.

    EasyR1 counts its steps as if each took P prompts, so an epoch of steps is more than one pass over the data.
    """
    if not s.filters_groups or s.max_steps is not None:
        return None
    return Broken(
        what=f"{s.key('filters_groups')}=true",
        why="groups that are dropped are replaced by further prompts, so the epochs that are counted are more than epochs",
        instead=f"Set {s.key('max_steps')}, which counts rollouts.",
        fields=("filters_groups", "max_steps"),
    )
