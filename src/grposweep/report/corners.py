"""Find the unexplored corner of a space that promises most: a part of two parameters in which no trial has ended."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, islice, product

from grporecipe.errors import UserError
from grposweep.report.ranking import FEWEST
from grposweep.report.trial_view import TrialView
from grposweep.report.view import SweepView
from grposweep.search.analysis import part_of
from grposweep.search.space import Interval, Label, Parameter, Point, Space, read_space

MOST_TRIED = 20  # points that are validated
MOST_NEIGHBOURS = 3  # of the best trials, that a corner takes its other parameters from
DIGITS = 2  # significant digits of a number in a corner


def unexplored_corner(view: SweepView) -> tuple[Point, Point] | None:
    """Return the corner's two values, and the whole valid point to try there; None if no corner is promising.

    An interval has two halves on its own scale; each choice is a part of its own. Corners are tried in the order of their
    prediction: the mean of all trials, plus what the trials in each of the two parts differ from it. Other parameters are those
    of the best trials. A corner is left out if its prediction is no better than the model before training.
    """
    ended = [trial for trial in view.searched if trial.state.is_over]
    if view.sampler == "grid" or not view.is_over or len(ended) < FEWEST:
        return None
    try:
        space = read_space(view.space)
        return _first_valid(view, space, list(islice(_points(view, space, ended), MOST_TRIED)))
    except (KeyError, TypeError, AttributeError, UserError):  # damaged, or its configuration is not on this machine
        return None


def _points(view: SweepView, space: Space, ended: Sequence[TrialView]) -> Iterator[tuple[Point, Point]]:
    """Yield the corners that hold no ended trial with their points, the best prediction first."""
    worths = [trial.reached if trial.objective is None else trial.objective for trial in ended]
    mean, start = _mean(worths) or 0.0, view.leaderboard[0].first.start
    found: list[tuple[float, Point]] = []
    for pair in combinations([parameter for parameter in space.parameters if parameter.name != "seed"], 2):
        parts = [[_key(parameter, trial.point.get(parameter.name)) for trial in ended] for parameter in pair]
        taken = set(zip(*parts, strict=True))
        for labels in product(*map(_middles, pair)):
            keys = tuple(map(_key, pair, labels))
            means = [
                _mean([w for w, k in zip(worths, of, strict=True) if k == key])
                for of, key in zip(parts, keys, strict=True)
            ]
            predicted = view.sign * (mean + sum(part - mean for part in means if part is not None))
            if keys not in taken and (start is None or predicted < view.sign * start):
                found.append(
                    (predicted, {parameter.name: label for parameter, label in zip(pair, labels, strict=True)})
                )
    for _, corner in sorted(found, key=lambda promising: promising[0]):
        for place in view.leaderboard[:MOST_NEIGHBOURS]:
            point = {**place.first.point, **corner}
            if set(point) == {parameter.name for parameter in space.parameters if parameter.is_active(point)}:
                yield corner, point


def _middles(parameter: Parameter) -> list[Label]:
    """Return a value inside each part of a parameter: the middle of each half of an interval, or every choice."""
    domain = parameter.domain
    if not isinstance(domain, Interval):
        return list(domain.labels)
    exact = [domain.at(0.25), domain.at(0.75)]
    short = [n if domain.integer else float(f"{n:.{DIGITS}g}") for n in exact]
    return [s if _key(parameter, s) == _key(parameter, n) else n for s, n in zip(short, exact, strict=True)]


def _key(parameter: Parameter, label: Label) -> str:
    return repr(part_of(parameter.domain, label))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _first_valid(view: SweepView, space: Space, found: Sequence[tuple[Point, Point]]) -> tuple[Point, Point] | None:
    """Return the first corner whose point breaks no rule; None if the sweep's configuration composes differently here.

    Raises UserError if it does not compose at all.
    """
    if not found:
        return None
    from grposweep.config.compose import open_session  # Hydra
    from grposweep.config.identity import sweep_identity
    from grposweep.config.points import Points
    from grposweep.search.validity import Validator

    with open_session() as session:
        points = Points(session.compose, view.overrides)
        if sweep_identity(space.describe(), points.base) != view.settings.get("identity"):
            return None
        is_valid = Validator(space, points, view.prepared).is_valid
        return next((pair for pair in found if is_valid(pair[1])), None)
