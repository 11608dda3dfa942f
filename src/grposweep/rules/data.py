"""GD and GC: no data is lost unnoticed, checkpoints can be resumed from, logs are written.

Sources: trl 1.16 trainer/utils.py RepeatSampler, trainer/grpo_config.py; transformers 5.23 training_args.py.
"""

from grposweep import plan
from grposweep.rules.batch import SIZES, judgeable
from grposweep.rules.registry import Broken, rule
from grposweep.rules.schedule import ROLLOUT
from grposweep.setting import TRL_LIKE, Setting

LEAST_DROPPED = 20  # a twentieth of the data; less is lost in every shuffle
HUB_CHECKED = (0, 28)


@rule("GD201", "warning", (*ROLLOUT, "train_prompts"), of=TRL_LIKE)
def few_prompts_are_dropped(s: Setting) -> Broken | None:
    """D mod P prompts are dropped every epoch (others each time, when shuffled); reported from a twentieth of the data.

    P = B W S / G prompts make a rollout, and an epoch has floor(D / P) of them. ``dataloader_drop_last`` changes nothing.
    Measured with trl 1.16 on 60 random configurations.
    """
    if s.train_prompts is None or s.train_prompts < 1 or not judgeable(s):
        return None
    prompts = plan.prompts_per_rollout(s)
    if not prompts or s.train_prompts < prompts:
        return None
    dropped = s.train_prompts % prompts
    if dropped * LEAST_DROPPED < s.train_prompts:
        return None
    return Broken(
        what=f"{s.train_prompts} training prompts",
        why=f"{dropped} of them ({dropped / s.train_prompts:.0%}) are dropped every epoch: a rollout takes {prompts}",
        instead="Choose a rollout size that divides them, or a smaller one.",
        fields=SIZES[1:],
    )


@rule("GC101", "error", ("version", "log_completions", "log_completions_hub_repo"))
def completions_are_logged_before_upload(s: Setting) -> Broken | None:
    """``log_completions_hub_repo`` uploads what ``log_completions`` writes, and needs it.

    TRL since 0.28: "log_completions_hub_repo is set, but log_completions is False."
    """
    if s.log_completions_hub_repo is None or s.log_completions or s.version < HUB_CHECKED:
        return None
    return Broken(
        what=f"{s.key('log_completions_hub_repo')}={s.log_completions_hub_repo}",
        why=f"{s.key('log_completions')} is false, so there is nothing to upload",
        instead=f"Set {s.key('log_completions')}=true, or leave the repository out.",
        fields=("log_completions_hub_repo", "log_completions"),
        suggestions=({"log_completions": True}, {"log_completions_hub_repo": None}),
        without_effect=frozenset({"log_completions"}),
    )


BEST = ("load_best_model_at_end", "save_strategy", "eval_strategy", "save_steps", "eval_steps")


@rule("GC102", "error", BEST, of=TRL_LIKE)
def the_best_checkpoint_was_evaluated(s: Setting) -> Broken | None:
    """``load_best_model_at_end`` needs an evaluation at every checkpoint: the same strategy, and save steps a multiple.

    transformers 5.23: "--load_best_model_at_end requires the save and eval strategy to match", "requires the saving steps
    to be a round multiple of the evaluation steps".
    """
    if not s.load_best_model_at_end or s.save_strategy in (None, "best") or s.eval_strategy is None:
        return None
    if s.eval_strategy != s.save_strategy:
        why = f"checkpoints are kept by {s.save_strategy} and evaluated by {s.eval_strategy}, which must be the same"
        change: dict[str, object] = {"save_strategy": s.eval_strategy}
    elif s.eval_strategy == "steps" and s.save_steps and s.eval_steps and _is_off(s.save_steps, s.eval_steps):
        why = f"{s.key('save_steps')}={s.save_steps:g} is no multiple of {s.key('eval_steps')}={s.eval_steps:g}"
        change = {"save_steps": s.eval_steps}
    else:
        return None
    return Broken(
        what=f"{s.key('load_best_model_at_end')}=true",
        why=why,
        instead="Evaluate at every checkpoint.",
        fields=BEST,
        suggestions=(change, {"load_best_model_at_end": False}),
    )


def _is_off(save: float, evaluate: float) -> bool:
    """Whether transformers would find no multiple: shares and steps do not mix."""
    if (save < 1) != (evaluate < 1):
        return save % evaluate != 0
    return round(save * 1e6) % max(round(evaluate * 1e6), 1) != 0


@rule("GC201", "warning", (*SIZES, "unsolved", "num_iterations", "save_steps", "save_strategy"), of=TRL_LIKE)
def checkpoints_end_on_rollouts(s: Setting) -> Broken | None:
    """A checkpoint inside a rollout cannot be resumed exactly: save_steps A must be a multiple of S mu.

    TRL's micro-step counter starts at 0 again. Measured with trl 1.16: resumed after 3 of 4 steps of a rollout, it
    generates and trains the used prompts once more, and the last rollout gets a single micro-step.
    """
    if s.save_steps is None or s.save_steps < 1 or s.save_strategy not in (None, "steps"):
        return None
    if not judgeable(s) or s.num_iterations < 1 or (every := plan.boundary_steps(s)) == 1 or s.save_steps % every == 0:
        return None
    return Broken(
        what=f"{s.key('save_steps')}={s.save_steps:g}",
        why=f"rollouts end every {every} optimizer steps, so a run resumed from such a checkpoint repeats part of one",
        instead=f"Choose a multiple of {every}.",
        fields=("save_steps",),
    )
