"""The trials of a sweep as rows for other programs: CSV, JSON, and tables in LaTeX and Markdown; with learning curves as well."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from grporecipe.errors import UserError
from grposweep.report.leaderboard import contents_read
from grposweep.report.trial_view import TrialView
from grposweep.report.view import SweepView
from grposweep.storage.records import read_metrics

REPEATS = ("role", "seed", "of")

AFTER = (
    "rank", "ranked_by", "objective_se", "start", "step", "completions", "seconds", "gpu_hours", "files", "failure",
)  # fmt: skip


def render_rows(view: SweepView, form: str, chosen: Sequence[str] = ()) -> str:
    """Return all trials as ``csv`` (with a header), ``json`` (a list of objects), or a ``markdown`` or ``latex`` table.

    ``chosen`` are the columns, a parameter's also by the last part of its name; without them all. A table for readers has a row
    per point instead, best first, as the leaderboard. With chosen columns it has the trials with a result, or all if ``state`` is
    one of them. Raises UserError for a column that there is not.
    """
    if form in ("markdown", "latex") and not chosen:
        points = _point_rows(view)
        columns = list(points[0]) if points else []
        return _readers_table([[_readers_cell(row[name]) for name in columns] for row in points], columns, form)
    rows = trial_rows(view)
    known = list(rows[0]) if rows else ["trial", "folder", "state", *REPEATS, *view.parameters, "objective", *AFTER]
    chosen = [_whole_name(name, known) for name in chosen]
    if unknown := [name for name in chosen if name not in known]:
        near = get_close_matches(unknown[0], known, n=3) or known[:12]
        raise UserError(f"--columns {','.join(unknown)}: there is no such column. Set some of {', '.join(near)}.")
    if form in ("markdown", "latex"):
        rows = [row for row in rows if row["rank"] is not None or "state" in chosen]
        rows.sort(key=lambda row: (row["rank"] is None, row["rank"] or 0, row["trial"]))
        heads = {"objective": view.metric, "objective_se": "standard error", "gpu_hours": view.hours_unit}
        cells = [[_readers_cell(row[name]) for name in chosen] for row in rows]
        return _readers_table(cells, [heads.get(name, name) for name in chosen], form)
    rows = [{name: row[name] for name in chosen or known} for row in rows]
    return json.dumps(rows, indent=1) + "\n" if form == "json" else _csv(rows, chosen or known)


def _whole_name(name: str, known: Sequence[str]) -> str:
    """Return the only column that ends with this name, or else the name itself."""
    ends = [column for column in known if column.endswith(f".{name}")]
    return ends[0] if name not in known and len(ends) == 1 else name


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _point_rows(view: SweepView) -> list[dict[str, Any]]:
    """Return one row per point: its value and 95 % interval as the leaderboard has them, and the seeds behind it.

    If trials read different contents of the user's files, ``files`` numbers the contents.
    """
    read = contents_read(view)
    several = len(set(read.values())) > 1
    return [
        {
            "rank": rank, "trial": point.first.number,
            **{name: point.first.point.get(name) for name in view.parameters if name != "seed"},
            view.metric: point.value, "± 95 %": point.own.half, "seeds": len(point.seeds),
            view.hours_unit: sum(trial.gpu_hours for trial in point.trials),
            **({"files": read[point.first.number]} if several else {}),
        }
        for rank, point in enumerate(view.leaderboard, 1)
    ]  # fmt: skip


def _readers_cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())


def _readers_table(rows: Sequence[Sequence[str]], columns: Sequence[str], form: str) -> str:
    """Return a table for a README (Markdown) or a paper (LaTeX with booktabs)."""
    if form == "markdown":
        cells = [[name.replace("|", r"\|") for name in line] for line in (columns, ["---"] * len(columns), *rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in cells)
    head, *body = (" & ".join(map(_as_latex, line)) + r" \\" for line in (columns, *rows))
    kinds = "".join("r" if _is_number([row[at] for row in rows]) else "l" for at in range(len(columns)))
    start = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*start, *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _is_number(column: Sequence[str]) -> bool:
    """Return whether a column has numbers only, which a paper aligns on the right."""
    return all(re.fullmatch(r"-?[\d.]*(e[+-]\d+)?", cell) for cell in column)


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
}


def _as_latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def trial_rows(view: SweepView) -> list[dict[str, Any]]:
    """Return one row per trial: its columns, then the last value of each metric that any trial has, by name.

    A metric that has the name of a column is left out; it is in the history.
    """
    last = [
        {name: value for row in read_metrics(trial.path) for name, value in row.metrics().items()}
        for trial in view.trials
    ]
    missing = dict.fromkeys(sorted(set().union(*last)))
    read = contents_read(view)
    rows = [build_row(view, trial, read[trial.number]) for trial in view.trials]
    return [{**row, **missing, **metrics, **row} for row, metrics in zip(rows, last, strict=True)]


def build_row(view: SweepView, trial: TrialView, files: str | None = None) -> dict[str, Any]:
    """Return one trial's columns; None (empty in CSV) for a missing value, such as an inactive parameter.

    A trial on a fresh seed repeats the trial ``of``.

    ``files`` numbers the contents of reward and data files that it read; trials with different numbers are not to be compared.
    ``rank`` and ``ranked_by`` are the place and the value of the trial's point: its mean on fresh seeds if it ran on some.
    """
    rank, point = view.places.get(trial.number, (None, None))
    return {
        "trial": trial.number, "folder": trial.name, "state": str(trial.state), "role": trial.role,
        "seed": trial.seed or view.baseline.get("seed"), "of": trial.attributes.get("of"),
        **{name: trial.point.get(name) for name in view.parameters},
        "objective": trial.objective,
        "rank": rank, "ranked_by": point and point.value,
        "objective_se": trial.error, "start": trial.start, "step": trial.step, "completions": trial.result.completions,
        "seconds": round(trial.seconds, 3), "gpu_hours": round(trial.gpu_hours, 6),
        "files": files or contents_read(view)[trial.number], "failure": trial.reason or None,
    }  # fmt: skip


HISTORY = ("trial", "step", "completions", "metric", "value")


def history_rows(view: SweepView) -> Iterator[dict[str, Any]]:
    """Yield every value of every metric of every trial: after ``step`` optimizer steps and ``completions`` generated."""
    for trial in view.trials:
        for row in read_metrics(trial.path):
            place = {"trial": trial.number, "step": row.step, "completions": row.line.get("completions")}
            for name, value in row.metrics().items():
                yield {**place, "metric": name, "value": value}


def render_history(view: SweepView, form: str) -> str:
    """Return all metrics of all trials in long format, one row per value, as ``csv`` or ``json``."""
    rows = list(history_rows(view))
    return json.dumps(rows) + "\n" if form == "json" else _csv(rows, HISTORY)
