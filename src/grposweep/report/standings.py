"""Points in the order of their worth: one that ran on several seeds is worth their mean, with its interval."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grposweep.report.read import SweepView
from grposweep.report.trial import TrialView

# Student's t at 97.5 %, by degrees of freedom; scipy would take half a second to say the same.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
NORMAL = 1.96


@dataclass(frozen=True)
class Standing:
    """One point: its finished trials, their mean, and half of its 95 % interval.

    ``source`` says what the interval is over: ``seeds``, or the held-out ``prompts`` of a single trial, which knows
    nothing of other seeds; empty where there is none.
    """

    trials: Sequence[TrialView]
    value: float
    half: float | None
    source: str

    @property
    def first(self) -> TrialView:
        """The trial that stands for the point."""
        return self.trials[0]

    @property
    def is_confirmed(self) -> bool:
        """Whether it ran again on seeds that the search did not choose it by."""
        return any(trial.role == "confirm" for trial in self.trials)


def standings(view: SweepView) -> list[Standing]:
    """All points with a finished trial: confirmed ones first, each kind best first."""
    groups: dict[Hashable, list[TrialView]] = {}
    for trial in view.trials:
        if trial.objective is not None:
            groups.setdefault(seedless(trial.point), []).append(trial)
    found = [_standing(trials) for trials in groups.values()]
    return sorted(found, key=lambda s: (not s.is_confirmed, view.sign * s.value, s.first.number))


def seedless(point: Mapping[str, Any]) -> Hashable:
    """What replicates on other seeds have in common."""
    return tuple(sorted((name, repr(label)) for name, label in point.items() if name != "seed"))


def _standing(trials: Sequence[TrialView]) -> Standing:
    """Where a point was confirmed, only on those seeds: it was chosen for its luck on the first."""
    confirming = [trial for trial in trials if trial.role == "confirm"]
    values = [trial.objective for trial in confirming or trials if trial.objective is not None]
    mean = math.fsum(values) / len(values)
    if len(values) > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        freedom = len(values) - 1
        student = T[freedom - 1] if freedom <= len(T) else NORMAL
        return Standing(trials, mean, student * deviation / math.sqrt(len(values)), "seeds")
    error = (confirming or trials)[0].error
    return Standing(trials, mean, None if error is None else NORMAL * error, "" if error is None else "prompts")
