"""Rank the points of a sweep: first those confirmed on fresh seeds, then the others by value.

And rank its parameters by their contrasts. A trial that is paused or was stopped early counts with
what the finished ones gained after its share of the training.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from grporecipe.files import Config, finite_or_none
from grposweep.report.trial_view import TrialView, formatted, grouped
from grposweep.schema import sign_of
from grposweep.search.analysis import Contrast, Measured, find_contrasts, gain_after
from grposweep.search.replication import CHANCE, EndedTrial, Ranking, Replication, estimate
from grposweep.search.sampling import Sampling, average
from grposweep.search.space import Direction, read_space
from grposweep.storage.records import as_mapping

# trials with a value
FEWEST = 4
FATES = {
    "best": "best on fresh seeds",
    "tied": "tied with the best",
    "unfinished": "still in the race",
}


@dataclass(frozen=True)
class Gain:
    """What training a point brought: its value against the same model before training, on the same
    prompts and seeds.

    ``half`` is half of the 95 % interval, None if unknown; ``source`` what it is over.
    """

    value: float
    start: float
    half: float | None
    source: str

    @property
    def difference(self) -> float:
        """The value minus the start."""
        return self.value - self.start

    @property
    def text(self) -> str:
        """Return both values and their difference with its interval."""
        return (
            f"{self.value:.4f} against {self.start:.4f} before training: "
            f"{self.difference:+.4f} {self.interval}"
        )

    @property
    def interval(self) -> str:
        """Return the interval around the difference."""
        return _interval(self.half, self.source)


@dataclass(frozen=True)
class RankedPoint:
    """One point with its finished trials. Its value is the mean of the ``counted`` ones.

    ``fate`` is its result on fresh seeds (best, tied, or why it is out).
    """

    trials: Sequence[TrialView]
    counted: Sequence[TrialView]
    fate: str = ""
    # points that the best was chosen from by the values that count
    among: int = 1
    # makes larger values better
    sign: int = 1
    # other points have read other contents of the user's files
    is_mixed: bool = False

    @property
    def first(self) -> TrialView:
        """The trial whose model stands for the point: the one that others repeat on fresh seeds, or
        the best of them.
        """
        if self.fate or any(trial.is_replicate for trial in self.trials):
            return self.trials[0]
        return min(
            self.counted, key=lambda trial: (-self.sign * (trial.objective or 0.0), trial.number)
        )

    @cached_property
    def by_seed(self) -> dict[object, TrialView]:
        """One trial of each seed that counts: the latest, because repeats of one seed are no
        further evidence.
        """
        return {trial.seed: trial for trial in self.counted}

    @property
    def seeds(self) -> list[TrialView]:
        """The trials of `by_seed`."""
        return list(self.by_seed.values())

    @cached_property
    def values(self) -> list[float]:
        """The objectives that count, one for each seed."""
        return values_of(self.seeds)

    @cached_property
    def value(self) -> float:
        """Their mean."""
        return fmean(self.values)

    @property
    def source(self) -> str:
        """What the interval is over: ``seeds``, or the evaluation ``prompts`` of a single trial."""
        if len(self.values) > 1:
            return "seeds"
        return "" if self.seeds[0].error is None else "prompts"

    @property
    def own(self) -> "RankedPoint":
        """The point as a row of a table: its 95 % interval is of this point alone, and no claim
        that it is the best.
        """
        return replace(self, among=1)

    @cached_property
    def half(self) -> float | None:
        """Half of the 95 % interval; None if unknown."""
        first, *others = self.seeds
        sampling = sampling_of(self.seeds) if others else first.sampling
        return self._half(self.values, sampling)

    def _half(self, values: Sequence[float], sampling: Sampling) -> float | None:
        """Return half of the interval that holds for the best of all points together
        (Bonferroni).
        """
        chance = CHANCE / self.among
        if len(values) > 1:
            return finite_or_none(estimate(values, chance, sampling).margin)
        return sampling.margin(chance)

    @property
    def over(self) -> str:
        """What the interval is over, with how many seeds."""
        over = self.source
        if over == "seeds":
            over = self.basis.removeprefix("on ")
        if over and self.among > 1:
            over += f", best of {self.among}"
        return over

    @property
    def is_fresh(self) -> bool:
        """Whether the value is from fresh seeds alone, which the search has not seen."""
        return all(trial.is_replicate for trial in self.counted)

    @property
    def basis(self) -> str:
        """On which seeds the value was measured."""
        if self.source == "seeds":
            kind = "fresh seeds" if self.is_fresh else "seeds"
            return f"on {len(self.values)} {kind}"
        return "on one fresh seed" if self.is_fresh else "in the search"

    @property
    def brief(self) -> str:
        """The value and where it was measured."""
        return f"{self.value:.4f} {self.basis}"

    @property
    def text(self) -> str:
        """The mean with its 95 % interval, what that is over, and the gain over the value before
        training.
        """
        text = f"{self.value:.4f} {self.interval}"
        if self.gain is not None:
            text += f", {self.gain.difference:+.4f} from {self.gain.start:.4f}"
        if self.is_mixed:
            text += "; other trials read other contents of reward or data files"
        return text

    @property
    def interval(self) -> str:
        """Return the interval around the mean, with what it is over."""
        return _interval(self.half, self.over)

    @property
    def is_untrained(self) -> bool:
        """Whether its value is that of the model before training: no other was evaluated."""
        schedule = as_mapping(self.first.config.get("schedule"))
        return schedule.get("evaluations") == 0 and self.first.objective == self.first.start

    @property
    def gain(self) -> Gain | None:
        """The gain of the trials that count, each against its own start; None if one has no start
        or nothing but it.
        """
        starts = [trial.start for trial in self.seeds if trial.start is not None]
        if len(starts) < len(self.seeds) or self.is_untrained:
            return None
        sampled = sampling_of(self.seeds)
        before = average([trial.start_sampling for trial in self.seeds])
        gains = [value - start for value, start in zip(self.values, starts, strict=True)]
        half = self._half(gains, sampled.minus(before))
        if half is not None:
            half = sampled.cut(half, self.value)
        return Gain(self.value, fmean(starts), half, self.over)


def values_of(trials: Iterable[TrialView]) -> list[float]:
    """Return the objectives of finished trials."""
    return [trial.objective or 0.0 for trial in trials]


def sampling_of(trials: Iterable[TrialView]) -> Sampling:
    """Return the sampling of the mean of trials."""
    return average([trial.sampling for trial in trials])


def _interval(half: float | None, over: str) -> str:
    return formatted(f"± {{:.4f}} (95 % over {over})", half) or "(interval unknown)"


def rank_points(
    trials: Iterable[TrialView], direction: Direction, ranking: Ranking | None = None
) -> list[RankedPoint]:
    """Return all points with a finished trial, best first; of two equal ones the earlier first.

    With a ``ranking`` on fresh seeds only these seeds count, and its points come first in its
    order.
    """
    sign = sign_of(direction)
    finished = [trial for trial in trials if trial.objective is not None]

    def point_of(trial: TrialView) -> str:
        labels = [(name, repr(of)) for name, of in trial.point.items() if name != "seed"]
        # repeats with other files are another point; fresh seeds follow their leader
        files = "" if ranking else trial.files
        return repr((sorted(labels), files))

    points = grouped(finished, point_of).values()
    places = ranking.places if ranking else {}
    among = 1 if ranking else len(points)
    is_mixed = len({trial.files for trial in finished}) > 1
    ranked = []
    for group in points:
        seen = [trial for trial in group if trial.is_replicate and ranking] or group
        counted = [trial for trial in seen if trial.files == seen[-1].files]
        fate = places.get(group[0].number, (0, ""))[1]
        ranked.append(RankedPoint(group, counted, FATES.get(fate, fate), among, sign, is_mixed))

    def order(point: RankedPoint) -> tuple[float, ...]:
        place = places.get(point.first.number, (len(places), ""))[0]
        return place, -sign * point.value, point.first.number

    return sorted(ranked, key=order)


def replication_ranking(
    trials: Iterable[TrialView], direction: Direction, replication: Replication | None
) -> Ranking | None:
    """Return the ranking of the search's points on the seeds of their replicates; None without
    replication.
    """
    if replication is None:
        return None
    sign = sign_of(direction)
    ended = []
    for trial in trials:
        if trial.state.is_over:
            value = trial.objective
            if value is not None:
                value *= sign
            ended.append(EndedTrial(trial.number, value, trial.attributes, trial.sampling))
    return replication.ranking(ended)


@dataclass(frozen=True)
class Importance:
    """The contrasts of the parameters, the clearest first.

    ``trials`` is the number of trials that count, and ``unfinished`` how many of them have not
    finished.
    """

    contrasts: Sequence[Contrast] = ()
    trials: int = 0
    unfinished: int = 0


def find_importance(
    trials: Sequence[TrialView],
    space: Sequence[Config],
    direction: Direction,
    metric: str,
) -> Importance:
    """Return what decides about the objective, by the trials of a search (without replicates)."""
    try:
        parameters = {known.name: known for known in read_space(space).parameters}
    except (KeyError, TypeError, AttributeError):
        # a damaged sweep.yaml
        return Importance()
    inside = [trial for trial in trials if set(trial.point) <= set(parameters)]
    finished = [trial for trial in inside if trial.objective is not None]
    unfinished = [trial for trial in inside if trial.reached is not None]
    curves = []
    if unfinished:
        curves = [_curve(trial, metric) for trial in finished]
    gains: dict[float, float] = {}
    known = []
    for trial in (*finished, *unfinished):
        value = trial.value or 0.0
        # a collapsed training has ended as it is; a paused one had less training than the others
        if trial.objective is None and trial.result.failure is None:
            for share, _ in _curve(trial, metric)[-1:]:
                gains.setdefault(share, gain_after(share, curves))
                value += gains[share]
        known.append(Measured(dict(trial.point), value, trial.sampling))
    contrasts = []
    if finished and len(known) >= FEWEST:
        contrasts = find_contrasts(parameters, known, direction == "maximize")
    return Importance(contrasts, len(known), len(unfinished))


def _curve(trial: TrialView, metric: str) -> list[tuple[float, float]]:
    """Return the evaluations of a trial, each with the share of the training after it; a finished
    one ends with its objective.
    """
    curve = trial.curve(metric)
    total = trial.total
    ends = []
    if trial.objective is not None:
        ends.append((1.0, trial.objective))
        if curve:
            total = curve[-1].step
    return [(min(at.step / total, 1.0), at.value) for at in curve if total] + ends
