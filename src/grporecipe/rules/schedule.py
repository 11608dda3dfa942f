"""GS, GD and GC: a run has a length and takes steps, no data is lost silently, checkpoints can be
resumed.

Sources: transformers 5.23 trainer.py and training_args.py, trl 1.16 trainer/utils.py RepeatSampler
and trainer/grpo_config.py.
"""

from itertools import combinations

from grporecipe.model import planning
from grporecipe.model.setting import EVERY, TRL_LIKE, Setting
from grporecipe.rules.batch import LARGE_MODEL, SIZES, USES, judgeable
from grporecipe.rules.helpers import each, named
from grporecipe.rules.registry import Finding, Violation, rule

LENGTHS = ("budget_completions", "max_steps", "epochs")
ROLLOUT = (*SIZES, "unsolved", "num_generations")
# schedulers that read an evaluated metric
WATCHING = ("reduce_lr_on_plateau", "greedy")
# at least a twentieth of the data: less is lost in every shuffle
LEAST_DROPPED = 20
# optimizer steps: the shortest published runs on GSM8K and MATH have 116
FEW_STEPS = 100
HUB_CHECKED = (0, 28)
BEST = ("load_best_model_at_end", "save_strategy", "eval_strategy", "save_steps", "eval_steps")


@rule("GS101", "error", (*LENGTHS, "given"), of=EVERY)
def one_length(s: Setting) -> Violation | None:
    """A schedule has exactly one of a budget in completions, optimizer steps, or epochs.

    In TRL max_steps silently overrides epochs, so grposweep cannot know which of the two was meant.
    For recipes, in which epochs have a default, see GS203.
    """
    if s.given:
        return None
    given = [name for name in LENGTHS if getattr(s, name) is not None]
    if len(given) == 1:
        return None
    if not given:
        return Violation(
            "schedule",
            "neither a budget in completions, nor steps, nor epochs are set, so the run has no "
            "length",
            "Choose schedule=completions, schedule=steps or schedule=epochs.",
            LENGTHS,
            ({"budget_completions": 6400},),
        )
    # each leaves one of them
    others = map(dict.fromkeys, combinations(given, len(given) - 1))
    return Violation(
        named(s, given),
        f"a run has one length, and these are {len(given)}",
        "Choose the matching option (schedule=completions, steps or epochs).",
        tuple(given),
        tuple(others),
    )


# a step of AdamW is about the rate, and weights have a deviation of about 0.02
LARGEST_RATE = 0.01
IMPOSSIBLE_RATE = 1.0
RATE_WHY = (
    "each step of AdamW would move a weight by about as much, and weights are about 0.02 large"
)


@rule(
    "GS107",
    "error",
    ("learning_rate", "optim"),
    of=EVERY,
    blames=("learning_rate",),
    why=RATE_WHY,
    instead=f"Write 1e-5 and not 1e5, or choose a rate below {LARGEST_RATE}.",
)
def the_learning_rate_keeps_the_model(s: Setting) -> bool:
    """A learning rate above 1, which destroys the model in its first step; often 1e5 for 1e-5.

    An update of Adam is at most about the rate (Kingma and Ba, 2015, section 2.1). Published GRPO
    runs take 1e-7 to 1e-3, adapters included. Judged for AdamW, which every framework takes unless
    another optimizer is set.
    """
    return _is_adam(s) and s.learning_rate > IMPOSSIBLE_RATE


@rule(
    "GS206",
    "warning",
    ("learning_rate", "optim"),
    of=EVERY,
    blames=("learning_rate",),
    why=RATE_WHY,
    instead=f"Choose a rate below {LARGEST_RATE}.",
)
def the_learning_rate_is_one_of_a_language_model(s: Setting) -> bool:
    """A learning rate above 0.01, at which no published GRPO run trains. Models of a few thousand
    weights may need it.
    """
    return _is_adam(s) and LARGEST_RATE < s.learning_rate <= IMPOSSIBLE_RATE


def _is_adam(s: Setting) -> bool:
    return s.optim is None or "adamw" in s.optim


