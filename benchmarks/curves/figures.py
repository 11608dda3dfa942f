"""The figures of replayed sweeps, with 95 % intervals: bootstrap within each file, for a share of
sweeps Wilson's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

BOOTSTRAPS = 2000
# standard errors
Z = 1.96

Bounds = dict[str, float | None]


@dataclass(frozen=True)
class Repeat:
    """What one replayed sweep cost and found, as replay.py defines it. Repeats of a file with the
    same seed pair.
    """

    file: str
    policy: str
    # None for a policy that takes none
    effort: float | None
    trials: int
    slots: int
    seed: int
    cost: float
    lost: bool
    regret: float
    arrived: float
    idle: float
    # trials: fewer than ``trials`` if the file has fewer points
    started: int
    resumed: int
    completions: float


# repeats of one file and number of trials, by seed
Group = Sequence[Repeat]


def describe(groups: Sequence[Group], references: Sequence[Group]) -> dict[str, Any]:
    """Return one policy's figures over all groups; ``references`` are plain TPE's repeats of the
    same files and seeds.
    """

    def column(name: str, of: Sequence[Group] = groups) -> list[Any]:
        return [numpy.array([getattr(repeat, name) for repeat in group], float) for group in of]

    def mean(name: str, of: Sequence[Group] = groups) -> float:
        return float(numpy.concatenate(column(name, of)).mean())

    both = [
        numpy.stack(pair, axis=1)
        for pair in zip(column("regret"), column("regret", references), strict=True)
    ]
    regret, tpe_regret, repeats = mean("regret"), mean("regret", references), sum(map(len, groups))
    return {
        "effort": groups[0][0].effort,
        "repeats": repeats,
        **{
            name: mean(name)
            for name in ("started", "cost", "lost", "regret", "arrived", "idle", "resumed")
        },
        "cost_interval": bounds(resample(column("cost"))),
        "lost_interval": bounds_of_share(mean("lost"), repeats),
        "regret_interval": bounds(resample(column("regret"))),
        "regret_to_tpe": regret - tpe_regret,
        "regret_to_tpe_interval": bounds(resample([pair[:, 0] - pair[:, 1] for pair in both])),
        "tpe_started": mean("started", references),
        "tpe_regret": tpe_regret,
        "regret_ratio": regret / tpe_regret if tpe_regret else None,
        "regret_ratio_interval": bounds(
            numpy.array([a / b if b else numpy.inf for a, b in resample(both)])
        ),
        "cost_to_tpe": mean("completions") / mean("completions", references),
    }


def resample(groups: Sequence[Any]) -> Any:
    """Return means over all groups for bootstrap draws, in which each group is resampled by
    itself.
    """
    random, count = numpy.random.default_rng(0), sum(map(len, groups))
    return (
        sum(random.choice(group, (BOOTSTRAPS, len(group))).sum(axis=1) for group in groups) / count
    )


def bounds(drawn: Any) -> Bounds:
    """Return the central 95 % of bootstrap draws; a bound is None if it is not finite."""
    low, high = numpy.quantile(drawn, (0.025, 0.975), method="nearest")
    return {
        name: float(x) if numpy.isfinite(x) else None for name, x in (("low", low), ("high", high))
    }


def bounds_of_share(share: float, among: int) -> Bounds:
    """Return Wilson's interval of a share: of no case at all, a bootstrap would say that the share
    is exactly 0.
    """
    spread = Z**2 / among
    half = (spread * share * (1 - share) + spread**2 / 4) ** 0.5
    low, high = ((share + spread / 2 + sign * half) / (1 + spread) for sign in (-1, 1))
    return {"low": max(low, 0.0), "high": min(high, 1.0)}
