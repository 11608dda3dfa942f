"""The leaders of a search on fresh seeds: which replicates are wanted next, who is out, who has won, who is tied with it.

A search's best value is partly luck: the luckiest of many is looked at. So its leaders run again on seeds that it has not
seen, all of them on the same ones, and only these count. Everything here is a function of what is known so far.

Method: a race (Maron and Moore 1994, Hoeffding races; Birattari et al. 2002, F-Race) by paired t-intervals. All leaders get
the first FIRST_LOOK seeds; from then on, seed by seed, whoever is worse than the leader of the moment with confidence is out.
A look at one pair errs with a chance of CHANCE / (pairs with the best x looks), so that the truly best leader is ever
dropped with a chance of at most CHANCE (Bonferroni; comparisons with the best only, as in Hsu 1984, Constrained
simultaneous confidence intervals for multiple comparisons with the best). Whoever is not told apart from the winner in the
end is tied with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from grposweep.search.estimate import CHANCE, Estimate, difference, estimate

FIRST_LOOK = 3  # seeds: two tell hardly anything (t is 38 and more), and every look has its price
APART = 1000  # two fresh seeds: rank r of a training draws with seed + r, and no two seeds may share a stream


@dataclass(frozen=True)
class Runner:
    """A point in the race: its trial in the search, and its results on fresh seeds, larger is better; None: it failed there."""

    number: int
    results: Mapping[int, float | None] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        """Whether some training of it came to nothing: a point that does not always train is no winner."""
        return None in self.results.values()

    @cached_property
    def values(self) -> dict[int, float]:
        """The results that are numbers."""
        return {seed: value for seed, value in self.results.items() if value is not None}

    def mean(self, seeds: Iterable[int]) -> float:
        """Its mean over these seeds."""
        return estimate([self.values[seed] for seed in seeds]).mean


@dataclass(frozen=True)
class Standing:
    """A race at one moment: those still in it (best first once it is over), the others with the reason, what is wanted next."""

    alive: tuple[Runner, ...]
    out: Mapping[int, str] = field(default_factory=dict)
    wanted: tuple[tuple[int, int], ...] = ()  # number of the trial, seed; in order

    @property
    def winner(self) -> Runner | None:
        """The best on fresh seeds; None before the end, or where nobody is left."""
        return self.alive[0] if self.alive and not self.wanted else None

    @property
    def tied(self) -> tuple[Runner, ...]:
        """Those that nothing tells apart from the winner."""
        return self.alive[1:] if self.winner else ()

    @property
    def places(self) -> dict[int, tuple[int, str]]:
        """By number of the trial: its place from 0, and its fate: best, tied, unfinished, or why it is out."""
        first, others = ("best", "tied") if self.winner else ("unfinished", "unfinished")
        alive = [(runner.number, others if index else first) for index, runner in enumerate(self.alive)]
        return {number: (place, fate) for place, (number, fate) in enumerate([*alive, *self.out.items()])}


def fresh_seeds(own: int, count: int) -> tuple[int, ...]:
    """Seeds that a search with this one does not see."""
    return tuple(own + APART * (index + 1) for index in range(count))


def race(runners: Sequence[Runner], seeds: Sequence[int]) -> Standing:
    """The standing of these runners, the search's best one first, over these fresh seeds (two or more)."""
    alive, out = list(runners), dict[int, str]()
    first = min(FIRST_LOOK, len(seeds))
    looks = range(first, len(seeds) + 1)
    chance = CHANCE / max((len(runners) - 1) * len(looks), 1)
    for count in looks:
        out |= {runner.number: "failed on a fresh seed" for runner in alive if runner.has_failed}
        alive = [runner for runner in alive if not runner.has_failed]
        opened = seeds[:count]
        wanted = [(r.number, seed) for seed in opened for r in alive if seed not in r.results]
        if wanted:
            return Standing(tuple(alive), out, tuple(wanted))
        alive.sort(key=lambda runner: -runner.mean(opened))  # stable: of two equal ones the search's better
        beaten = [runner for runner in alive[1:] if _is_beaten(runner, alive[0], opened, chance)]
        out |= {runner.number: f"worse on {count} fresh seeds" for runner in beaten}
        alive = [runner for runner in alive if runner not in beaten]
        if len(alive) == 1 < len(runners):
            break  # more seeds would change no decision
    return Standing(tuple(alive), out)


def _is_beaten(runner: Runner, leader: Runner, seeds: Sequence[int], chance: float) -> bool:
    """Whether the leader is better beyond this chance of being wrong (one-sided)."""
    ours, theirs = ({seed: r.values[seed] for seed in seeds} for r in (leader, runner))
    return difference(ours, theirs, 2 * chance).low > 0


def on_fresh_seeds(runner: Runner) -> Estimate | None:
    """What a point is worth on the fresh seeds that it has run; each interval by itself misses with a chance of CHANCE."""
    return estimate(list(runner.values.values())) if runner.values else None
