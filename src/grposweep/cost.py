"""Predict the size of a point: its plan, its memory, and its work in tokens."""

from dataclasses import asdict
from typing import Any

from grporecipe.memory.estimate import memory_gib
from grporecipe.memory.parts import ASSUMED_PROMPT_TOKENS, find_prompt
from grporecipe.model import planning
from grporecipe.model.setting import Setting
from grposweep.token_rates import Work

LENGTH = frozenset({"max_steps", "epochs", "budget_completions"})
SIZES = frozenset(planning.TOTAL_STEPS_READS) - LENGTH - {"version", "ends_with_epochs", "train_prompts"}


def known_part(s: Setting) -> Setting:
    """Return a setting whose plan has no number that follows from a field which only the trainer knows.

    Without the processes no number of completions is known, and without the length no number of steps.
    """
    lost = {"processes", "generation_batch_size"} if s.unknown & SIZES else set()
    lost |= LENGTH if "max_steps" in s.unknown else LENGTH & s.unknown  # which comes before the others
    return s.replace(dict.fromkeys(lost))


def plan_content(s: Setting) -> dict[str, Any]:
    """Return the content of a trial's plan.json: its plan, memory and work, null where only the trainer knows them."""
    known, work = known_part(s), find_work(known_part(s))
    plan = planning.build_plan(known).as_dict()
    follow = {"steps_per_generation", "steps_per_rollout", "save_steps"} if s.unknown & SIZES else set()
    follow |= {"evaluation_steps"} if "evaluations" in s.unknown else set()
    plan |= dict.fromkeys(plan.keys() & (follow | s.unknown)) | {
        "processes": None if "processes" in s.unknown else s.processes
    }
    memory = None if s.unknown & SIZES else memory_gib(s)
    return {**plan, "memory_gib": memory, "work": None if work is None else asdict(work)}


def find_work(s: Setting) -> Work | None:
    """Return the work of a setting, assuming completions of full length; None if the length of the run is unknown.

    Completions that end early cost less, also in the measured trials. So the rates absorb the difference if lengths are similar.
    """
    completions, steps, step = planning.total_completions(s), planning.total_steps(s), planning.completions_per_step(s)
    if not completions or not steps or not step:
        return None
    evaluated = planning.evaluated_completions(s) or 0
    length = (find_prompt(s) or ASSUMED_PROMPT_TOKENS) + s.max_completion_length
    return Work((completions + evaluated) * float(s.max_completion_length), float(steps) * step * length)
