"""Replicate the leaders of a search on fresh seeds, and rank them by intervals of Student's t,
paired by seed.

A search's best value is partly luck, because the luckiest of many is chosen. So its leaders run
again, all on the same seeds that the search has not seen, and only these results count. Everything
here is a pure function of what is known so far.

Method: a race (Maron and Moore 1994, Hoeffding races; Birattari et al. 2002, F-Race) by paired
t-intervals. All leaders get the first FIRST_LOOK seeds. From then on, seed by seed, each that is
worse than the current leader with confidence is out. The leader of a look was chosen by its values,
so a look at it and one other errs with a chance of CHANCE / (ordered pairs x looks). Then any of
several equal leaders is dropped with a chance of at most CHANCE (Bonferroni). A leader that does
not differ significantly from the winner at the end is tied with it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from grporecipe.files import Config
from grposweep.search.sampling import UNKNOWN, Sampling, average, student_quantile

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

# of an interval that misses
CHANCE = 0.05


@dataclass(frozen=True)
class Estimate:
    """A mean over ``count`` seeds and half the width of its interval, which is infinite for a
    single seed.
    """

    mean: float
    margin: float
    count: int

    @property
    def low(self) -> float:
        """Return the interval's lower end."""
        return self.mean - self.margin

    @property
    def high(self) -> float:
        """Return the interval's upper end."""
        return self.mean + self.margin

    @property
    def excludes_zero(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.margin < abs(self.mean)

    def __str__(self) -> str:
        if math.isinf(self.margin):
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} ± {self.margin:.4f}"


def estimate(
    values: Sequence[float], chance: float = CHANCE, sampling: Sampling = UNKNOWN
) -> Estimate:
    """Return the mean of at least one value with its two-sided interval: mean ± t(1 - chance/2; n -
    1) s / sqrt(n).

    The interval is never narrower than the ``sampling`` of this mean makes it, because few rewards
    of 0 and 1 agree by chance, and never wider than rewards from 0 to 1 allow. Equal values of
    unknown sampling have no interval. Source: Student
    (1908), The probable error of a mean. It assumes that results over seeds are normally
    distributed.
    """
    count = len(values)
    mean = fmean(values)
    squared = math.fsum((value - mean) ** 2 for value in values) / max(count - 1, 1) / count
    margin = margin_of(squared, count - 1, sampling, chance)
    return Estimate(mean, sampling.cut(margin, mean), count)


def step_down(differences: Sequence[Callable[[float], Estimate]]) -> list[Estimate]:
    """Return differences with intervals that exclude 0 by chance in any of them in at most CHANCE
    of all cases.

    Each one returns its difference for a chance of error. The intervals that exclude 0 with a
    chance of CHANCE / number are certain, and those that remain share CHANCE again. Source: Holm
    (1979), A simple sequentially rejective multiple test procedure.
    """
    certain: dict[int, Estimate] = {}
    while len(certain) < len(differences):
        rest = [index for index in range(len(differences)) if index not in certain]
        tried = {index: differences[index](CHANCE / len(rest)) for index in rest}
        new = {index: one for index, one in tried.items() if one.excludes_zero}
        certain |= new or tried
    return [certain[index] for index in range(len(differences))]


def margin_of(squared: float, freedom: int, sampling: Sampling, chance: float = CHANCE) -> float:
    """Return half of an interval from the squared standard error over seeds and the sampling;
    infinite if unknown.
    """
    if freedom < 1 or (squared == 0 and sampling.error is None):
        return math.inf
    over_seeds = student_quantile(freedom, 1 - chance / 2) * math.sqrt(squared) if squared else 0.0
    return max(over_seeds, sampling.margin(chance) or 0.0)


def difference(
    one: "Candidate", other: "Candidate", chance: float = CHANCE, seeds: Iterable[int] = ()
) -> Estimate:
    """Return the difference between two points on these seeds, or on all that they share (at least
    one).

    Both saw the same prompts in the same order and were evaluated with the same random numbers
    under one seed, so what a seed does to both cancels (common random numbers: Law, Simulation
    Modeling and Analysis, section 11.2); no spread is taken to be equal to another. What the choice
    of prompts does to both cancels too, as far as it is known by prompt.
    """
    shared = list(seeds) or sorted(one.values.keys() & other.values.keys())
    differences = [one.values[seed] - other.values[seed] for seed in shared]
    return estimate(differences, chance, one.sampling(shared).minus(other.sampling(shared)))


# seeds: two tell hardly anything (t is 38 and more), and every look has its price
FIRST_LOOK = 3
# two fresh seeds: rank r of a training draws with seed + r, and no two seeds may share a stream
APART = 1000


@dataclass(frozen=True)
class Candidate:
    """A point in the race: its trial in the search, and its results on fresh seeds, larger is
    better; None: it failed there.
    """

    number: int
    results: Mapping[int, float | None] = field(default_factory=dict)
    # of the results, by seed
    samplings: Mapping[int, Sampling] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        """Return whether one of its trainings failed: a point that does not always train cannot
        win.
        """
        return None in self.results.values()

    @cached_property
    def values(self) -> dict[int, float]:
        """Return the results that are numbers."""
        return {seed: value for seed, value in self.results.items() if value is not None}

    def mean(self, seeds: Iterable[int]) -> float:
        """Return its mean over these seeds."""
        return fmean([self.values[seed] for seed in seeds])

    def sampling(self, seeds: Iterable[int]) -> Sampling:
        """Return the sampling of its mean over these seeds."""
        return average([self.samplings.get(seed, UNKNOWN) for seed in seeds])

    @property
    def overall(self) -> Estimate:
        """Return its mean over all its seeds."""
        return estimate(list(self.values.values()), sampling=self.sampling(self.values))


