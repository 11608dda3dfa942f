"""Make the HTML report of a sweep: template, style, scripts and data in one file, with plotly.js in
it or next to it.
"""

import json
import math
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from grporecipe.files import Config, Json, as_number, file_digest, write_text
from grporecipe.redaction import redact
from grporecipe.terminal import count, label_text, short, short_names
from grposweep.report._advice import advise
from grposweep.report._completions import page_evaluations, warning
from grposweep.report._leaderboard import (
    basis_text,
    format_contrast,
    format_effect,
    format_estimate,
    format_part,
)
from grposweep.report._trained_with import trained_text
from grposweep.report.export import winner_texts, writable
from grposweep.report.status import seconds_left
from grposweep.report.tables import format_duration
from grposweep.report.trial_view import CurvePoint, State, TrialView, formatted
from grposweep.report.view import SweepView
from grposweep.search.analysis import Effect
from grposweep.storage.forks import ForkState
from grposweep.storage.records import as_mapping
from grposweep.storage.results import failure_label

NAME = "report.html"
SCRIPTS = ("words.js", "curves.js", "maps.js", "verdicts.js", "completions.js", "page.js")
FORMATS = (
    basis_text,
    format_contrast,
    format_effect,
    format_estimate,
    format_part,
    label_text,
    short,
)
# of uncommitted changes on the page
DIFF_LINES = 400

# Metrics with a curve besides the objective, in the order of the page's menu.
METRICS = (
    "reward",
    "kl",
    "entropy",
    "grad_norm",
    "completions/mean_length",
    "frac_reward_zero_std",
    "diversity",
    "template_share",
    "loss",
)
# per curve
MOST_POINTS = 120
# of all curves together, about 14 bytes each
ALL_POINTS = 120_000
# significant digits
DIGITS = 4
# whose completions are on the page
MOST_TRIALS, MOST_EVALUATIONS = 10, 20
COMPLETION_BYTES = 3_000_000
# distinct numbers of a parameter that are shown as categories
MOST_CATEGORIES = 6
# ratio of the largest to the smallest number from which an axis is logarithmic
LOG_SPAN = 20


def write_report(view: SweepView, output: Path | None = None, offline: bool = False) -> Path:
    """Write the sweep's report into its folder, or to ``output``, and return its path.

    The reports of all sweeps in a folder share its plotly.js (4.8 MB), one to ``output`` has it in
    its own folder; ``offline`` puts it into the page. Raises UserError if something cannot be
    written.
    """
    script = f"plotly-{version('plotly')}.min.js"
    path = view.path / NAME
    shared = view.path.parent / script
    place = f"../{script}"
    if output is not None:
        path = output / NAME if output.is_dir() else output
        shared = path.parent / script
        place = script
    if offline:
        place = ""
    text = render_report(view, place)
    with writable(str(path), "Set --output to a file that can."):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    # Compared by content: in a folder of others it may be another script. A hash in the page is no
    # way to tell, because browsers refuse "integrity" for files.
    if not offline and file_digest(shared) != file_digest(_plotly()):
        with writable(str(shared), "Add --offline, which puts it into the page."):
            write_text(shared, _plotly().read_text(encoding="utf-8"))
    return path


def _plotly() -> Path:
    return Path(str(files("plotly") / "package_data" / "plotly.min.js"))


