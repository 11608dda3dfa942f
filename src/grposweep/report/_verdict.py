"""Decide whether two points differ by more than chance. Every command asks this one test."""

import math
from dataclasses import dataclass
from statistics import fmean, variance

from grporecipe.files import finite_or_none
from grposweep.report._ranking import RankedPoint, sampling_of, values_of
from grposweep.search.replication import CHANCE, margin_of
from grposweep.search.sampling import student_p

# smaller p-values are not meaningful
LEAST = 1e-6


@dataclass(frozen=True)
class Verdict:
    """The difference of two points. ``half`` of its 95 % interval and ``p`` are None if nothing
    tells its spread.
    """

    difference: float
    half: float | None
    p: float | None
    test: str

    @property
    def is_tie(self) -> bool:
        """Return whether the points cannot be told apart."""
        if self.p is None:
            return self.difference == 0
        return self.p >= CHANCE

    def __str__(self) -> str:
        if self.p is None or self.half is None:
            return (
                f"{self.difference:+.4f}; neither seeds nor standard errors tell its spread, so "
                "this may be chance"
            )
        p = f"p = {self.p:.2g}" if self.p >= LEAST else f"p < {LEAST:g}"
        return f"{self.difference:+.4f} ± {self.half:.4f} (95 %), {p} ({self.test})"


def compare_points(first: RankedPoint, other: RankedPoint, among: int = 1) -> Verdict:
    """Return the difference ``other - first``, tested over seeds if both have two, else over
    prompts.

    It is paired by seed and by prompt if both share them. Otherwise Student's t has the
    degrees of freedom of the smaller side (`search.analysis.mean_difference`). ``among``:
    comparisons from which this one was chosen by its results; p and the interval hold for all of
    them (Bonferroni).
    """
    shared = [seed for seed in first.by_seed if seed in other.by_seed]
    squared = 0.0
    freedom = 0
    if len(shared) > 1:
        ours = [first.by_seed[seed] for seed in shared]
        theirs = [other.by_seed[seed] for seed in shared]
        pairs = zip(values_of(ours), values_of(theirs), strict=True)
        squared = variance([there - here for here, there in pairs]) / len(shared)
        freedom = len(shared) - 1
        test = f"t-test, paired over {len(shared)} seeds"
    else:
        ours = first.seeds
        theirs = other.seeds
        freedom = min(len(ours), len(theirs)) - 1
        if freedom:
            squared = variance(first.values) / len(ours) + variance(other.values) / len(theirs)
        test = f"t-test over {len(ours)} and {len(theirs)} seeds"

    sampling = sampling_of(theirs).minus(sampling_of(ours))
    difference = fmean(values_of(theirs)) - fmean(values_of(ours))
    if not freedom:
        test = "z-test from the evaluations' standard errors"
        if sampling.means:
            test = f"t-test, paired over {len(sampling.means):,} prompts"
    if among > 1:
        test += f", for the best of {among:,} comparisons"
    half = sampling.margin(CHANCE / among)
    if freedom:
        half = margin_of(squared, freedom, sampling, CHANCE / among)
        half = finite_or_none(sampling.cut(half, difference))
    else:
        test += "; it covers the choice of prompts. To cover seeds, train several on each side"

    chances = [sampling.p_value(difference)]
    if squared:
        chances.append(student_p(freedom, difference / math.sqrt(squared)))
    adjusted = [min(chance * among, 1.0) for chance in chances if chance is not None]
    return Verdict(difference, half, max(adjusted, default=None), test)
