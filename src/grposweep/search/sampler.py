"""Asking any Optuna sampler for valid points only, as a pure function of seed, trial number and told history.

Optuna has no sampler for hard constraints. Here candidates are drawn from an in-memory copy of the study until one is
valid; where none comes, combinations of the finite dials known to be valid are filled up by the same sampler.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from grposweep.search.space import Choice, Interval, Label, Parameter, Point, Space, freeze

if TYPE_CHECKING:  # 0.2 s that --help and --cfg should not pay
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


ADAPTIVE = "tpe"  # what auto is where a space has no list of points
LISTED = ("grid", "one_factor")  # all their points are known beforehand
FREE_DRAWS = 64  # candidates before turning to the list of valid combinations
GP_DRAWS = 2  # the Gaussian process proposes the same optimum again and again


@dataclass(frozen=True)
class Valid:
    """What judging a space knows: a verdict on any point, and the valid combinations of its finite dials."""

    is_valid: Callable[[Point], bool]
    finite: tuple[Point, ...]


@dataclass(frozen=True)
class Ask:
    """One question to a sampler: everything that its answer depends on besides the told history."""

    sampler: str
    seed: int
    number: int
    fixed: Mapping[str, Label]

    @property
    def random(self) -> Random:
        """The ask's own stream, the same whenever this trial is asked for."""
        return Random(f"{self.seed}:{self.number}")


def choose_sampler(name: str, space: Space, objectives: int = 1) -> str:
    """``auto`` resolved: a grid where the space is finite, otherwise the adaptive sampler that has earned it.

    Of the adaptive ones TPE knows several objectives.
    """
    if name == "auto":
        return "grid" if space.is_finite else ADAPTIVE if objectives == 1 else "tpe"
    return name


def propose(candidates: Iterator[Point], valid: Valid, taken: Collection[object]) -> Point | None:
    """The first valid candidate that is none of ``taken`` (frozen points); None where none is left."""
    return next((p for p in candidates if not (taken and freeze(p) in taken) and valid.is_valid(p)), None)


def candidates(study: "Study", space: Space, ask: Ask, finite: Collection[Point]) -> Iterator[Point]:
    """Free draws first, then every valid finite combination, in random order, filled up by the sampler.

    ``study`` is a scratch copy: each draw leaves a failed trial in it, which samplers do not look at.
    """
    random = ask.random
    dials = {dial.name: distribution(dial) for dial in space.dials}
    sampler = build_sampler(ask.sampler, random, {dial.name: dials[dial.name] for dial in space.dials if not dial.when})
    for _ in range(GP_DRAWS if ask.sampler == "gp" else FREE_DRAWS):
        yield _draw(study, space, dials, sampler, ask.fixed)
    agreeing = [p for p in finite if all(p[name] == label for name, label in ask.fixed.items() if name in p)]
    random.shuffle(agreeing)
    for point in agreeing:
        yield _draw(study, space, dials, sampler, {**point, **ask.fixed})


def build_sampler(name: str, random: Random, common: Mapping[str, "BaseDistribution"]) -> "BaseSampler":
    """The Optuna sampler behind a name, seeded from the ask's stream; ``common`` are the dials that every trial has."""
    from optuna import samplers

    class Tpe(samplers.TPESampler):
        """Draws the dials that every trial has together; Optuna would look for them in all trials, which takes most of an ask."""

        def infer_relative_search_space(self, study: "Study", trial: "FrozenTrial") -> dict[str, "BaseDistribution"]:  # noqa: ARG002
            several = len(study.directions) > 1  # then it draws each dial by itself
            return {} if several else {name: dial for name, dial in sorted(common.items()) if not dial.single()}

    seed = random.randrange(2**31)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # conditional dials are sampled independently, which is announced at each ask
        if name == "tpe":
            return Tpe(seed=seed, warn_independent_sampling=False)
        if name == "gp":
            return samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        return samplers.RandomSampler(seed=seed)


def distribution(dial: Parameter) -> "BaseDistribution":
    """The dial as Optuna's distribution."""
    from optuna import distributions

    domain = dial.domain
    if isinstance(domain, Choice):
        return distributions.CategoricalDistribution(domain.labels)
    if domain.integer:
        return distributions.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return distributions.FloatDistribution(domain.low, domain.high, log=domain.log)


def _draw(
    study: "Study",
    space: Space,
    dials: Mapping[str, "BaseDistribution"],
    sampler: "BaseSampler",
    fixed: Mapping[str, Label],
) -> Point:
    """One candidate by Optuna's own ask and suggest; dials whose condition does not hold are not asked."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PartialFixedSampler and GPSampler say that they are experimental
        known = {name: label for name, label in fixed.items() if name in dials}
        study.sampler = optuna.samplers.PartialFixedSampler(known, sampler) if known else sampler
        trial = study.ask()
        point: Point = {}
        for dial in space.dials:
            if dial.is_active(point):
                point[dial.name] = trial._suggest(dial.name, dials[dial.name])  # the suggest_* behind one name
        # study.tell() would copy the whole trial, which costs as much as drawing it
        study._storage.set_trial_state_values(trial._trial_id, optuna.trial.TrialState.FAIL)
    return point


def continuous(space: Space) -> list[str]:
    """The dials that no grid can list."""
    return [dial.name for dial in space.dials if isinstance(dial.domain, Interval)]