@rule("GS102", "error", (*LENGTHS, "given", "framework"), of=EVERY)
def the_length_is_positive(s: Setting) -> Violation | None:
    """Budget, steps and epochs are above 0. TRL takes max_steps=0 as one optimizer step at learning
    rate 0.

    In verl and EasyR1 a run without steps is an evaluation: ``trainer.total_training_steps=0`` with
    ``val_before_train``.
    """
    for name in LENGTHS:
        value = getattr(s, name)
        is_evaluation = name == "max_steps" and value == 0 and s.framework.syntax == "dotted"
        if value is not None and value <= 0 and not is_evaluation:
            values = (None, 1) if s.given and name == "max_steps" else (1,)
            return Violation(
                named(s, (name,)),
                "a run without a step trains nothing",
                f"Set {s.key(name)} above 0.",
                (name,),
                each(name, values),
            )
    return None


@rule(
    "GS103",
    "error",
    (*ROLLOUT, "budget_completions", "max_steps", "num_iterations"),
    "by trial",
    of=EVERY,
    blames=("budget_completions",),
    why="the first optimizer step needs {needed} completions ({rollout} per rollout)",
    instead="Set {budget_completions}={needed} or more.",
    to=lambda s: ({"budget_completions": _needed(s)},),
)
def the_budget_holds_a_step(s: Setting) -> Finding:
    """The budget must pay for at least one whole rollout and one optimizer step.

    A grposweep schedule: steps = floor(budget / (B W S)) mu S / A.
    """
    steps = _bought_steps(s)
    if steps is None or steps >= 1 or (s.budget_completions or 0) < 1:
        return None
    return {"needed": _needed(s), "rollout": planning.completions_per_rollout(s)}


def _bought_steps(s: Setting) -> int | None:
    """Return the optimizer steps of a budget; None if they are unknown, or steps are set."""
    is_known = s.max_steps is None and s.num_iterations > 0 and judgeable(s)
    if is_known:
        return planning.budget_steps(s)
    return None


@rule(
    "GS204",
    "warning",
    (*ROLLOUT, "budget_completions", "max_steps", "num_iterations", "parameters"),
    of=EVERY,
    blames=("budget_completions",),
    why="that is {steps} optimizer steps; published runs on GSM8K and MATH take 116 and more",
    instead="Set {budget_completions}={enough} (100 steps) or more.",
    to=lambda s: ({"budget_completions": _needed(s, FEW_STEPS)},),
)
def the_budget_moves_a_real_model(s: Setting) -> Finding:
    """A grposweep schedule of fewer than 100 optimizer steps for a model of 0.1 B parameters and
    more.

    The default budget is made for the tiny model. verl's published runs of 0.5 B to 72 B models on
    GSM8K and MATH take 116 and 117 optimizer steps.
    """
    steps = _bought_steps(s)
    if steps is None or not 1 <= steps < FEW_STEPS or (s.parameters or 0) < LARGE_MODEL:
        return None
    return {"steps": steps, "enough": _needed(s, FEW_STEPS)}


