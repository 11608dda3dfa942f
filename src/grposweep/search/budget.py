"""What ``search.budget`` buys, by the curves and the GPU hours so far.

How many trials start with it is decided by `RankPolicy.trials` in search/early_stopping/rank.py.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from grposweep.config.search_budget import Budget
from grposweep.search.curves import Curve

# Of a limit in hours: a last trial that is slower than the others still finishes.
PLANNED = 0.95


def buys(budget: Budget, curves: Sequence[Curve], hours: Callable[[], float]) -> float | None:
    """Return the completions that a budget buys; None while that is unknown."""
    totals = [curve.total for curve in curves if curve.total]
    if not budget.unit:
        return budget.amount
    if budget.unit == "x":
        return budget.amount * fmean(totals) if totals else None
    done = sum(curve.done for curve in curves if curve.completions)
    spent = hours() if done else 0.0
    return PLANNED * budget.amount * done / spent if spent else None
