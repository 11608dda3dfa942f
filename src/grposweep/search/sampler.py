"""Ask any Optuna sampler for valid points only, as a pure function of seed, trial number and told
history.

Optuna has no sampler for hard constraints. Candidates are drawn from an in-memory copy of the study
until one is valid. If none is, the sampler fills up combinations of the finite parameters that are
known to be valid. A new sampler is a function ``build_...(seed, common)`` and a line in
``grposweep.schema.registries.SAMPLERS``.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from grporecipe.files import only
from grposweep.schema import AUTO
from grposweep.schema.registries import SAMPLERS
from grposweep.search.space import Choice, Interval, Label, Parameter, Point, Space

# 0.2 s that --help and --cfg should not pay
if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


# free candidates that are drawn before valid combinations are listed
DRAWS = 64
# what auto means for a space without a list of points
ADAPTIVE = "tpe"
# of an adaptive search; a grid runs all its valid points
DEFAULT_TRIALS = 20

# parameters, by name
Distributions = Mapping[str, "BaseDistribution"]


@dataclass(frozen=True)
class ValidPoints:
    """What validating a space found: a test of any point, and the valid combinations of its finite
    parameters.
    """

    is_valid: Callable[[Point], bool]
    finite: tuple[Point, ...]


def choose_sampler(name: str, space: Space) -> str:
    """Resolve ``auto``: a grid if the space is finite, or the adaptive sampler."""
    if name == AUTO:
        return "grid" if space.is_finite else ADAPTIVE
    return name


def lists_points(name: str) -> bool:
    """Return whether a sampler knows all its points before the first trial."""
    return name in SAMPLERS and SAMPLERS[name].lists_points


def candidates(
    study: "Study",
    space: Space,
    distributions: Distributions,
    sampler_name: str,
    random: Random,
    fixed: Mapping[str, Label],
    finite: Collection[Point],
) -> Iterator[Point]:
    """Yield free draws, then every valid finite combination in random order, filled up by the
    sampler.

    ``study`` is a scratch copy: each draw leaves a failed trial in it, which samplers ignore.
    ``fixed`` labels are in each draw.
    """
    common = {p.name: distributions[p.name] for p in space.parameters if not p.when}
    seed = random.randrange(2**31)
    with warnings.catch_warnings():
        # conditional parameters are sampled independently, announced at each ask
        warnings.simplefilter("ignore")
        sampler: BaseSampler = (SAMPLERS[sampler_name].build or build_random)(seed, common)
    for _ in range(DRAWS):
        yield _draw(study, space, distributions, sampler, fixed)
    agreeing = []
    for point in finite:
        if all(point[name] == fixed[name] for name in fixed.keys() & point.keys()):
            agreeing.append(point)
    random.shuffle(agreeing)
    for point in agreeing:
        yield _draw(study, space, distributions, sampler, {**point, **fixed})


def build_tpe(seed: int, common: Distributions) -> "BaseSampler":
    """Return Optuna's TPE sampler, told which parameters every trial has."""
    from optuna import samplers

    class Tpe(samplers.TPESampler):
        """Draws the common parameters together; Optuna would search all trials for them, which
        takes most of an ask.
        """

        def infer_relative_search_space(
            self,
            study: "Study",  # noqa: ARG002 - Optuna's arguments
            trial: "FrozenTrial",  # noqa: ARG002
        ) -> dict[str, "BaseDistribution"]:
            return {name: kind for name, kind in sorted(common.items()) if not kind.single()}

    return Tpe(seed=seed, warn_independent_sampling=False)


def build_random(seed: int, common: Distributions) -> "BaseSampler":  # noqa: ARG001 - the contract's arguments
    """Return Optuna's random sampler."""
    from optuna import samplers

    return samplers.RandomSampler(seed=seed)


def distribution(parameter: Parameter) -> "BaseDistribution":
    """Return the parameter as Optuna's distribution."""
    from optuna import distributions

    domain = parameter.domain
    if isinstance(domain, Choice):
        _share_labels()
        return distributions.CategoricalDistribution(domain.labels)
    if domain.integer:
        return distributions.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return distributions.FloatDistribution(domain.low, domain.high, log=domain.log)


@cache
def _share_labels() -> None:
    """Let copies of a trial share its lists of labels, and compare them as a whole: there may be
    thousands in each trial.

    Optuna never changes one. A class of our own would not do: Optuna compares the class with that
    of trials from a database.
    """
    from optuna.distributions import CategoricalDistribution

    def equals(self: CategoricalDistribution, other: object) -> bool:
        return self is other or (
            isinstance(other, CategoricalDistribution) and self.choices == other.choices
        )

    CategoricalDistribution.__deepcopy__ = lambda self, _memo: self  # type: ignore[attr-defined]  # it has none of its own
    CategoricalDistribution.__eq__ = equals  # type: ignore[method-assign]  # its own compares label by label


def _draw(
    study: "Study",
    space: Space,
    distributions: Distributions,
    sampler: "BaseSampler",
    fixed: Mapping[str, Label],
) -> Point:
    """Return one candidate by Optuna's own ask and suggest, without parameters whose condition does
    not hold.
    """
    import optuna

    with warnings.catch_warnings():
        # PartialFixedSampler and GPSampler say that they are experimental
        warnings.simplefilter("ignore")
        drawn = only(fixed, distributions)
        study.sampler = optuna.samplers.PartialFixedSampler(drawn, sampler) if drawn else sampler
        trial = study.ask()
        point: Point = {}
        for parameter in space.parameters:
            # _suggest is what stands behind all suggest_* methods
            if parameter.is_active(point):
                point[parameter.name] = trial._suggest(
                    parameter.name, distributions[parameter.name]
                )
        # study.tell() would copy the whole trial, which costs as much as drawing it
        study._storage.set_trial_state_values(trial._trial_id, optuna.trial.TrialState.FAIL)
    return point


def continuous(space: Space) -> list[str]:
    """Return the names of the parameters that no grid can list."""
    return [
        parameter.name for parameter in space.parameters if isinstance(parameter.domain, Interval)
    ]
