"""``search.budget``: what a search may cost, in whole trainings, GPU hours or completions. Hours
are a limit of every sweep.

How many trials of an adaptive search start with it is decided by `affordable` in
search/early_stopping/rank.py.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from grporecipe.diagnose.guards import Curve
from grporecipe.errors import UserError

# of a limit in hours: a last trial that is slower than the others still finishes
PLANNED = 0.95
# of an amount, by which rounding may exceed it
SAME = 1e-6
AMOUNT = re.compile(r"(\d+(?:\.\d*)?(?:e\d+)?)([xh]?)")


@dataclass(frozen=True)
class Budget:
    """``search.budget``: an amount of whole trainings (``x``), of GPU hours (``h``), or of
    completions (no unit).
    """

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read a budget. Raises UserError for what is none."""
        match = AMOUNT.fullmatch(str(text).strip())
        if match is None or not float(match[1]) > 0:
            raise UserError(
                f"search.budget={text}: it is an amount of whole trainings, GPU hours or "
                "completions. Set search.budget=20x, "
                "search.budget=12h or search.budget=500000."
            )
        if match[2] == "x" and float(match[1]) < 1:
            raise UserError(
                f"search.budget={text}: it is less than one training, so no trial could finish. "
                "Set search.budget=20x."
            )
        return cls(float(match[1]), match[2])

    @property
    def hours(self) -> float | None:
        """The GPU hours that it limits every sweep to; None for another unit."""
        return self.amount if self.unit == "h" else None

    def completions(self, curves: Sequence[Curve], hours: Callable[[], float]) -> float | None:
        """Return the completions that it buys, by the trainings and the GPU hours so far; None
        while that is unknown.
        """
        totals = [curve.total for curve in curves if curve.total]
        if not self.unit:
            return self.amount
        if self.unit == "x":
            return self.amount * fmean(totals) if totals else None
        done = _done(curves)
        spent = hours() if done else 0.0
        return PLANNED * self.amount * done / spent if spent else None

    def kept(self, curves: Sequence[Curve], hours: Callable[[], float]) -> str:
        """Return the amount as text, or what is spent if that is more, as after a smaller budget at
        a resume.
        """
        if self.unit == "h":
            return f"{max(self.amount, math.ceil(10 * hours()) / 10):.10g}h"
        bought = self.completions(curves, hours)
        excess = _done(curves) / bought if bought else 0.0
        amount = self.amount if excess <= 1 + SAME else math.ceil(10 * self.amount * excess) / 10
        return f"{amount:.10g}{self.unit}"


def _done(curves: Sequence[Curve]) -> float:
    """Return the completions that trials were trained for, apart from those without an
    evaluation.
    """
    return sum(curve.done for curve in curves if curve.completions)
