"""A weak prior for the learning rate: the first points of a search lie near the rates of published GRPO recipes.

Only these points are drawn from the prior. The sampler learns from their results as from any others, so a wrong prior costs
a few trials and no more.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from statistics import NormalDist

from grporecipe.errors import UserError
from grposweep.search.sampler import lists_points
from grposweep.search.space import Interval, Parameter, Point, Space

RATE = "lr"
POINTS = 4  # of the ten that TPE draws at random before it models anything
# Medians by model.lora.enabled. Full fine-tuning, 23 recipes, of which 19 use 1e-6 (the others 3e-7 to 1e-5): EasyR1's baselines,
# verl's DAPO, DeepScaleR, Logic-RL, Search-R1, Open-R1, ms-swift's countdown, GPG, prime-rl. LoRA, 12 recipes from 1e-5 to 1e-4:
# verl's GSM8K logs, tinker-cookbook, TRL's "LoRA Without Regret".
PUBLISHED = {False: 1e-6, True: 3e-5}
DECADES = 0.5  # standard deviation of log10(rate): twice that of the recipes (0.26 and 0.27), which resemble each other


def check_prior(prior: str, sampler: str, space: Space) -> None:
    """Raise UserError if the search draws no learning rate."""
    if prior == "none" or (_interval(space) and not lists_points(sampler)):
        return
    raise UserError(
        f"search.prior={prior} with search={sampler}: it draws learning rates, and this sweep searches no interval of {RATE}. "
        f"Set {RATE}=tag(log,interval(1e-7,1e-5)) and search=tpe, or leave search.prior out."
    )


def prior_points(space: Space, finite: Sequence[Point], uses_lora: Callable[[Point], bool], seed: int) -> list[Point]:
    """Return points without their other continuous parameters: a random valid combination and a rate from its prior.

    They are the same for the same space, ``finite`` points and seed.
    """
    parameter = _interval(space)
    points: list[Point] = []
    for index in range(POINTS):
        random = Random(f"{seed}:prior:{index}")
        point = dict(random.choice(finite)) if finite else {}
        if parameter is not None and parameter.is_active(point):
            points.append(point | {RATE: _draw(parameter.domain, PUBLISHED[uses_lora(point)], random)})  # type: ignore[arg-type]  # an interval
    return points


def _interval(space: Space) -> Parameter | None:
    return next((p for p in space.parameters if p.name == RATE and isinstance(p.domain, Interval)), None)


def _draw(domain: Interval, published: float, random: Random) -> float:
    """Draw from a log-normal around the published rate, or around the bound that is nearest to it, within the bounds."""
    centre = min(max(published, domain.low), domain.high)
    normal = NormalDist(math.log10(centre), DECADES)
    low = normal.cdf(math.log10(domain.low)) if domain.low > 0 else 0.0
    share = low + (normal.cdf(math.log10(domain.high)) - low) * random.random()
    return min(max(10 ** normal.inv_cdf(max(share, 1e-12)), domain.low), domain.high)