def render_report(view: SweepView, script: str = "") -> str:
    """Return the page. Everything from outside is escaped, and the nonce keeps foreign scripts from
    running.

    ``script`` is the place of plotly.js as the page sees it; without one the page holds it.
    """
    environment = Environment(
        loader=PackageLoader("grposweep.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    content = page_data(view)
    plotly = "" if script else Markup(_plotly().read_text(encoding="utf-8"))
    text = environment.get_template("page.html.j2").render(
        **page_content(view),
        has_completions=bool(content["completions"]),
        **{function.__name__: function for function in FORMATS},
        nonce=secrets.token_urlsafe(16),
        style=Markup(_part("style.css")),
        script=script,
        plotly=plotly,
        scripts=Markup("\n".join(map(_part, SCRIPTS))),
        data=Markup(script_json(content)),
    )
    # half a character cannot be written
    return text.encode("utf-8", "replace").decode("utf-8")


def script_json(content: Any) -> str:
    """Return JSON for a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return (files("grposweep.report") / "html" / name).read_text(encoding="utf-8")


def page_content(view: SweepView) -> Json:
    """Return the template's variables."""
    advice = advise(view)
    texts = winner_texts(view) if advice and advice.uses else {}
    failures = view.failures().items()
    return {
        "view": view,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cards": list(_cards(view)),
        "advice": advice,
        "texts": texts,
        "importance": view.importance,
        "doubt": view.best and warning(view.best),
        "parameters": list(short_names(view.parameters).values()),
        "rows": list(_rows(view)),
        "states": [(state.value, state.label) for state in State if view.count(state)],
        "stopped": [trial for trial in view.unfinished if trial.state is State.PRUNED],
        "failures": [(failure_label(name), trials) for name, trials in failures],
        "costs": list(_costs(view)),
        "provenance": list(_provenance(view)),
        "packages": as_mapping(view.provenance.get("packages")),
        "diff": _diff(view),
        "overrides": list(map(redact, view.overrides)),
    }


def _cards(view: SweepView) -> Iterator[tuple[str, str, str]]:
    """Yield each card: title, figure, and the line under it."""
    best = view.best_point
    if best is not None:
        text = f"{best.interval}, {best.first.title}"
        if best.first.at_best:
            text += f"; {best.first.at_best}"
        yield "best", f"{best.value:.4f}", text
        gain = best.gain
        if gain is not None:
            text = f"{gain.interval}, from {gain.start:.4f} before training"
            yield "since the start", f"{gain.difference:+.4f}", text

    left = f"{view.planned - view.ended:,} to go" if view.planned > view.ended else "all ended"
    remaining = seconds_left(view)
    if remaining:
        left += f", about {format_duration(remaining)}"
    yield "trials", f"{view.ended:,} of {view.planned:,}", left
    limit = formatted("of {:g}", view.progress.budget_hours) or "without a budget"
    yield view.hours_unit, f"{view.gpu_hours:.3g}", limit
    if view.invalid:
        rules = count(len(view.invalid), "rule")
        yield "invalid points", f"{view.invalid_count:,}", f"by {rules}, at no cost"


def _rows(view: SweepView) -> Iterator[Json]:
    """Yield the leaderboard: one row per finished point, then one per trial without an
    objective.
    """
    verdicts = _verdicts(view)
    for rank, point in enumerate(view.leaderboard, 1):
        notes = [verdicts.get(trial.number, "") for trial in point.trials]
        note = point.fate or next(filter(None, notes), "")
        hours = sum(trial.gpu_hours for trial in point.trials)
        yield {
            **_cells(view, point.first, hours),
            "rank": rank,
            "worth": f"{point.value:.4f}",
            "half": formatted("{:.4f}", point.own.half),
            "source": point.source,
            "seeds": len(point.values),
            "key": point.value,
            "note": "; ".join(filter(None, (note, warning(point.first)))),
        }
    fresh = [trial for trial in view.trials if trial.is_replicate and trial.objective is None]
    for trial in (*view.unfinished, *fresh):
        none = dict.fromkeys(("rank", "half", "source", "seeds", "key"), "")
        none["worth"] = formatted("{:.4f}", trial.reached) or "-"
        yield {**_cells(view, trial, trial.gpu_hours), **none, "note": redact(trial.reason)}


def _verdicts(view: SweepView) -> dict[int | None, str]:
    """Return the verdict of a one-factor comparison on each point, by trial number."""
    verdicts: dict[int | None, str] = {effect.trial: effect.verdict for effect in view.effects}
    if view.comparison is not None:
        verdicts[view.comparison.baseline] = "the baseline"
    return verdicts


def _cells(view: SweepView, trial: TrialView, hours: float) -> Json:
    labels = []
    for name in view.parameters:
        label = trial.point.get(name)
        if label is None:
            label = ""
        labels.append((label_text(label), label))
    return {
        "number": trial.number,
        "state": trial.state.value,
        "label": trial.state.label,
        "labels": labels,
        "steps": trial.step,
        "seconds": trial.seconds,
        "time": format_duration(trial.seconds),
        "hours": hours,
    }


def _costs(view: SweepView) -> Iterator[tuple[str, int, float, float]]:
    """Yield for each state: the number of trials, their GPU hours, and their share in percent."""
    for state in State:
        trials = view.select(state)
        hours = math.fsum(trial.gpu_hours for trial in trials)
        share = hours / (view.gpu_hours or 1.0)
        if trials:
            yield state, len(trials), hours, 100 * share


def _provenance(view: SweepView) -> Iterator[tuple[str, str]]:
    recorded = view.provenance
    names = {
        "command": "command",
        "working_directory": "in",
        "git_sha": "commit",
        "grposweep": "grposweep",
        "python": "Python",
        "platform": "platform",
        "hostname": "host",
    }
    for name, title in names.items():
        if recorded.get(name):
            yield title, redact(str(recorded[name]))
    start = ForkState.parse(recorded.get("fork_of"))
    if start is not None:
        yield "continues", f"{start}, checkpoint {start.sha256}"
    yield "search", f"{view.sampler or 'unknown'}, {view.metric} {view.direction}d"


def _diff(view: SweepView) -> str:
    """Return the uncommitted changes at the sweep's start, cut if long."""
    lines = redact(str(view.provenance.get("git_diff") or "")).splitlines()
    shown = lines[:DIFF_LINES]
    if len(lines) > DIFF_LINES:
        shown.append(f"... and {len(lines) - DIFF_LINES:,} more lines in sweep.yaml")
    return "\n".join(shown)


def page_data(view: SweepView) -> Json:
    """Return one object for the page. Labels and messages are not escaped: the scripts do that."""
    rank = {number: place - 1 for number, (place, _) in view.places.items()}
    metrics = [view.metric, *(name for name in METRICS if name != view.metric)]
    most = max(min(MOST_POINTS, ALL_POINTS // (len(metrics) * max(len(view.trials), 1))), 8)
    parameters = [
        _parameter(view, name, text) for name, text in short_names(view.parameters).items()
    ]
    counted: set[int] = set()
    for point in view.leaderboard:
        counted.update(trial.number for trial in point.counted)
    # trials log at the same steps, so each list is in the page once
    steps: dict[tuple[int, ...], int] = {}
    trials = []
    drawn: set[str] = set()
    for trial in view.trials:
        place = {"rank": rank.get(trial.number), "counts": trial.number in counted}
        shown = {**_trial(trial, parameters, metrics, most, steps), **place}
        drawn.update(shown["curves"])
        trials.append(shown)
    return {
        "name": view.name,
        "hours": view.hours_unit,
        "metric": view.metric,
        "maximize": view.direction == "maximize",
        "effects": list(map(_effect, view.effects)),
        "parameters": parameters,
        "metrics": [name for name in metrics if name in drawn],
        "trials": trials,
        "steps": list(steps),
        "completions": _completions(view),
    }


def _completions(view: SweepView) -> list[Json]:
    """Return the kept completions of the first points of the leaderboard, within
    `COMPLETION_BYTES`.
    """
    shown: list[Json] = []
    size = 0
    for point in view.leaderboard[:MOST_TRIALS]:
        kept = page_evaluations(point.first, MOST_EVALUATIONS, view.direction == "maximize")
        size += len(json.dumps(kept))
        if kept is not None and size <= COMPLETION_BYTES:
            shown.append({"number": point.first.number, "warning": warning(point.first), **kept})
    return shown


def _parameter(view: SweepView, name: str, text: str) -> Json:
    """Return how a parameter is drawn: many numbers on an axis (logarithmic if they span decades),
    others as categories.
    """
    labels = [trial.point[name] for trial in view.trials if name in trial.point]
    parsed = map(as_number, labels)
    numbers = [number for number in parsed if number is not None and math.isfinite(number)]
    is_number = len(numbers) == len(labels) and len(set(numbers)) > MOST_CATEGORIES
    is_log = is_number and min(numbers) > 0 and max(numbers) >= LOG_SPAN * min(numbers)
    texts = []
    bounds: Config = {}
    if is_number:
        bounds = view.ranges.get(name, {})
    else:
        texts = _in_order(labels, view.choices.get(name, []))
    return {
        "name": name,
        "short": text,
        "number": is_number,
        "log": is_log,
        "labels": texts,
        "range": [as_number(bounds.get("low")), as_number(bounds.get("high"))],
        "baseline": _label(_at(view.baseline, name), is_number),
    }


def _at(config: Config, name: str) -> Any:
    """Return the value of a dotted key; None if it names no value, such as a group."""
    value: Any = config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return None if isinstance(value, dict | list) else value


def _effect(effect: Effect) -> Json:
    """Return a changed parameter's effect and half of its interval; None without one."""
    estimate = effect.effect
    return {
        "name": short({effect.parameter: effect.label}),
        "trial": effect.trial,
        "verdict": effect.verdict,
        "mean": estimate and _rounded(estimate.mean, 6),
        "half": estimate and _rounded(estimate.margin, 6),
    }


def _in_order(labels: Sequence[Any], choices: Sequence[Any]) -> list[str]:
    """Sort numbers by size, other labels in the order of the space."""
    if all(isinstance(label, int | float) for label in labels):
        return list(dict.fromkeys(map(label_text, sorted(labels))))
    ordered = list(map(label_text, choices))
    texts = set(map(label_text, labels))
    return [text for text in ordered if text in texts] + sorted(texts - set(ordered))


def _trial(
    trial: TrialView,
    parameters: Sequence[Config],
    metrics: Sequence[str],
    most: int,
    steps_at: dict[tuple[int, ...], int],
) -> Json:
    curves = {}
    for name in metrics:
        points = trial.curve(name, most)
        if points:
            curves[name] = _curve(points, steps_at)
    point = [
        _label(trial.point.get(parameter["name"]), parameter["number"]) for parameter in parameters
    ]
    last = max(trial.lines, key=lambda line: line["step"], default={})
    steps = last.get("step", 0)
    completions = _rounded(as_number(last.get("completions")), DIGITS)
    per_step = completions / steps if steps > 0 and completions else 1
    return {
        "number": trial.number,
        "state": trial.state.value,
        "label": trial.state.label,
        "role": trial.role,
        "point": point,
        "value": _rounded(trial.objective, 6),
        "reached": _rounded(trial.reached, 6),
        "half": _rounded(trial.half, DIGITS),
        "start": _rounded(trial.start, 6),
        "hours": _rounded(trial.gpu_hours, DIGITS),
        "ended": _rounded(trial.ended, 12),
        "per_step": per_step,
        "curves": curves,
        "why": trial.reason,
        "trained": trained_text(trial.trained),
        "command": trial.command,
        "folder": trial.name,
    }


def _curve(
    points: Sequence[CurvePoint], steps_at: dict[tuple[int, ...], int]
) -> tuple[int, list[float], list[float] | None]:
    """Return the place of its steps among ``steps_at``, its values, and standard errors (None
    unless every point has one).
    """
    place = steps_at.setdefault(tuple(point.step for point in points), len(steps_at))
    values = [_round(point.value) for point in points]
    errors = [_round(point.error) for point in points if point.error is not None]
    if len(errors) < len(points):
        return place, values, None
    return place, values, errors


def _label(label: Any, is_number: bool) -> Any:
    """Return a label as its axis needs it; None for an inactive parameter."""
    if label is None:
        return None
    return as_number(label) if is_number else label_text(label)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else _round(value, digits)


def _round(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")