@dataclass(frozen=True)
class Ranking:
    """The state of a race: candidates still in it (best first at the end), the others with the
    reason, and the next runs.
    """

    alive: tuple[Candidate, ...]
    out: Mapping[int, str] = field(default_factory=dict)
    # number of the trial, seed; in order
    wanted: tuple[tuple[int, int], ...] = ()
    # from which that of the winner and another candidate is chosen
    comparisons: int = 1

    @property
    def winner(self) -> Candidate | None:
        """Return the best on fresh seeds; None before the end, or if none is left."""
        return self.alive[0] if self.alive and not self.wanted else None

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """Return the candidates that cannot be distinguished from the winner."""
        return self.alive[1:] if self.winner else ()

    @property
    def places(self) -> dict[int, tuple[int, str]]:
        """Return, by trial number, the place from 0 and the result: best, tied, unfinished, or why
        it is out.
        """
        winner = self.winner
        fate = "tied" if winner else "unfinished"
        fates = {runner.number: fate for runner in self.alive}
        if winner:
            fates[winner.number] = "best"
        fates |= self.out
        return {number: (rank, fate) for rank, (number, fate) in enumerate(fates.items())}


def fresh_seeds(own: int, count: int) -> tuple[int, ...]:
    """Return seeds that a search with this seed does not use."""
    return tuple(own + APART * (index + 1) for index in range(count))


def race(runners: Sequence[Candidate], seeds: Sequence[int]) -> Ranking:
    """Rank these candidates, the search's best one first, over these fresh seeds (two or more)."""
    alive = list(runners)
    out = dict[int, str]()
    first = min(FIRST_LOOK, len(seeds))
    looks = range(first, len(seeds) + 1)
    pairs = len(runners) * (len(runners) - 1) // 2
    comparisons = max(pairs * len(looks), 1)
    for count in looks:
        out |= {
            runner.number: "not finished on a fresh seed" for runner in alive if runner.has_failed
        }
        alive = [runner for runner in alive if not runner.has_failed]
        opened = seeds[:count]
        wanted = _wanted(alive, opened)
        if wanted:
            return Ranking(tuple(alive), out, wanted, comparisons)
        # stable: of two equal ones the search's better
        alive.sort(key=lambda runner: -runner.mean(opened))
        # An interval errs at both ends, so it counts each pair once.
        beaten = [
            runner
            for runner in alive[1:]
            if difference(alive[0], runner, CHANCE / comparisons, opened).low > 0
        ]
        out |= {runner.number: f"worse on {count} fresh seeds" for runner in beaten}
        alive = [runner for runner in alive if runner not in beaten]
        if len(alive) == 1 < len(runners):
            # more seeds would change no decision
            break
    return Ranking(tuple(alive), out, comparisons=comparisons)


def _wanted(runners: Sequence[Candidate], seeds: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs that are missing, seed by seed."""
    runs = product(seeds, runners)
    return tuple([(r.number, seed) for seed, r in runs if seed not in r.results])


def on_fresh_seeds(runner: Candidate) -> Estimate | None:
    """Return a point's mean on the fresh seeds that it has run; its interval misses with a chance
    of CHANCE.
    """
    return runner.overall if runner.values else None


# a replicate's role
CONFIRM = "confirm"


def is_replicate(trial: "FrozenTrial") -> bool:
    """Return whether a trial repeats another trial's point on a fresh seed."""
    return bool(trial.user_attrs.get("role") == CONFIRM)


class EndedTrial(NamedTuple):
    """A trial that has ended: its result, larger is better (None: it failed), and the study's
    attributes.
    """

    number: int
    value: float | None
    attributes: Config
    sampling: Sampling = UNKNOWN


@dataclass(frozen=True)
class Replication:
    """The leaders of the search are evaluated again on these fresh seeds; all points (``leaders``
    None) without a race.

    ``own`` is the search's seed, where its results count as well because nothing was chosen by
    them.
    """

    seeds: tuple[int, ...]
    leaders: int | None
    own: int | None = None

    def most(self, points: int) -> int:
        """Return the largest number of replicates."""
        repeated = points if self.leaders is None else min(points, self.leaders)
        return len(self.seeds) * repeated

    def ranking(self, ended: Sequence[EndedTrial]) -> Ranking:
        """Return the state of the race, given all trials that have ended."""
        ranked = []
        # of each point, by seed
        replicates: dict[int, dict[int, EndedTrial]] = {}
        for trial in ended:
            of = trial.attributes.get("of")
            seed = trial.attributes.get("seed")
            if trial.attributes.get("role") != CONFIRM:
                if trial.value is not None:
                    ranked.append((-trial.value, trial.number, trial))
            elif isinstance(of, int) and isinstance(seed, int):
                replicates.setdefault(of, {})[seed] = trial
        runners = []
        for _, number, trial in sorted(ranked)[: self.leaders]:
            by_seed = {} if self.own is None else {self.own: trial}
            by_seed |= replicates.get(number, {})
            values = {seed: trial.value for seed, trial in by_seed.items()}
            samplings = {seed: trial.sampling for seed, trial in by_seed.items()}
            runners.append(Candidate(number, values, samplings))
        if self.leaders is not None:
            return race(runners, self.seeds)
        best_first = sorted(runners, key=lambda runner: -runner.mean(runner.values))
        return Ranking(tuple(best_first), wanted=_wanted(runners, self.seeds))


def build_replication(sampler: str, seed: int, seeds: int, leaders: int) -> Replication | None:
    """Return the replication that ``search.seeds`` configures for this base seed; None without
    replicates.
    """
    if sampler == "one_factor":
        return Replication(fresh_seeds(seed, seeds - 1), leaders=None, own=seed)
    return Replication(fresh_seeds(seed, seeds), leaders) if seeds else None
