"""A sweep for notebooks: its trials and curves as pandas frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from grporecipe.errors import UserError
from grporecipe.files import Json
from grposweep.report._leaderboard import contents_read
from grposweep.report.rows import HISTORY, build_row, history_rows, trial_rows
from grposweep.report.view import SweepView, open_sweep

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LoadedSweep:
    """A sweep's folder as it was when it was loaded."""

    view: SweepView

    @cached_property
    def trials(self) -> "pandas.DataFrame":
        """One row per trial, indexed by number: folder, state, parameters, objective, cost, the
        last value of each metric.
        """
        return _frame(trial_rows(self.view), ["trial"]).set_index("trial")

    @cached_property
    def history(self) -> "pandas.DataFrame":
        """One row per logged value: trial, step (optimizer steps), completions, metric, value."""
        return _frame(list(history_rows(self.view)), HISTORY)

    @property
    def best(self) -> Json | None:
        """The best trial's row, as `grposweep export` writes it; None before a trial has
        finished.
        """
        best = self.view.best
        if best is None:
            return None
        return build_row(self.view, best, contents_read(self.view)[best.number])

    def __repr__(self) -> str:
        return (
            f"<sweep {self.view.name}: {len(self.view.trials)} trials, {self.view.progress_text}>"
        )


def load_sweep(name: str | Path | None = None, outputs: str | Path = "outputs") -> LoadedSweep:
    """Load a sweep by its name under ``outputs`` or its path; the newest if none is named.

    Raises UserError if there is no such sweep.
    """
    named = None if name is None else str(name)
    return LoadedSweep(open_sweep(named, Path(outputs)))


def _frame(rows: list[Json], columns: Sequence[str]) -> "pandas.DataFrame":
    try:
        # half a second that only notebooks pay
        import pandas
    except ImportError as error:
        raise UserError(
            "Data frames need pandas, which is not installed. Run pip install pandas."
        ) from error
    if not rows:
        return pandas.DataFrame(columns=list(columns))
    return pandas.DataFrame(rows)
