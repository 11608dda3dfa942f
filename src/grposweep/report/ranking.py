"""Points in the order of their worth: those first that raced on fresh seeds, or are on the Pareto front; then the others."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grposweep.report.trial_view import Direction, TrialView
from grposweep.search.replication import CONFIRM, Replicate, Replication, estimate
from grposweep.search.replication import Ranking as Race

NORMAL = 1.96  # standard errors, at 95 %
ON_FRONT = "Pareto front"
FATES = {"best": "best on fresh seeds", "tied": "tied with the best", "unfinished": "still in the race"}


@dataclass(frozen=True)
class Standing:
    """One point by its finished trials; ``counted`` are those that its value is the mean of.

    ``fate`` is what a race on fresh seeds made of it (best, tied, or why it is out), or that it is on the Pareto front.
    """

    trials: Sequence[TrialView]
    counted: Sequence[TrialView]
    fate: str = ""

    @property
    def first(self) -> TrialView:
        """The trial that stands for the point: the search's own."""
        return self.trials[0]

    @cached_property
    def values(self) -> list[float]:
        """The objectives that count."""
        return [trial.objective or 0.0 for trial in self.counted]

    @property
    def value(self) -> float:
        """Their mean."""
        return math.fsum(self.values) / len(self.values)

    @property
    def source(self) -> str:
        """What its interval is over: ``seeds``, or the held-out ``prompts`` of a single trial, which knows no other seed."""
        return "seeds" if len(self.values) > 1 else "" if self.counted[0].error is None else "prompts"

    @property
    def half(self) -> float | None:
        """Half of its 95 % interval; None where nothing is known of it."""
        if len(self.values) > 1:
            return estimate(self.values).margin
        error = self.counted[0].error
        return None if error is None else NORMAL * error

    @property
    def text(self) -> str:
        """The mean with its 95 % interval, what that is over, and where training began."""
        what = f"{len(self.values)} seeds" if self.source == "seeds" else self.source
        interval = "" if self.half is None else f" ± {self.half:.4f} (95 % over {what})"
        start = "" if self.first.start is None else f", start {self.first.start:.4f}"
        return f"{self.value:.4f}{interval}{start}"


def standings(
    trials: Iterable[TrialView], direction: Direction, race: Race | None = None, front: Sequence[int] = ()
) -> list[Standing]:
    """All points with a finished trial, best first; of two equal ones the earlier first.

    Where leaders were picked by their first value and ran on fresh seeds only these count, in the order of their ``race``.
    Of several objectives the points of the Pareto ``front`` come first.
    """
    sign = 1 if direction == "minimize" else -1
    points: dict[Hashable, list[TrialView]] = {}
    for trial in trials:
        if trial.objective is not None:
            points.setdefault(seedless(trial.point), []).append(trial)
    places = race.places if race else {number: (place, ON_FRONT) for place, number in enumerate(front)}
    found = [_standing(group, places, race is not None) for group in points.values()]
    last = len(places)
    return sorted(found, key=lambda s: (places.get(s.first.number, (last, ""))[0], sign * s.value, s.first.number))


def seedless(point: Mapping[str, Any]) -> Hashable:
    """What replicates on other seeds have in common."""
    return tuple(sorted((name, repr(label)) for name, label in point.items() if name != "seed"))


def race_of(trials: Iterable[TrialView], direction: Direction, replication: Replication | None) -> Race | None:
    """The search's points on the seeds of their replicates; None where none are wanted."""
    if replication is None:
        return None
    sign = -1 if direction == "minimize" else 1
    ended = [trial for trial in trials if trial.state.is_over]
    worth = {t.number: None if t.objective is None else sign * t.objective for t in ended}
    found = {t.number: value for t in ended if t.role == "search" and (value := worth[t.number]) is not None}
    said = ((t.attributes.get("of"), t.attributes.get("seed"), worth[t.number]) for t in ended if t.role == CONFIRM)
    known = [Replicate(of, seed, value) for of, seed, value in said if isinstance(of, int) and isinstance(seed, int)]
    return replication.ranking(found, known)


def _standing(finished: Sequence[TrialView], places: Mapping[int, tuple[int, str]], raced: bool) -> Standing:
    fresh = [trial for trial in finished if trial.role == CONFIRM] if raced else []
    fate = places.get(finished[0].number, (0, ""))[1]
    return Standing(finished, fresh or finished, FATES.get(fate, fate))
