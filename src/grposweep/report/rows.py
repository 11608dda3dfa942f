"""The trials of a sweep as rows for other programs: CSV and JSON, with learning curves as well."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from grporecipe.errors import UserError
from grporecipe.files import Config, Json
from grposweep.report._leaderboard import contents_read
from grposweep.report.trial_view import TrialView
from grposweep.report.view import SweepView
from grposweep.storage.records import read_metrics

REPEATS = ("role", "seed", "of")

AFTER = (
    "rank",
    "ranked_by",
    "objective_se",
    "start",
    "step",
    "completions",
    "seconds",
    "gpu_hours",
    "files",
    "failure",
)


def render_rows(view: SweepView, form: str, chosen: Sequence[str] = ()) -> str:
    """Return all trials as ``csv`` (with a header) or ``json`` (a list of objects).

    ``chosen`` are the columns, a parameter's also by the last part of its name; without them all.
    Raises UserError for a column that there is not.
    """
    rows = trial_rows(view)
    columns = ["trial", "folder", "state", *REPEATS, *view.parameters, "objective", *AFTER]
    if rows:
        columns = list(rows[0])
    names = [_whole_name(name, columns) for name in chosen]
    unknown = [name for name in names if name not in columns]
    if unknown:
        near = get_close_matches(unknown[0], columns, n=3) or columns[:12]
        raise UserError(
            f"--columns {','.join(unknown)}: there is no such column. Set some of "
            f"{', '.join(near)}."
        )
    shown = []
    for row in rows:
        shown.append({name: row[name] for name in names or columns})
    if form == "json":
        return json.dumps(shown, indent=1) + "\n"
    return _csv(shown, names or columns)


def _whole_name(name: str, columns: Sequence[str]) -> str:
    """Return the only column that ends with this name, or else the name itself."""
    ends = [column for column in columns if column.endswith(f".{name}")]
    return ends[0] if name not in columns and len(ends) == 1 else name


def _csv(rows: Sequence[Config], columns: Sequence[str]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def trial_rows(view: SweepView) -> list[Json]:
    """Return one row per trial: its columns, then the last value of each metric that any trial has,
    by name.

    A metric that has the name of a column is left out; it is in the history.
    """
    pairs = []
    missing: Json = {}
    read = contents_read(view)
    for trial in view.trials:
        last: Json = {}
        for line in read_metrics(trial.path):
            last |= line.metrics()
        missing |= dict.fromkeys(last)
        pairs.append((build_row(view, trial, read[trial.number]), last))
    missing = dict(sorted(missing.items()))
    return [{**row, **missing, **last, **row} for row, last in pairs]


def build_row(view: SweepView, trial: TrialView, files: str) -> Json:
    """Return one trial's columns; None (empty in CSV) for a missing value, such as an inactive
    parameter.

    A trial on a fresh seed repeats the trial ``of``.

    ``files`` numbers the contents of reward and data files that it read; trials with different
    numbers are not to be compared. ``rank`` and ``ranked_by`` are the place and the value of the
    trial's point: its mean on fresh seeds if it ran on some.
    """
    rank, point = view.places.get(trial.number, (None, None))
    return {
        "trial": trial.number,
        "folder": trial.name,
        "state": str(trial.state),
        "role": trial.role,
        "seed": trial.seed or view.baseline.get("seed"),
        "of": trial.attributes.get("of"),
        **{name: trial.point.get(name) for name in view.parameters},
        "objective": trial.objective,
        "rank": rank,
        "ranked_by": point and point.value,
        "objective_se": trial.error,
        "start": trial.start,
        "step": trial.step,
        "completions": trial.result.completions,
        "seconds": round(trial.seconds, 3),
        "gpu_hours": round(trial.gpu_hours, 6),
        "files": files,
        "failure": trial.reason or None,
    }


HISTORY = ("trial", "step", "completions", "metric", "value")


def history_rows(view: SweepView) -> Iterator[Json]:
    """Yield every value of every metric of every trial: after ``step`` optimizer steps and
    ``completions`` generated.
    """
    for trial in view.trials:
        for row in read_metrics(trial.path):
            columns = {
                "trial": trial.number,
                "step": row.step,
                "completions": row.line.get("completions"),
            }
            for name, value in row.metrics().items():
                yield {**columns, "metric": name, "value": value}


def render_history(view: SweepView, form: str) -> str:
    """Return all metrics of all trials in long format, one row per value, as ``csv`` or
    ``json``.
    """
    rows = list(history_rows(view))
    return json.dumps(rows) + "\n" if form == "json" else _csv(rows, HISTORY)
