"""Predict the cost of a point: its work in tokens, times the cost of a token in ended trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grporecipe.files import as_number

HOUR = 3600.0


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


def read_work(work: Any) -> Work | None:
    """Return the work stored in a trial's plan.json, or None."""
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
