"""Tables and number formats that several terminal screens share: the leaderboard, and the effects of single factors."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from grposweep.labels import label_text, short_names
from grposweep.report.trial_view import State, TrialView
from grposweep.report.view import SweepView
from grposweep.search.analysis import Comparison, Effect
from grposweep.search.replication import Estimate, on_fresh_seeds

SCREEN_COLUMNS = 80  # of screens about a sweep when they are piped
LOG_COLUMNS = 100  # of what a sweep or plan prints without a terminal, unless $COLUMNS is set
STATUS = {State.FINISHED: "failed", State.FAILED: "failed", State.PRUNED: "stopped early", State.PAUSED: "paused"}


def build_console(columns: int | None = None) -> Console:
    """Return a console for the terminal. Without one it is ``columns`` wide, by default $COLUMNS or 100."""
    console = Console(highlight=False)
    if console.is_terminal or (columns is None and "COLUMNS" in os.environ):
        return console
    return Console(highlight=False, width=columns or LOG_COLUMNS)


def format_duration(seconds: float | None) -> str:
    """Format seconds as 3.2 s, 45 s, 12:05 or 2 h 05; empty for None."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d}" if hours else f"{minutes}:{rest:02d}"


def format_objective(trial: TrialView) -> str:
    """Format a finished trial's objective with its standard error and the value before training."""
    error = "" if trial.error is None else f" ± {trial.error:.4f}"
    start = "" if trial.start is None else f" (start {trial.start:.4f})"
    return f"{trial.objective:.4f}{error}{start}"


def format_estimate(found: Estimate | None) -> str:
    """Format a mean with the number of its seeds."""
    return "" if found is None else f"{found.mean:.4f} ({found.count})"


def format_effect(effect: Effect) -> str:
    """Format a difference with half of its interval; a single seed has no interval."""
    if effect.effect is None:
        return ""
    half = f" ± {effect.effect.margin:.4f}" if effect.effect.count > 1 else ""
    return f"{effect.effect.mean:+.4f}{half}"


def outcome(trial: TrialView) -> str:
    """Return how a trial ended, in the words of the end-of-run summary."""
    return "finished" if trial.objective is not None else STATUS.get(trial.state, "unfinished")


@dataclass(frozen=True)
class LeaderboardRow:
    """One trial of the search as the leaderboard shows it; ``place`` is its rank on fresh seeds or on the front."""

    trial: TrialView
    labels: dict[str, str]  # by short parameter name
    value: str
    seeds: str = ""  # mean ± interval (count) on fresh seeds, and what followed from it
    further: Sequence[str] = ()  # values of the additional objectives
    place: int | None = None


def leaderboard(view: SweepView, limit: int = 10) -> Table:
    """Return the finished trials, best first, then those without an objective; at most ``limit`` of each."""
    rows = [_row(view, trial) for trial in view.searched]
    finished = sorted((r for r in rows if r.trial.objective is not None), key=lambda row: _order(row, view.sign))
    others = [row for row in rows if row.trial.objective is None]
    dials = list(dict.fromkeys(name for row in rows for name in row.labels))
    shows_seeds = any(row.seeds for row in rows)
    shows_cost = any(row.trial.gpu_seconds > row.trial.seconds + 1 for row in rows)  # several devices a trial
    objectives = list(view.further) if any(row.further for row in rows) else []
    table = _empty_leaderboard(view, rows, objectives, dials, shows_seeds, shows_cost)

    def add(rank: str, row: LeaderboardRow, value: str, style: str) -> None:
        seeds = [row.seeds] if shows_seeds else []
        further = row.further or [""] * len(objectives)
        cost = [f"{row.trial.gpu_hours:.2f}"] if shows_cost else []
        labels = (row.labels.get(name, "") for name in dials)
        duration = format_duration(row.trial.seconds or None)
        table.add_row(rank, str(row.trial.number), value, *seeds, *further, *labels, duration, *cost, style=style)

    for rank, row in enumerate(finished[:limit], 1):
        add(str(rank), row, row.value, "bold" if rank == 1 else "")
    for row in others[:limit]:
        add("", row, row.value + _reached(view, row.trial), "dim")
    hidden = max(len(finished) - limit, 0) + max(len(others) - limit, 0)
    if hidden:
        table.caption = f"and {hidden} more"
    return table


