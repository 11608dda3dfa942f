"""Text and tables of the page: summary, leaderboard, pruned points, failures, cost, provenance."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from grposweep.labels import count, label_text, short, short_names
from grposweep.redaction import redact
from grposweep.report.cost import seconds_left
from grposweep.report.ranking import RankedPoint
from grposweep.report.tables import format_duration, format_effect, format_estimate
from grposweep.report.trial_view import State, TrialView
from grposweep.report.view import SweepView
from grposweep.storage.results import failure_label

DIFF_LINES = 400  # of uncommitted changes on the page


def page_content(view: SweepView) -> dict[str, Any]:
    """Return the template's variables."""
    return {
        "name": view.name,
        "metric": view.metric,
        "direction": view.direction,
        "further": view.further,
        "comparison": view.comparison,
        "format_estimate": format_estimate,
        "format_effect": format_effect,
        "label_text": label_text,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "standing": view.progress_text,
        "cards": list(_cards(view)),
        "dials": list(short_names(view.dials).values()),
        "rows": list(_rows(view)),
        "states": [state.value for state in State if view.count(state)],
        "invalid": view.invalid,
        "short": short,
        "stopped": [trial for trial in view.trials if trial.state is State.PRUNED],
        "failures": list(_failures(view)),
        "costs": list(_costs(view)),
        "provenance": list(_provenance(view)),
        "packages": _packages(view),
        "diff": _diff(view),
        "overrides": [redact(text) for text in view.overrides],
    }


def _cards(view: SweepView) -> Iterator[tuple[str, str, str]]:
    """Yield each card: title, figure, and the line under it."""
    if view.leaderboard:
        best = view.leaderboard[0]
        half = "" if best.half is None else f"± {best.half:.4f} over {best.source}, "
        title = f"best {view.metric}" if view.further else "best"
        yield title, f"{best.value:.4f}", f"{half}trial {best.first.number}: {short(best.first.point)}"
        gain = _gain(best)
        if gain:
            yield gain
    if view.front:
        yield (
            "Pareto front",
            count(len(view.front), "trial"),
            f"of {len(view.ranked)}; {view.metric} against {', '.join(view.further)}",
        )
    left = f"{view.planned - view.ended:,} to go" if view.planned > view.ended else "all ended"
    remaining = seconds_left(view)
    more = f", about {format_duration(remaining)}" if remaining else ""
    yield "trials", f"{view.ended:,} of {view.planned:,}", left + more
    budget = view.progress.budget_gpu_hours
    yield "GPU hours", f"{view.gpu_hours:.3g}", "without a budget" if budget is None else f"of {budget:g}"
    if view.invalid:
        total = sum(rule.count for rule in view.invalid)
        yield "points pruned", f"{total:,}", f"by {count(len(view.invalid), 'rule')}, at no cost"


def _gain(best: RankedPoint) -> tuple[str, str, str] | None:
    start = best.first.start
    if start is None:
        return None
    error = math.hypot((best.half or 0.0) / 1.96, best.first.start_error or 0.0)
    gain = best.value - start
    said = f"{abs(gain) / error:.1f} standard errors, " if error else ""
    return "since the start", f"{gain:+.4f}", f"{said}from {start:.4f} before training"


def _rows(view: SweepView) -> Iterator[dict[str, Any]]:
    """Yield the leaderboard: a row a finished point, then one a trial without an objective."""
    verdicts = _verdicts(view)
    for rank, place in enumerate(view.leaderboard, 1):
        yield {
            **_row(view, place.first, sum(trial.gpu_hours for trial in place.trials)), "rank": rank,
            "worth": f"{place.value:.4f}", "half": "" if place.half is None else f"{place.half:.4f}",
            "source": place.source, "seeds": len(place.values), "key": place.value,
            "note": place.fate or verdicts.get(place.first.number, ""),
        }  # fmt: skip
    for trial in view.trials:
        if trial.objective is None:
            none = {"rank": "", "worth": "-", "half": "", "source": "", "seeds": "", "key": ""}
            yield {**_row(view, trial, trial.gpu_hours), **none, "note": redact(trial.reason)}


def _verdicts(view: SweepView) -> dict[int | None, str]:
    """Return the verdict of a one-factor comparison on each point, by trial number."""
    found = view.comparison
    return {found.baseline: "the baseline"} | {e.trial: e.verdict for e in found.effects} if found else {}


def _row(view: SweepView, trial: TrialView, hours: float) -> dict[str, Any]:
    labels = [trial.point.get(name) for name in view.dials]
    return {
        "number": trial.number,
        "state": trial.state.value,
        "reached": "" if trial.reached is None else f"at {trial.reached:.4f}",
        "on_front": trial.number in view.front,
        "further": trial.further(view.further) or [""] * len(view.further),
        "labels": [("" if label is None else label_text(label), "" if label is None else label) for label in labels],
        "steps": trial.step,
        "seconds": trial.seconds,
        "time": format_duration(trial.seconds),
        "hours": hours,
    }


def _failures(view: SweepView) -> Iterator[tuple[str, list[TrialView]]]:
    for name in view.failures():
        yield failure_label(name), [trial for trial in view.trials if trial.failure_class == name]


def _costs(view: SweepView) -> Iterator[tuple[str, int, float, float]]:
    """Yield for each state: the number of trials, their GPU hours, and their share in percent."""
    whole = view.gpu_hours
    for state in State:
        trials = [trial for trial in view.trials if trial.state is state]
        hours = math.fsum(trial.gpu_hours for trial in trials)
        if trials:
            yield state.value, len(trials), hours, 100 * hours / whole if whole else 0.0


def _provenance(view: SweepView) -> Iterator[tuple[str, str]]:
    said = view.provenance
    names = {
        "command": "command", "working_directory": "in", "git_sha": "commit", "grposweep": "grposweep",
        "python": "Python", "platform": "platform", "hostname": "host",
    }  # fmt: skip
    yield from ((title, redact(str(said[name]))) for name, title in names.items() if said.get(name))
    yield "search", f"{view.sampler or 'unknown'}, {view.metric} {view.direction}d"


def _packages(view: SweepView) -> Mapping[str, Any]:
    found = view.provenance.get("packages")
    return found if isinstance(found, dict) else {}


def _diff(view: SweepView) -> str:
    """Return the uncommitted changes at the sweep's start, cut if long."""
    lines = redact(str(view.provenance.get("git_diff") or "")).splitlines()
    more = [f"... and {len(lines) - DIFF_LINES:,} more lines in sweep.yaml"] if len(lines) > DIFF_LINES else []
    return "\n".join(lines[:DIFF_LINES] + more)
