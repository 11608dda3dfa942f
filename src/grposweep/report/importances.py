"""Which dials decided a sweep, from its folder."""

from grposweep.report.read import SweepView
from grposweep.search.importances import find_importances
from grposweep.search.space import read_space


def importances(view: SweepView) -> dict[str, float]:
    """Each dial's share, most first; empty where there are too few finished trials or dials, or the space is unreadable."""
    try:
        dials = {dial.name: dial for dial in read_space(view.settings.get("space") or ()).dials}
    except (KeyError, TypeError, AttributeError):
        return {}
    finished = [trial for trial in view.ranked if trial.role == "search" and set(trial.point) <= set(dials)]
    points, values = [dict(trial.point) for trial in finished], [trial.objective or 0.0 for trial in finished]
    return find_importances(dials, points, values, maximize=view.direction == "maximize")
