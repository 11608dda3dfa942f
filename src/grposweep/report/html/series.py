"""Data for the page's scripts: every trial with its curves, thinned to the resolution of a screen."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from grposweep.files import as_number
from grposweep.labels import label_text, short, short_names
from grposweep.report.trial_view import CurvePoint, TrialView
from grposweep.report.view import SweepView
from grposweep.search.analysis import Effect

# Metrics with a curve besides the objective, in the order of the page's menu.
METRICS = ("reward", "kl", "entropy", "grad_norm", "completions/mean_length", "frac_reward_zero_std", "loss")
MOST_POINTS = 120  # per curve
ALL_POINTS = 120_000  # of all curves together, about 14 bytes each
DIGITS = 4  # significant digits
MOST_CATEGORIES = 6  # distinct numbers of a parameter that are shown as categories
LOG_SPAN = 20  # ratio of the largest to the smallest number from which an axis is logarithmic


def page_data(view: SweepView) -> dict[str, Any]:
    """Return one object for the page. Labels and messages are not escaped: the scripts do that."""
    rank = {trial.number: place for place, point in enumerate(view.leaderboard) for trial in point.trials}
    metrics = [view.metric, *(name for name in METRICS if name != view.metric)]
    most = max(min(MOST_POINTS, ALL_POINTS // (len(metrics) * max(len(view.trials), 1))), 8)
    dials = [_dial(view, name, text) for name, text in short_names(view.dials).items()]
    counted = {trial.number for point in view.leaderboard for trial in point.counted}
    trials = [
        _trial(trial, dials, metrics, most)
        | {"rank": rank.get(trial.number), "counts": trial.number in counted}
        | {"further": trial.further(view.further), "front": trial.number in view.front}
        for trial in view.trials
    ]
    return {
        "name": view.name,
        "metric": view.metric,
        "maximize": view.direction == "maximize",
        "further": [{"name": name, "maximize": direction == "maximize"} for name, direction in view.further.items()],
        "effects": [_effect(effect) for effect in view.comparison.effects] if view.comparison else [],
        "dials": dials,
        "metrics": [name for name in metrics if any(name in trial["curves"] for trial in trials)],
        "trials": trials,
        "importances": view.importances,
    }


def _dial(view: SweepView, name: str, text: str) -> dict[str, Any]:
    """Return how a parameter is drawn: many numbers on an axis (logarithmic if they span decades), others as categories."""
    labels = [trial.point[name] for trial in view.trials if name in trial.point]
    numbers = [number for label in labels if (number := as_number(label)) is not None and math.isfinite(number)]
    is_number = len(numbers) == len(labels) and len(set(numbers)) > MOST_CATEGORIES
    is_log = is_number and min(numbers) > 0 and max(numbers) >= LOG_SPAN * min(numbers)
    texts = [] if is_number else _in_order(labels, view.choices.get(name, []))
    return {"name": name, "short": text, "number": is_number, "log": is_log, "labels": texts}


def _effect(found: Effect) -> dict[str, Any]:
    """Return a changed parameter's effect and half of its interval; None without one."""
    effect = found.effect
    mean, half = (None, None) if effect is None else (_rounded(effect.mean, 6), _rounded(effect.margin, 6))
    return {
        "name": short({found.parameter: found.label}),
        "trial": found.trial,
        "mean": mean,
        "half": half,
        "verdict": found.verdict,
    }


def _in_order(labels: Sequence[Any], choices: Sequence[Any]) -> list[str]:
    """Sort numbers by size, other labels in the order of the space."""
    if all(isinstance(label, int | float) for label in labels):
        return list(dict.fromkeys(label_text(label) for label in sorted(labels)))
    known = [label_text(label) for label in choices]
    found = {label_text(label) for label in labels}
    return [text for text in known if text in found] + sorted(found - set(known))


def _trial(trial: TrialView, dials: Sequence[Mapping[str, Any]], metrics: Sequence[str], most: int) -> dict[str, Any]:
    curves = {name: _curve(points, most) for name in metrics if (points := trial.curve(name))}
    last = max(trial.lines, key=lambda line: line["step"], default={})
    steps, completions = last.get("step", 0), _rounded(as_number(last.get("completions")), DIGITS)
    return {
        "number": trial.number,
        "state": trial.state.value,
        "role": trial.role,
        "point": [_label(trial.point.get(dial["name"]), dial["number"]) for dial in dials],
        "value": _rounded(trial.objective, 6),
        "error": _rounded(trial.error, DIGITS),
        "hours": _rounded(trial.gpu_hours, DIGITS),
        "ended": _rounded(trial.ended, 12),
        "per_step": completions / steps if steps > 0 and completions else 1,
        "curves": curves,
        "why": trial.reason,
        "command": trial.command,
        "folder": trial.name,
    }


def _curve(points: Sequence[CurvePoint], most: int) -> tuple[list[int], list[float], list[float] | None]:
    """Return steps, values and standard errors (None unless every point has one)."""
    kept = thin(points, most)
    errors = [_round(point.error) for point in kept if point.error is not None]
    return (
        [point.step for point in kept],
        [_round(point.value) for point in kept],
        errors if len(errors) == len(kept) else None,
    )


def thin(points: Sequence[CurvePoint], most: int) -> Sequence[CurvePoint]:
    """Return at most ``most`` points, evenly spread, with the first and the last."""
    if len(points) <= most:
        return points
    return [points[round(place * (len(points) - 1) / (most - 1))] for place in range(most)]


def _label(label: Any, is_number: bool) -> Any:
    """Return a label as its axis needs it; None for an inactive parameter."""
    return None if label is None else float(label) if is_number else label_text(label)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else _round(value, digits)


def _round(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
