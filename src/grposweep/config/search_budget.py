"""``search.budget``: what a search may cost, in whole trainings, GPU hours or completions.

Hours are a limit of every sweep. `grposweep.search.budget` says what a budget buys.
"""

import re
from dataclasses import dataclass

from grporecipe.errors import UserError

AMOUNT = r"(\d+(?:\.\d*)?(?:e\d+)?)([xh]?)"


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
        match = re.fullmatch(AMOUNT, str(text).strip())
        if match is None or not float(match[1]) > 0:
            raise UserError(
                f"search.budget={text}: it is an amount of whole trainings, GPU hours or "
                "completions. Set search.budget=20x, search.budget=12h or search.budget=500000."
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
