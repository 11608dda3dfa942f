"""What ``search.budget`` buys, by the curves and the GPU hours so far.

How many trials start with it is decided by `affordable` in search/early_stopping/rungs.py.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from grposweep.config.search_budget import Budget
from grposweep.search.curves import Curve

# Of a limit in hours: a last trial that is slower than the others still finishes.
PLANNED = 0.95
# Of an amount, by which rounding may exceed it.
SAME = 1e-6


def buys(budget: Budget, curves: Sequence[Curve], hours: Callable[[], float]) -> float | None:
    """Return the completions that a budget buys; None while that is unknown."""
    totals = [curve.total for curve in curves if curve.total]
    if not budget.unit:
        return budget.amount
    if budget.unit == "x":
        return budget.amount * fmean(totals) if totals else None
    done = _done(curves)
    spent = hours() if done else 0.0
    return PLANNED * budget.amount * done / spent if spent else None


def at_least_spent(budget: Budget, curves: Sequence[Curve], hours: Callable[[], float]) -> str:
    """Return the budget as text, or what is spent if that is more.

    That is so after a smaller budget at a resume.
    """
    if budget.unit == "h":
        return f"{max(budget.amount, math.ceil(10 * hours()) / 10):.10g}h"
    bought = buys(budget, curves, hours)
    excess = _done(curves) / bought if bought else 0.0
    amount = budget.amount
    if excess > 1 + SAME:
        amount = math.ceil(10 * amount * excess) / 10
    return f"{amount:.10g}{budget.unit}"


def _done(curves: Sequence[Curve]) -> float:
    """Return the completions of all trials with an evaluation."""
    return sum(curve.done for curve in curves if curve.completions)
