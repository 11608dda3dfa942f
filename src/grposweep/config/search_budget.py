"""``search.budget``: what a search may cost, in whole trainings, GPU hours or completions."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from grporecipe.diagnose.guards import Curve
from grporecipe.errors import UserError

AMOUNT = re.compile(r"(\d+(?:\.\d*)?(?:e\d+)?)([xh]?)")


@dataclass(frozen=True)
class Budget:
    """``search.budget``: an amount of whole trainings (``x``), of GPU hours (``h``), or of completions (no unit)."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read a budget. Raises UserError for what is none."""
        match = AMOUNT.fullmatch(str(text).strip())
        if match is None or not float(match[1]) > 0:
            raise UserError(
                f"search.budget={text}: it is an amount of whole trainings, GPU hours or completions. Set search.budget=20x, "
                "search.budget=12h or search.budget=500000."
            )
        if match[2] == "x" and float(match[1]) < 1:
            raise UserError(
                f"search.budget={text}: it is less than one training, so no trial could finish. Set search.budget=20x."
            )
        return cls(float(match[1]), match[2])

    def completions(self, curves: Sequence[Curve], hours: Callable[[], float]) -> float | None:
        """Return the completions that it buys, by the trainings and the GPU hours so far; None while that is unknown."""
        totals = [curve.total for curve in curves if curve.total]
        if not self.unit:
            return self.amount
        if self.unit == "x":
            return self.amount * fmean(totals) if totals else None
        done = sum(curve.done for curve in curves if curve.completions)
        spent = hours() if done else 0.0
        return self.amount * done / spent if spent else None
