"""Whether two results differ by more than chance: from several seeds where there are some, else from the evaluations' errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

LEAST = 1e-6  # nobody's model of the errors is good for less


@dataclass(frozen=True)
class Values:
    """What one side was found to be worth: a value a seed, and the standard error of each one's evaluation."""

    values: Sequence[float]
    errors: Sequence[float | None]


def compare(one: Values, other: Values) -> str:
    """The difference of ``other`` to ``one``, how likely chance alone makes one as large, and what that rests on."""
    difference = fmean(other.values) - fmean(one.values)
    if len(one.values) > 1 and len(other.values) > 1:
        return f"{difference:+.4f}, {_welch(one.values, other.values)}"
    errors = [error for side in (one, other) for error in side.errors[:1]]
    if len(errors) < 2 or None in errors or not any(errors):
        return (
            f"{difference:+.4f}; neither several seeds a side nor standard errors: nothing says whether this is chance"
        )
    return f"{difference:+.4f} {_from_errors(difference, [error or 0.0 for error in errors])}"


def _welch(one: Sequence[float], other: Sequence[float]) -> str:
    """Welch's t-test, two-sided, unequal variances."""
    from scipy import stats  # half a second

    found = stats.ttest_ind(other, one, equal_var=False)
    if math.isnan(found.pvalue):
        return f"over {len(one)} and {len(other)} seeds that all agree: no spread to test against"
    return f"{_chance(found.pvalue)} (Welch's t-test over {len(one)} and {len(other)} seeds)"


def _from_errors(difference: float, errors: Sequence[float]) -> str:
    error = math.hypot(*errors)
    p = 2 * (1 - NormalDist().cdf(abs(difference) / error))
    return (
        f"± {error:.4f}, {_chance(p)} (z-test from the evaluations' standard errors: the choice of prompts only; "
        "without several seeds a side nothing is known of others)"
    )


def _chance(p: float) -> str:
    return f"p = {p:.2g}" if p >= LEAST else f"p < {LEAST:g}"
