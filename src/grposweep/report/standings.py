"""Points in the order of their worth: one that ran on several seeds is worth their mean, with its interval."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grposweep.report.trial import Direction, TrialView

# Student's t at 97.5 %, by degrees of freedom; scipy would take half a second to say the same.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)
NORMAL = 1.96


@dataclass(frozen=True)
class Standing:
    """One point by its finished trials."""

    trials: Sequence[TrialView]

    @property
    def first(self) -> TrialView:
        """The trial that stands for the point."""
        return self.trials[0]

    @property
    def is_confirmed(self) -> bool:
        """Whether it ran again on seeds that the search did not choose it by."""
        return any(trial.role == "confirm" for trial in self.trials)

    @cached_property
    def values(self) -> list[float]:
        """What counts: where the point was confirmed only that, since it was chosen for its luck on the other seeds."""
        confirming = [trial for trial in self.trials if trial.role == "confirm"]
        return [trial.objective or 0.0 for trial in confirming or self.trials]

    @property
    def value(self) -> float:
        """The mean of these."""
        return math.fsum(self.values) / len(self.values)

    @property
    def source(self) -> str:
        """What its interval is over: ``seeds``, or the held-out ``prompts`` of a single trial, which knows no other seed."""
        return "seeds" if len(self.values) > 1 else "" if self.first.error is None else "prompts"

    @property
    def half(self) -> float | None:
        """Half of its 95 % interval; None where nothing is known of it."""
        if len(self.values) == 1:
            return None if self.first.error is None else NORMAL * self.first.error
        freedom = len(self.values) - 1
        variance = math.fsum((value - self.value) ** 2 for value in self.values) / freedom
        return (T[freedom - 1] if freedom <= len(T) else NORMAL) * math.sqrt(variance / len(self.values))

    @property
    def text(self) -> str:
        """The mean with its 95 % interval, what that is over, and where training began."""
        what = f"{len(self.values)} seeds" if self.source == "seeds" else self.source
        interval = "" if self.half is None else f" ± {self.half:.4f} (95 % over {what})"
        start = "" if self.first.start is None else f", start {self.first.start:.4f}"
        return f"{self.value:.4f}{interval}{start}"


def standings(trials: Iterable[TrialView], direction: Direction) -> list[Standing]:
    """All points with a finished trial: confirmed ones first, each kind best first, of two equal ones the earlier first."""
    sign = 1 if direction == "minimize" else -1
    groups: dict[Hashable, list[TrialView]] = {}
    for trial in trials:
        if trial.objective is not None:
            groups.setdefault(seedless(trial.point), []).append(trial)
    found = [Standing(trials) for trials in groups.values()]
    return sorted(found, key=lambda s: (not s.is_confirmed, sign * s.value, s.first.number))


def seedless(point: Mapping[str, Any]) -> Hashable:
    """What replicates on other seeds have in common."""
    return tuple(sorted((name, repr(label)) for name, label in point.items() if name != "seed"))
