"""Predict the size and the cost of a point: its plan, and its work in tokens times the cost of a token in ended trials."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grporecipe.files import as_number
from grporecipe.memory.estimate import memory_gib
from grporecipe.memory.parts import ASSUMED_PROMPT_TOKENS, find_prompt
from grporecipe.model import planning
from grporecipe.model.setting import Setting

HOUR = 3600.0
LENGTH = frozenset({"max_steps", "epochs", "budget_completions"})
SIZES = frozenset(planning.TOTAL_STEPS_READS) - LENGTH - {"version", "ends_with_epochs", "train_prompts"}


@dataclass(frozen=True)
class Work:
    """The tokens of a trial: those that are generated, including evaluations, and those that are trained on."""

    generated: float
    trained: float


@dataclass(frozen=True)
class Rates:
    """Device seconds per token; ``trials`` is the number of trials they rest on."""

    generated: float
    trained: float
    trials: int

    def hours(self, work: Work) -> float:
        """Return the cost of this work in device hours."""
        return (self.generated * work.generated + self.trained * work.trained) / HOUR


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


def read_work(work: Any) -> Work | None:
    """Return the work stored in planning.json, or None."""
    if not isinstance(work, Mapping):
        return None
    generated, trained = as_number(work.get("generated")), as_number(work.get("trained"))
    return None if generated is None or trained is None else Work(generated, trained)


def fit_rates(measured: Sequence[tuple[Work, float]]) -> Rates | None:
    """Fit the seconds per generated and per trained token to the measured device seconds; None without trials.

    Both rates are at least 0. Least squares of relative errors, so long trials do not dominate. Trials of a single kind cannot
    separate the two rates; then every token costs the same, which still predicts that kind of trial.
    """
    rows = [(work.generated / seconds, work.trained / seconds) for work, seconds in measured if seconds > 0]
    if not rows:
        return None
    gg, tt = sum(g * g for g, _ in rows), sum(t * t for _, t in rows)
    gt, g1, t1 = sum(g * t for g, t in rows), sum(g for g, _ in rows), sum(t for _, t in rows)
    determinant = gg * tt - gt * gt
    if determinant <= 1e-6 * gg * tt:
        both = (g1 + t1) / (gg + 2 * gt + tt)
        return Rates(both, both, len(rows))
    generated, trained = (g1 * tt - t1 * gt) / determinant, (t1 * gg - g1 * gt) / determinant
    if generated < 0:
        generated, trained = 0.0, t1 / tt
    elif trained < 0:
        generated, trained = g1 / gg, 0.0
    return Rates(generated, trained, len(rows))
