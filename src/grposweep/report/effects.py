"""What each turn of a dial does, in a sweep of one factor at a time: a table for the terminal.

Which dials decided a sweep, from its folder.
"""

from rich import box
from rich.table import Table

from grposweep.labels import label_text
from grposweep.report.view import SweepView
from grposweep.search.importance import find_importances
from grposweep.search.replication import Comparison, Effect, Estimate
from grposweep.search.space import read_space


def effects_table(comparison: Comparison, metric: str) -> Table:
    """The baseline, then every value of every dial."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left", title_style="bold")
    table.title = "one factor at a time, against the base configuration on the same seeds"
    for name in ("trial", "dial", "value"):
        table.add_column(name, justify="right" if name == "trial" else "left")
    for name in (f"{metric} (seeds)", "effect ± 95 %, all together", "verdict"):
        table.add_column(name, overflow="fold")
    table.add_row("", "as configured", "", worth_text(comparison.worth), "", "", style="bold")
    for effect in comparison.effects:
        style = "dim" if effect.verdict in ("failed", "unknown") else ""
        turned = (str(effect.trial), effect.parameter, label_text(effect.label))
        table.add_row(*turned, worth_text(effect.worth), effect_text(effect), effect.verdict, style=style)
    return table


def worth_text(found: Estimate | None) -> str:
    """A mean with the number of its seeds."""
    return "" if found is None else f"{found.mean:.4f} ({found.count})"


def effect_text(effect: Effect) -> str:
    """A difference with half of its interval; a single seed has none."""
    if effect.effect is None:
        return ""
    half = f" ± {effect.effect.margin:.4f}" if effect.effect.count > 1 else ""
    return f"{effect.effect.mean:+.4f}{half}"


def importances(view: SweepView) -> dict[str, float]:
    """Each dial's share, most first; empty where there are too few finished trials or dials, or the space is unreadable."""
    try:
        dials = {dial.name: dial for dial in read_space(view.settings.get("space") or ()).parameters}
    except (KeyError, TypeError, AttributeError):
        return {}
    finished = [trial for trial in view.ranked if trial.role == "search" and set(trial.point) <= set(dials)]
    points, values = [dict(trial.point) for trial in finished], [trial.objective or 0.0 for trial in finished]
    return find_importances(dials, points, values, maximize=view.direction == "maximize")
