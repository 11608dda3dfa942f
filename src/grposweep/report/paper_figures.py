"""Draw a sweep's figures for a paper, as SVG and PDF in the report's style: learning curves, and what parameters do."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from grporecipe.errors import UserError
from grporecipe.files import as_number
from grporecipe.terminal import label_text, short, short_names
from grposweep.report.export import writable
from grposweep.report.trial_view import TrialView, axis_of
from grposweep.report.view import SweepView
from grposweep.search.replication import CHANCE
from grposweep.search.sampling import student_quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900")  # of the report's first points (style.css)
FAINT, QUIET = "#c4c8ce", "#5f6670"
WIDTH, HEIGHT = 5.5, 3.4  # inches: a column of a paper
NORMAL = student_quantile(0, 1 - CHANCE / 2)  # standard errors of a 95 % interval
STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": QUIET, "axes.labelcolor": "#1c1e21",
    "xtick.color": QUIET, "ytick.color": QUIET, "svg.fonttype": "none", "svg.hashsalt": "grposweep", "pdf.fonttype": 42,
}  # fmt: skip  # text stays text, and equal figures are equal files


def write_figures(view: SweepView, folder: Path) -> list[Path]:
    """Write curves and parameters as SVG and PDF into a folder, and return the paths.

    Raises UserError without matplotlib, without a trial that has a value, or if the folder cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "--figures needs matplotlib, which is not installed. Run pip install matplotlib (the extra figures)."
        ) from error
    if not view.leaderboard:
        raise UserError(f"{view.name} has no finished trial yet, so there is nothing to draw.")
    draws: dict[str, Callable[[SweepView, Figure], None]] = {"curves": _draw_curves}
    if view.parameters:
        draws["parameters"] = _draw_parameters
    written = []
    style = rc_context(STYLE)  # type: ignore[arg-type]  # its names are literals in matplotlib's types
    with writable(f"--figures {folder}: it", "Name a folder that can."), style:
        folder.mkdir(parents=True, exist_ok=True)
        for name, draw in draws.items():
            figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
            draw(view, figure)
            for form, date in (("svg", "Date"), ("pdf", "CreationDate")):
                written.append(folder / f"{name}.{form}")
                figure.savefig(written[-1], metadata={date: None})
    return written


def _draw_curves(view: SweepView, figure: "Figure") -> None:
    """Draw the metric over completions: the first points with their 95 % bands over prompts, the other trials in grey."""
    axes = figure.subplots()
    points = view.leaderboard[: len(COLORS)]
    shown = {trial.number for point in points for trial in point.counted}
    for trial in view.trials:
        if trial.number not in shown:
            _line(axes, view, trial, FAINT, 0.8, "")
    for color, point in zip(COLORS, points, strict=False):
        for trial in point.counted:
            is_first = trial is point.counted[0]
            _line(axes, view, trial, color, 1.6, f"trial {trial.number}: {short(trial.point)}" if is_first else "")
    axes.set(xlabel=axis_of([point for trial in view.trials for point in trial.curve(view.metric)]), ylabel=view.metric)
    axes.legend(frameon=False, fontsize=7)


def _line(axes: "Axes", view: SweepView, trial: TrialView, color: str, width: float, label: str) -> None:
    curve = trial.curve(view.metric)
    x, y = [point.completions for point in curve], [point.value for point in curve]
    axes.plot(x, y, color=color, linewidth=width, label=label or None)
    if color != FAINT and curve and all(point.error is not None for point in curve):
        half = [NORMAL * (point.error or 0.0) for point in curve]
        low, high = ([value + sign * more for value, more in zip(y, half, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def _draw_parameters(view: SweepView, figure: "Figure") -> None:
    """Draw each trial over each parameter: finished trials as dots, others as diamonds at the value that they reached."""
    figure.set_size_inches(max(WIDTH, 2.2 * len(view.parameters)), HEIGHT)
    panels = figure.subplots(1, len(view.parameters), sharey=True, squeeze=False)[0]
    for axes, (name, text) in zip(panels, short_names(view.parameters).items(), strict=True):
        is_range = name in view.ranges
        places = {label_text(label): place for place, label in enumerate(view.choices.get(name, []))}
        for trial in view.searched:
            label = trial.point.get(name)
            x = as_number(label) if is_range else places.get(label_text(label))
            if trial.value is not None and x is not None:
                is_done = trial.objective is not None
                axes.plot(x, trial.value, marker="o" if is_done else "D", markersize=5 if is_done else 4, linestyle="",
                          color=COLORS[0] if is_done else FAINT)  # fmt: skip
        if is_range and view.ranges[name].get("log"):
            axes.set_xscale("log")
        elif not is_range:
            axes.set_xticks(range(len(places)), list(places))
            axes.margins(x=0.25)
        axes.set_xlabel(text)
    panels[0].set_ylabel(view.metric)
