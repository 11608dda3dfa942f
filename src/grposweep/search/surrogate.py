"""Asking by a Gaussian process of our own: cheap enough to ask at every trial, and it takes foreseen values as well.

Optuna's needs torch and seconds. The first points fill the space, each as far as possible from all others; after them the
candidate with the largest expected improvement over the best, running trials taken for as good as expected.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from grposweep.search.forecast import Outlook, Scales, Warp, landmark
from grposweep.search.space import Choice, Dial, Label, Point, Space

CANDIDATES = 200  # points that are looked at
NEAR = 60  # of these near the best
STEP = 0.15  # how near: standard deviation, as a share of a dial's range
FIRST = 4  # points that fill the space before values count
MOST = 100  # trials that are looked at: the best ones


def suggestions(
    space: Space, known: Sequence[tuple[Point, float | None]], random: Random, fixed: Mapping[str, Label]
) -> Iterator[Point]:
    """Points by descending promise; ``known`` has all started ones, each with its value, larger is better."""
    import numpy as np

    points = [draw(space, random, fixed) for _ in range(CANDIDATES - NEAR)]
    told = [(point, value) for point, value in known if value is not None and math.isfinite(value)]
    best = sorted(told, key=lambda pair: -pair[1])
    told = [pair for pair in told if pair in best[:MOST]] if len(told) > MOST else told
    points += [near(space, best[i % min(len(best), 5)][0], random, fixed) for i in range(NEAR) if told]
    running = [point for point, value in known if value is None]
    few = len(told) < FIRST
    worth = _distances(points, [point for point, _ in known]) if few else _gains(points, told, running)
    for index in np.argsort(-np.array(worth), kind="stable"):
        yield points[index]


def draw(space: Space, random: Random, fixed: Mapping[str, Label]) -> Point:
    """Any point, uniformly on each dial's own scale."""
    point: Point = {}
    for dial in space.dials:
        if dial.is_active(point):
            point[dial.name] = fixed[dial.name] if dial.name in fixed else _any(dial, random)
    return point


def near(space: Space, point: Point, random: Random, fixed: Mapping[str, Label]) -> Point:
    """A point with a dial or two of this one's moved a little."""
    moved: Point = {}
    share = 1.5 / max(len(space.dials), 1)
    for dial in space.dials:
        if not dial.is_active(moved):
            continue
        if dial.name in fixed:
            moved[dial.name] = fixed[dial.name]
        elif dial.name not in point or random.random() < share:
            moved[dial.name] = _beside(dial, point.get(dial.name), random)
        else:
            moved[dial.name] = point[dial.name]
    return moved


def _any(dial: Dial, random: Random) -> Label:
    domain = dial.domain
    return random.choice(domain.labels) if isinstance(domain, Choice) else domain.at(random.random())


def _beside(dial: Dial, label: Label, random: Random) -> Label:
    domain = dial.domain
    if isinstance(domain, Choice) or not isinstance(label, int | float):
        return _any(dial, random)
    return domain.at(min(max(domain.share(label) + random.gauss(0.0, STEP), 0.0), 1.0))


def _distances(points: Sequence[Point], started: Sequence[Point]) -> list[float]:
    """How far each point is from the nearest started one."""
    scales = Scales([*points, *started])
    taken = [scales.place(point) for point in started]

    def nearest(point: Point) -> float:
        numbers, codes = scales.place(point)
        apart = (math.dist(numbers, n) ** 2 + sum(a != b for a, b in zip(codes, c, strict=True)) for n, c in taken)
        return min(apart, default=0.0)

    return [nearest(point) for point in points]


def _gains(points: Sequence[Point], told: Sequence[tuple[Point, float]], running: Sequence[Point]) -> list[float]:
    """What each point is expected to improve on the best one told."""
    import numpy as np

    from grposweep.search.process import Observations, Process, fit

    values = [value for _, value in told]
    warp = Warp(values, values)
    scales = Scales([*points, *(point for point, _ in told), *running])

    def rows(places: Sequence[Point], values: Sequence[float]) -> Observations:
        numbers, codes = zip(*map(scales.place, places), strict=True)
        count = len(places)
        return Observations(
            trial=np.arange(count, dtype=float),
            dials=np.array(numbers).reshape(count, -1),
            labels=np.array(codes).reshape(count, -1),
            share=np.ones(count),
            value=np.array(values, dtype=float),
        )

    few = landmark(len(told))
    seen = rows([point for point, _ in told], [warp(value) for value in values])
    rates = fit(rows([point for point, _ in told[:few]], list(seen.value[:few])))
    process = Process(seen, rates)
    bar = float(process.mean(seen, shared=True).max())
    if running:
        believed = process.mean(rows(running, [0.0] * len(running)), shared=True)
        both = rows([*(p for p, _ in told), *running], [*seen.value, *believed])
        process = Process(both, rates)
    mean, deviation = process.predict(rows(points, [0.0] * len(points)), shared=True)
    return [Outlook(float(m), float(d)).gain(bar) for m, d in zip(mean, deviation, strict=True)]