def _needed(s: Setting, steps: int = 1) -> int:
    """Return the completions of the rollouts behind the first optimizer steps."""
    return (planning.completions_per_rollout(s) or 0) * -(-steps // planning.steps_per_rollout(s))


@rule(
    "GS104",
    "error",
    ("framework", *ROLLOUT, "train_prompts"),
    "by trial",
    of=TRL_LIKE,
    blames=SIZES[1:],
    what="{s.train_prompts} training prompts",
    why="one rollout takes {prompts}, so {trainer} would finish without a single step",
    instead="Use more prompts, or a smaller batch.",
)
def the_data_fill_a_rollout(s: Setting) -> Finding:
    """The training prompts must fill one rollout, or no step is taken.

    TRL 1.16 with max_steps: no error and 0 optimizer steps; with epochs: "args.max_steps must be
    set to a positive value if dataloader does not have a length".
    """
    if s.train_prompts is None or not judgeable(s) or planning.rollouts_per_epoch(s) != 0:
        return None
    return {"prompts": planning.prompts_per_rollout(s)}


@rule("GS105", "error", ("learning_rate", "warmup_steps", "given"), of=EVERY)
def the_learning_rate_is_positive(s: Setting) -> Violation | None:
    """A negative learning rate or warmup is refused late, by torch or transformers.

    A rate of 0 trains nothing: an error in grposweep experiments, a warning in recipes (GS207).
    """
    if s.learning_rate < 0 or (s.learning_rate == 0 and not s.given):
        name, value, reason = (
            "learning_rate",
            s.learning_rate,
            "the optimizer needs a learning rate above 0",
        )
        # a sign too many
        meant = -value if 0 < -value < 1 else 1e-6
    elif s.warmup_steps < 0:
        name, value, reason, meant = (
            "warmup_steps",
            s.warmup_steps,
            "warmup cannot be negative",
            0.0,
        )
    else:
        return None
    key = s.key(name)
    return Violation(f"{key}={value:g}", reason, f"Set {key}={meant:g}.", (name,), ({name: meant},))


@rule(
    "GS207",
    "warning",
    ("learning_rate", "given"),
    of=EVERY,
    blames=("learning_rate",),
    what="{learning_rate}=0",
    why="nothing is trained",
    instead="Set {learning_rate}=1e-6, unless the run only evaluates.",
)
def the_learning_rate_trains(s: Setting) -> bool:
    """A learning rate of 0 leaves all weights as they are. Programs use it to evaluate with the
    trainer.
    """
    return bool(s.given) and s.learning_rate == 0


@rule(
    "GS106",
    "error",
    ("lr_scheduler_type", "evaluates"),
    of=TRL_LIKE,
    blames=("lr_scheduler_type", "evaluates"),
    why="it follows an evaluated metric, and nothing is evaluated",
    instead="Set {lr_scheduler_type}=linear, or switch evaluation on.",
    to=({"lr_scheduler_type": "linear"},),
)
def the_scheduler_sees_a_metric(s: Setting) -> bool:
    """A scheduler that follows an evaluated metric needs evaluations.

    transformers 5.23: "lr_scheduler_type reduce_lr_on_plateau requires an eval strategy".
    """
    return s.lr_scheduler_type in WATCHING and not s.evaluates


@rule(
    "GS201",
    "warning",
    USES,
    of=TRL_LIKE,
    blames=("gradient_accumulation_steps", "steps_per_generation"),
    why="a rollout has {micro} micro-steps, so optimizer steps straddle rollouts",
    instead="Choose an accumulation that divides them.",
)
def steps_end_on_rollouts(s: Setting) -> Finding:
    """If neither of mu S and A divides the other, optimizer steps straddle rollouts, and the last
    step of an epoch is short.
    """
    if not judgeable(s) or s.num_iterations < 1:
        return None
    micro = planning.micro_steps_per_generation(s) * s.num_iterations
    accumulation = s.gradient_accumulation_steps
    if micro % accumulation and accumulation % micro:
        return {"micro": micro}
    return None


@rule(
    "GS202",
    "warning",
    (*ROLLOUT, *planning.TOTAL_STEPS_READS, "warmup_steps"),
    of=EVERY,
    blames=("warmup_steps",),
    why="the run has {total} optimizer steps, so the learning rate never reaches its value",
    instead="Set {warmup_steps}=0.05 (a share), or fewer steps than {total}.",
)
def warmup_ends(s: Setting) -> Finding:
    """A warmup of as many steps as the run: the learning rate never reaches its value."""
    if not judgeable(s) or s.num_iterations < 1 or s.warmup_steps < 1:
        return None
    total = planning.total_steps(s)
    if total and s.warmup_steps >= total:
        return {"total": total}
    return None


@rule(
    "GS203",
    "note",
    ("given", "max_steps", "epochs"),
    of=TRL_LIKE,
    blames=("max_steps", "epochs"),
    why="it overrides {overridden}, which is not read",
    instead="Leave {epochs} out, or {max_steps}.",
)
def one_length_counts(s: Setting) -> Finding:
    """With ``max_steps`` above 0 transformers ignores the epochs; a recipe that gives both may mean
    either.
    """
    if (s.max_steps or 0) < 1 or not {"max_steps", "epochs"} <= s.given:
        return None
    overridden = s.key("epochs")
    if s.epochs is not None:
        overridden = f"{overridden}={s.epochs:g}"
    return {"overridden": overridden}


@rule(
    "GD201",
    "warning",
    (*ROLLOUT, "train_prompts"),
    of=TRL_LIKE,
    blames=SIZES[1:],
    what="{s.train_prompts} training prompts",
    why="{dropped} of them ({share:.0%}) are dropped every epoch: a rollout takes {prompts}",
    instead="Choose a rollout size that divides them, or a smaller one.",
)
def few_prompts_are_dropped(s: Setting) -> Finding:
    """Every epoch drops D mod P prompts (different ones each time if shuffled); reported from a
    twentieth of the data.

    P = B W S / G prompts make a rollout, and an epoch has floor(D / P) of them.
    ``dataloader_drop_last`` changes nothing. Measured with trl 1.16 on 60 random configurations.
    """
    known = s.train_prompts or 0
    prompts = planning.prompts_per_rollout(s) if judgeable(s) else None
    if not prompts or known < prompts:
        return None
    dropped = known % prompts
    if dropped * LEAST_DROPPED < known:
        return None
    return {"dropped": dropped, "share": dropped / known, "prompts": prompts}


@rule(
    "GD202",
    "warning",
    ("chat", "has_chat_template"),
    of=EVERY,
    blames=("chat",),
    why="the tokenizer has a chat template, and prompts reach the model without it",
    instead="Set {chat}=true, unless the model was never tuned on conversations.",
)
def an_instruct_model_gets_its_chat_template(s: Setting) -> bool:
    """Without its chat template an instruction-tuned model completes text badly, because it does
    not see a question.

    Judged after preparation has read the tokenizer. Some base models' tokenizers have a template
    too.
    """
    return s.chat is False and s.has_chat_template is True


@rule(
    "GC101",
    "error",
    ("version", "log_completions", "log_completions_hub_repo"),
    blames=("log_completions_hub_repo", "log_completions"),
    why="{log_completions} is false, so there is nothing to upload",
    instead="Set {log_completions}=true, or leave the repository out.",
    harmless=("log_completions",),
    to=({"log_completions": True}, {"log_completions_hub_repo": None}),
)
def completions_are_logged_before_upload(s: Setting) -> bool:
    """``log_completions_hub_repo`` uploads what ``log_completions`` writes, and needs it.

    TRL since 0.28: "log_completions_hub_repo is set, but log_completions is False."
    """
    return (
        s.log_completions_hub_repo is not None
        and not s.log_completions
        and s.version >= HUB_CHECKED
    )


@rule("GC102", "error", BEST, of=TRL_LIKE)
def the_best_checkpoint_was_evaluated(s: Setting) -> Violation | None:
    """``load_best_model_at_end`` needs an evaluation at every checkpoint: the same strategy, and
    save steps a multiple.

    transformers 5.23: "--load_best_model_at_end requires the save and eval strategy to match",
    "requires the saving steps to be a round multiple of the evaluation steps".
    """
    if not s.load_best_model_at_end or s.save_strategy in (None, "best") or s.eval_strategy is None:
        return None
    if s.eval_strategy != s.save_strategy:
        reason = (
            f"checkpoints are kept by {s.save_strategy} and evaluated by {s.eval_strategy}, "
            "which must be the same"
        )
        change: dict[str, object] = {"save_strategy": s.eval_strategy}
    elif (
        s.eval_strategy == "steps"
        and s.save_steps
        and s.eval_steps
        and _is_off(s.save_steps, s.eval_steps)
    ):
        reason = (
            f"{s.key('save_steps')}={s.save_steps:g} is no multiple of "
            f"{s.key('eval_steps')}={s.eval_steps:g}"
        )
        change = {"save_steps": s.eval_steps}
    else:
        return None
    return Violation(
        f"{s.key('load_best_model_at_end')}=true",
        reason,
        "Evaluate at every checkpoint.",
        BEST,
        (change, {"load_best_model_at_end": False}),
    )


def _is_off(save: float, evaluate: float) -> bool:
    """Return whether transformers would find no multiple: shares and steps do not mix."""
    if (save < 1) != (evaluate < 1):
        return save % evaluate != 0
    return round(save * 1e6) % max(round(evaluate * 1e6), 1) != 0


@rule(
    "GC201",
    "warning",
    (*USES, "save_steps", "save_strategy"),
    of=TRL_LIKE,
    blames=("save_steps",),
    why=(
        "rollouts end every {every} optimizer steps, so a run resumed from such a checkpoint "
        "repeats part of one"
    ),
    instead="Choose a multiple of {every}.",
)
def checkpoints_end_on_rollouts(s: Setting) -> Finding:
    """A checkpoint inside a rollout cannot be resumed exactly: save_steps A must be a multiple of S
    mu.

    TRL's micro-step counter starts at 0 again. Measured with trl 1.16: resumed after 3 of 4 steps
    of a rollout, it generates and trains the used prompts once more, and the last rollout gets a
    single micro-step.
    """
    if s.save_steps is None or s.save_steps < 1 or s.save_strategy not in (None, "steps"):
        return None
    if not judgeable(s) or s.num_iterations < 1:
        return None
    every = planning.boundary_steps(s)
    if every > 1 and s.save_steps % every:
        return {"every": every}
    return None
