"""``grposweep export``: one row a trial for spreadsheets and notebooks; dials as columns under their full names."""

import csv
import io
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from grposweep.report.read import SweepView
from grposweep.report.trial import TrialView

AFTER = ("objective_se", "start", "step", "completions", "seconds", "gpu_hours", "failure")


def render_rows(view: SweepView, form: str) -> str:
    """All trials as ``csv`` (with a header) or ``json`` (a list of objects)."""
    rows = [row(trial, view.dials, view.further) for trial in view.trials]
    if form == "json":
        return json.dumps(rows, indent=1) + "\n"
    text = io.StringIO()
    further = [f"objective.{name}" for name in view.further]
    columns = ["trial", "folder", "state", "role", *view.dials, "objective", *further, *AFTER]
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def row(trial: TrialView, dials: Iterable[str], further: Collection[str]) -> dict[str, Any]:
    """One trial; None (nothing in CSV) for what there is not, such as a dial that was not asked.

    ``further`` are objectives beside the first, each under ``objective.`` and its name: ``gpu_hours`` is always there.
    """
    values = trial.further(further) or [None] * len(further)
    known: Mapping[str, Any] = {
        "trial": trial.number,
        "folder": trial.name,
        "state": str(trial.state),
        "role": trial.role,
        **{name: trial.point.get(name) for name in dials},
    }
    return {
        **known,
        "objective": trial.objective,
        **{f"objective.{name}": value for name, value in zip(further, values, strict=True)},
        "objective_se": trial.error,
        "start": trial.start,
        "step": trial.step,
        "completions": trial.result.get("completions"),
        "seconds": round(trial.seconds, 3),
        "gpu_hours": round(trial.gpu_hours, 6),
        "failure": trial.reason or None,
    }
