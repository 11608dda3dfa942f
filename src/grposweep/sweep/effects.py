"""The end of a sweep of one factor at a time: its effects as a table, and as effects.json in its folder."""

from typing import Any

from rich.table import Table

from grposweep.files import write_json
from grposweep.report.effects import effects_table
from grposweep.search.replication import CHANCE, Comparison, Estimate, compare
from grposweep.search.study import SweepStudy
from grposweep.storage import paths
from grposweep.storage.folders import SweepFolder


def show_effects(folder: SweepFolder, study: SweepStudy, metric: str) -> Table:
    """Write down what each dial does, and show it."""
    standing = study.ranking
    runners = standing.alive if standing is not None else ()
    points = {trial.number: dict(trial.params) for trial in study.searched}
    found = compare(points, runners, study.sign)
    write_json(folder.path / paths.EFFECTS, _content(found, metric))
    return effects_table(found, metric)


def _content(found: Comparison, metric: str) -> dict[str, Any]:
    return {
        "metric": metric,
        "confidence": 1 - CHANCE,  # of all the effects' intervals together
        "baseline": {"trial": found.baseline, "worth": _interval(found.worth)},
        "effects": [
            {
                "dial": effect.parameter,
                "value": effect.label,
                "trial": effect.trial,
                "worth": _interval(effect.worth),
                "effect": _interval(effect.effect),
                "verdict": effect.verdict,
            }
            for effect in found.effects
        ],
    }


def _interval(found: Estimate | None) -> dict[str, float | int | None] | None:
    """An estimate as JSON; a single seed has no ends."""
    if found is None:
        return None
    low, high = (found.low, found.high) if found.count > 1 else (None, None)
    return {"mean": found.mean, "low": low, "high": high, "seeds": found.count}
