"""Points in the order of their worth: leaders that raced on fresh seeds first, by what these said; then the others."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grposweep.report.trial import Direction, TrialView
from grposweep.search.estimate import estimate
from grposweep.search.race import Runner, race

NORMAL = 1.96  # standard errors, at 95 %


@dataclass(frozen=True)
class Standing:
    """One point by its finished trials; ``counted`` are those that its value is the mean of.

    ``fate`` is what a race on fresh seeds made of it: best, tied, or why it is out; empty where it was in none.
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


def standings(trials: Iterable[TrialView], direction: Direction, chosen: bool = True) -> list[Standing]:
    """All points with a finished trial, best first; of two equal ones the earlier first.

    ``chosen``: leaders were picked by their first value, so that where they ran on fresh seeds only these count.
    """
    sign = 1 if direction == "minimize" else -1
    points: dict[Hashable, list[TrialView]] = {}
    for trial in trials:
        if trial.state.is_over:
            points.setdefault(seedless(trial.point), []).append(trial)
    raced = _race(points.values(), sign) if chosen else {}
    found = [
        _standing(group, raced, chosen) for group in points.values() if any(t.objective is not None for t in group)
    ]
    last = len(raced)
    return sorted(found, key=lambda s: (raced.get(s.first.number, (last, ""))[0], sign * s.value, s.first.number))


def seedless(point: Mapping[str, Any]) -> Hashable:
    """What replicates on other seeds have in common."""
    return tuple(sorted((name, repr(label)) for name, label in point.items() if name != "seed"))


def _standing(group: Sequence[TrialView], raced: Mapping[int, tuple[int, str]], chosen: bool) -> Standing:
    finished = [trial for trial in group if trial.objective is not None]
    fresh = [trial for trial in finished if trial.role == "confirm"] if chosen else []
    return Standing(finished, fresh or finished, raced.get(finished[0].number, (0, ""))[1])


def _race(groups: Iterable[Sequence[TrialView]], sign: int) -> dict[int, tuple[int, str]]:
    """Place and fate of every leader that has run on fresh seeds, by the number of its own trial."""
    leaders = [group for group in groups if any(trial.role == "confirm" for trial in group)]
    leaders.sort(key=lambda group: sign * (group[0].objective or 0.0))
    runners = [_runner(group, sign) for group in leaders]
    ended = race(runners, sorted({seed for runner in runners for seed in runner.results}))
    alive = sorted(ended.alive, key=lambda runner: -runner.mean(runner.values) if runner.values else math.inf)
    fates = [(runner.number, "tied with the best" if ended.winner else "still in the race") for runner in alive]
    if ended.winner:
        fates[0] = (fates[0][0], "best on fresh seeds")
    return {number: (place, fate) for place, (number, fate) in enumerate([*fates, *ended.out.items()])}


def _runner(group: Sequence[TrialView], sign: int) -> Runner:
    """A point in the race; larger is better there."""
    results = {_seed(t): None if t.objective is None else -sign * t.objective for t in group if t.role == "confirm"}
    return Runner(group[0].number, results)


def _seed(trial: TrialView) -> int:
    seed = trial.attributes.get("seed")
    return seed if isinstance(seed, int) else trial.number
