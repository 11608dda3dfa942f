"""What a point will cost: its work in tokens, times what a token has cost the trials that ended already. Pure arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grposweep import planning
from grposweep.files import as_number
from grposweep.memory.parts import ASSUMED_PROMPT_TOKENS, find_prompt
from grposweep.setting import Setting

HOUR = 3600.0


@dataclass(frozen=True)
class Work:
    """A trial's tokens: those that are generated, evaluations included, and those that go through a backward pass."""

    generated: float
    trained: float

    def as_dict(self) -> dict[str, float]:
        """The fields, as planning.json keeps them."""
        return asdict(self)


@dataclass(frozen=True)
class Rates:
    """Device seconds a token; ``trials`` is how many they rest on."""

    generated: float
    trained: float
    trials: int

    def hours(self, work: Work) -> float:
        """What so much work costs, in device hours."""
        return (self.generated * work.generated + self.trained * work.trained) / HOUR


def find_work(s: Setting) -> Work | None:
    """The work of a setting, every completion as long as it may be; None where its length is not known.

    Completions that end early cost less, in the measured trials as well: the rates absorb it where lengths are alike.
    """
    completions, steps, step = planning.total_completions(s), planning.total_steps(s), planning.completions_per_step(s)
    if not completions or not steps or not step:
        return None
    evaluated = planning.evaluated_completions(s) or 0
    length = (find_prompt(s) or ASSUMED_PROMPT_TOKENS) + s.max_completion_length
    return Work((completions + evaluated) * float(s.max_completion_length), float(steps) * step * length)


def read_work(found: Any) -> Work | None:
    """The work that planning.json holds; None where it holds none."""
    if not isinstance(found, Mapping):
        return None
    generated, trained = as_number(found.get("generated")), as_number(found.get("trained"))
    return None if generated is None or trained is None else Work(generated, trained)


def fit_rates(seen: Sequence[tuple[Work, float]]) -> Rates | None:
    """The seconds a generated and a trained token, both at least 0, that explain device seconds best; None without trials.

    Least squares of relative errors, so that long trials do not drown short ones. Trials that are all of one kind cannot
    tell the two apart: then every token costs the same, which predicts trials of that kind as well.
    """
    rows = [(work.generated / seconds, work.trained / seconds) for work, seconds in seen if seconds > 0]
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
