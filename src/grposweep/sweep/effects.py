"""The end of a sweep of one factor at a time: its effects as a table, and as effects.json in its folder."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from grposweep.files import write_json
from grposweep.report.words import label_text
from grposweep.search.effects import Effect, find_effects, worth_of
from grposweep.search.estimate import CHANCE, Estimate
from grposweep.search.race import Runner
from grposweep.search.study import SweepStudy
from grposweep.sweep.folder import SweepFolder

NAME = "effects.json"


def show_effects(folder: SweepFolder, study: SweepStudy, metric: str) -> Table:
    """Write down what each dial does, and show it."""
    standing = study.standing
    runners = standing.alive if standing is not None else ()
    points = {trial.number: dict(trial.params) for trial in study.searched}
    effects = find_effects(points, runners, study.sign)
    baseline = next((runner for runner in runners if not points[runner.number]), None)
    worth = None if baseline is None else worth_of(baseline, study.sign)
    write_json(folder.path / NAME, _content(effects, baseline, worth, metric))
    return _table(effects, worth, metric)


def _content(effects: Sequence[Effect], baseline: Runner | None, worth: Estimate | None, metric: str) -> dict[str, Any]:
    trial = None if baseline is None else baseline.number
    return {
        "metric": metric,
        "confidence": 1 - CHANCE,  # of all the effects' intervals together
        "baseline": {"trial": trial, "worth": _interval(worth)},
        "effects": [
            {
                "dial": effect.dial,
                "value": effect.label,
                "trial": effect.trial,
                "worth": _interval(effect.worth),
                "effect": _interval(effect.effect),
                "verdict": effect.verdict,
            }
            for effect in effects
        ],
    }


def _interval(found: Estimate | None) -> dict[str, float | int | None] | None:
    """An estimate as JSON; a single seed has no ends."""
    if found is None:
        return None
    low, high = (found.low, found.high) if found.count > 1 else (None, None)
    return {"mean": found.mean, "low": low, "high": high, "seeds": found.count}


def _table(effects: Sequence[Effect], baseline: Estimate | None, metric: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left", title_style="bold")
    table.title = "one factor at a time, against the base configuration on the same seeds"
    for name in ("trial", "dial", "value"):
        table.add_column(name, justify="right" if name == "trial" else "left")
    for name in (f"{metric} (seeds)", "effect ± 95 %, all together", "verdict"):
        table.add_column(name, overflow="fold")
    table.add_row("", "as configured", "", _text(baseline), "", "", style="bold")
    for effect in effects:
        turned = "" if effect.effect is None else f"{effect.effect.mean:+.4f} ± {effect.effect.margin:.4f}"
        style = "dim" if effect.verdict in ("failed", "unknown") else ""
        table.add_row(
            str(effect.trial),
            effect.dial,
            label_text(effect.label),
            _text(effect.worth),
            turned,
            effect.verdict,
            style=style,
        )
    return table


def _text(found: Estimate | None) -> str:
    return "" if found is None else f"{found.mean:.4f} ({found.count})"
