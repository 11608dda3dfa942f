"""Which parameters decide: PED-ANOVA's shares, or the contrasts of single parameters while there are few trials.

A trial that is paused or was stopped early counts with the value that it has reached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grposweep.report.trial_view import Direction, TrialView
from grposweep.search.analysis import ENOUGH, Contrast, Measured, find_contrasts, find_importances
from grposweep.search.space import read_space

FEWEST = 4  # trials with a value


@dataclass(frozen=True)
class Importance:
    """Each parameter's share in what decides, the largest first; without shares the contrasts, the clearest first.

    ``trials`` is the number of trials that count, and ``unfinished`` how many of them have not finished.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    contrasts: Sequence[Contrast] = ()
    trials: int = 0
    unfinished: int = 0


def find_importance(
    trials: Sequence[TrialView], space: Sequence[Mapping[str, Any]], direction: Direction
) -> Importance:
    """Return what decides about the objective, by the trials of a search (without replicates)."""
    try:
        parameters = {known.name: known for known in read_space(space).parameters}
    except (KeyError, TypeError, AttributeError):  # a damaged sweep.yaml
        return Importance()
    inside = [trial for trial in trials if set(trial.point) <= set(parameters)]
    finished = [trial for trial in inside if trial.objective is not None]
    known = [Measured(dict(t.point), t.objective or 0.0) for t in finished]
    known += [Measured(dict(t.point), t.reached) for t in inside if t.reached is not None]
    maximize = direction == "maximize"
    shares: dict[str, float] = {}
    if len(finished) >= ENOUGH:
        shares = find_importances(parameters, [m.point for m in known], [m.value for m in known], maximize)
    contrasts = find_contrasts(parameters, known, maximize) if not shares and len(known) >= FEWEST else []
    return Importance(shares, contrasts, len(known), len(known) - len(finished))
