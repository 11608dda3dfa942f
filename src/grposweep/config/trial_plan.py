"""The content of a trial's plan.json: batch sizes, steps and memory, as far as they are known."""

from grporecipe.files import Json
from grporecipe.memory.estimate import memory_gib
from grporecipe.model import planning
from grporecipe.model.setting import Setting

LENGTH = frozenset({"max_steps", "epochs", "budget_completions"})
SIZES = (
    frozenset(planning.TOTAL_STEPS_READS)
    - LENGTH
    - {"version", "ends_with_epochs", "train_prompts"}
)


def known_part(s: Setting) -> Setting:
    """Return a setting whose plan has no number that follows from a field which only the trainer
    knows.

    Without the processes no number of completions is known, and without the length no number of
    steps.
    """
    # max_steps comes before the others
    lost = LENGTH if "max_steps" in s.unknown else LENGTH & s.unknown
    if s.unknown & SIZES:
        lost |= {"processes", "generation_batch_size"}
    return s.replace(dict.fromkeys(lost))


def plan_content(s: Setting) -> Json:
    """Return the content of a trial's plan.json: its plan and memory, null where only the trainer
    knows them.
    """
    plan = planning.build_plan(known_part(s)).as_dict()
    lost = set(s.unknown)
    memory = None
    if s.unknown & SIZES:
        lost |= {"steps_per_generation", "steps_per_rollout", "save_steps"}
    else:
        memory = memory_gib(s)
    if "evaluations" in s.unknown:
        lost.add("evaluation_steps")
    plan["processes"] = s.processes
    return {**plan, **dict.fromkeys(plan.keys() & lost), "memory_gib": memory}
