"""Points that a person wants tried first: read, matched with the dials, and judged before anything starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from grposweep.errors import BadInput
from grposweep.fixes import render_problem
from grposweep.rules import errors
from grposweep.search.judge import Judge
from grposweep.search.space import Choice, Dial, Label, Point, Space


def read_enqueued(wanted: Sequence[Mapping[str, Any]], space: Space, judge: Judge) -> list[Point]:
    """The points of ``search.enqueue``; dials left out are filled in by the sampler.

    Raises BadInput for a dial that is not searched, a value outside its dial, and a whole point that is invalid.
    """
    dials = {dial.name: dial for dial in space.dials}
    points: list[Point] = []
    for entry in wanted:
        point: Point = {}
        for name, value in _flat(entry).items():
            if name not in dials:
                known = ", ".join(dials) or "none"
                raise BadInput(f"search.enqueue: {name} is not searched here. The dials of this sweep are {known}.")
            point[name] = _label(dials[name], value)
        _check(point, space, judge)
        points.append(point)
    return points


def _flat(entry: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{kl: {beta: 0.1}}`` and ``{kl.beta: 0.1}`` alike."""
    flat: dict[str, Any] = {}
    for name, value in entry.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _label(dial: Dial, value: Any) -> Label:
    """The dial's own label for a value that a person wrote."""
    domain = dial.domain
    if isinstance(domain, Choice):
        for label in domain.labels:
            if label == value or str(label) == str(value):
                return label
        choices = ", ".join(map(str, domain.labels))
        raise BadInput(f"search.enqueue: {dial.name}={value} is not among its choices. Set one of {choices}.")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not domain.low <= number <= domain.high:
        raise BadInput(
            f"search.enqueue: {dial.name}={value} is outside its interval. "
            f"Set a number from {domain.low:g} to {domain.high:g}, or widen the interval."
        )
    return int(number) if domain.integer else number


def _check(point: Point, space: Space, judge: Judge) -> None:
    """A point that leaves nothing to the sampler must be valid itself."""
    if any(dial.is_active(point) and dial.name not in point for dial in space.dials):
        return
    verdict = judge.verdict(point)
    broken = errors(verdict.problems)
    if broken:
        text = render_problem(verdict.setting, broken[0], judge.ignore)
        raise BadInput(f"search.enqueue: {', '.join(f'{n}={v}' for n, v in point.items())} is invalid. {text}")