def _empty_leaderboard(
    view: SweepView,
    rows: Sequence[LeaderboardRow],
    objectives: Sequence[str],
    dials: Sequence[str],
    shows_seeds: bool,
    shows_cost: bool,
) -> Table:
    starts = {f"{row.trial.start:.4f}" for row in rows if row.trial.start is not None}
    title = f"{view.metric}, {view.direction}d" + (f"; before training {starts.pop()}" if len(starts) == 1 else "")
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title=title, title_justify="left", title_style="bold"
    )
    for name in ("", "trial"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"{view.metric} ± se", justify="right")
    if shows_seeds:
        table.add_column("on fresh seeds ± 95 %", overflow="fold")
    for name in objectives:
        table.add_column(name, justify="right", overflow="fold")
    for name in dials:
        table.add_column(name, overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    if shows_cost:
        table.add_column("GPU h", justify="right", no_wrap=True)
    return table


def _row(view: SweepView, trial: TrialView) -> LeaderboardRow:
    names = short_names(trial.point)
    labels = {names[name]: label_text(label) for name, label in trial.point.items()}
    if trial.objective is None:
        return LeaderboardRow(trial, labels, outcome(trial))
    value = f"{trial.objective:.4f}" + (f" ± {trial.error:.4f}" if trial.error is not None else "")
    further = [f"{worth:.4g}" for worth in trial.further(view.further) or ()]
    place, seeds = _on_fresh_seeds(view, trial.number)
    if view.further:
        place = view.front.index(trial.number) if trial.number in view.front else None
    return LeaderboardRow(trial, labels, value, seeds, further, place)


def _on_fresh_seeds(view: SweepView, number: int) -> tuple[int | None, str]:
    """Return a trial's place on fresh seeds, and its mean there with what followed from it."""
    ranking = view.replication
    if ranking is None or number not in ranking.places:
        return None, ""
    place, fate = ranking.places[number]
    candidate = next((found for found in ranking.alive if found.number == number), None)
    worth = None if candidate is None else on_fresh_seeds(candidate)
    return place, fate if worth is None else f"{worth} ({worth.count}) {fate}"


def _order(row: LeaderboardRow, sign: int) -> tuple[bool, int, float, int]:
    """Sort rows with a place first, then by objective."""
    return row.place is None, row.place or 0, sign * (row.trial.objective or 0.0), row.trial.number


def _reached(view: SweepView, trial: TrialView) -> str:
    reached = trial.last_evaluation(view.metric) if trial.state is State.PRUNED else None
    return "" if reached is None else f" at {reached:.4f}"


def effects_table(comparison: Comparison, metric: str) -> Table:
    """Return the baseline, then every value of every parameter with its effect."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left", title_style="bold")
    table.title = "one factor at a time, against the base configuration on the same seeds"
    for name in ("trial", "dial", "value"):
        table.add_column(name, justify="right" if name == "trial" else "left")
    for name in (f"{metric} (seeds)", "effect ± 95 %, all together", "verdict"):
        table.add_column(name, overflow="fold")
    table.add_row("", "as configured", "", format_estimate(comparison.worth), "", "", style="bold")
    for effect in comparison.effects:
        style = "dim" if effect.verdict in ("failed", "unknown") else ""
        turned = (str(effect.trial), effect.parameter, label_text(effect.label))
        table.add_row(*turned, format_estimate(effect.worth), format_effect(effect), effect.verdict, style=style)
    return table
