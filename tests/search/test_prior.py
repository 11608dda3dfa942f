"""search.prior=published: the first points of a search lie near published learning rates."""

import math
from statistics import fmean

import pytest

from grporecipe.errors import UserError
from grporecipe.model.rates import rates_for
from grporecipe.model.setting import Setting
from grposweep.search.sampler import POINTS, check_prior, prior_points
from grposweep.search.space import Choice, Interval, Label, Parameter, Point, Space
from in_process import Sweep
from support import read, trials

LR = Parameter("lr", Interval(1e-7, 1e-3, log=True))
LORA = Parameter("model.lora.enabled", Choice((False, True), (False, True)))
FINITE: list[Point] = [{"model.lora.enabled": False}, {"model.lora.enabled": True}]


def is_lora(point: Point) -> bool:
    """As the point says."""
    return bool(point["model.lora.enabled"])


def published(point: Point) -> float:
    """As published runs take it."""
    return rates_for(Setting(lora=is_lora(point))).usual


def rates(of_lora: bool, seeds: int = 100, **bounds: float) -> list[float]:
    """The rates that many seeds draw for one kind of training."""
    space = Space(
        (LORA, Parameter("lr", Interval(**{"low": 1e-7, "high": 1e-3, **bounds}, log=True)))
    )
    drawn = [
        point for seed in range(seeds) for point in prior_points(space, FINITE, published, seed)
    ]
    return [float(point["lr"] or 0) for point in drawn if is_lora(point) == of_lora]


@pytest.mark.parametrize(("of_lora", "usual"), [(False, 1e-6), (True, 3e-5)])
def test_rates_lie_around_the_published_one_of_their_kind_of_training(
    of_lora: bool, usual: float
) -> None:
    """Full fine-tuning or LoRA, by the point; nine of ten within a decade."""
    found = [math.log10(rate / usual) for rate in rates(of_lora)]
    assert len(found) > 100
    assert abs(fmean(found)) < 0.15
    assert fmean(abs(decades) < 1 for decades in found) > 0.9


def test_a_space_without_the_published_rate_is_drawn_near_its_nearest_bound() -> None:
    """At several rates, and never outside."""
    found = rates(False, low=1e-5, high=1e-2)
    assert all(1e-5 <= rate <= 1e-2 for rate in found)
    assert fmean(rate < 1e-4 for rate in found) > 0.9
    assert len(set(found)) == len(found)


def test_points_follow_from_the_seed_alone() -> None:
    """So a resumed sweep has the same ones."""
    space = Space((LORA, LR))
    assert prior_points(space, FINITE, published, 1) == prior_points(space, FINITE, published, 1)
    assert prior_points(space, FINITE, published, 1) != prior_points(space, FINITE, published, 2)
    assert len(prior_points(Space((LR,)), (), lambda _: 1e-6, 0)) == POINTS


@pytest.mark.parametrize(
    ("sampler", "labels"), [("grid", (1e-6, 1e-5)), ("tpe", (1e-6, 1e-5)), ("one_factor", (1e-6,))]
)
def test_it_is_refused_where_no_interval_of_the_learning_rate_is_searched(
    sampler: str, labels: tuple[Label, ...]
) -> None:
    """With what to set; without the prior nothing is checked."""
    space = Space((Parameter("lr", Choice(labels, labels)),))
    check_prior("none", sampler, space)
    check_prior("published", "tpe", Space((LR,)))
    with pytest.raises(
        UserError,
        match=rf"search\.prior=published with search={sampler}: .* Set lr=tag\(log,interval",
    ):
        check_prior("published", sampler, space)


@pytest.mark.slow
def test_a_resumed_sweep_has_the_points_of_an_uninterrupted_one(sweep_here: Sweep) -> None:
    """The first four come from the prior, then the sampler proposes as without a prior."""
    space = (
        "lr=tag(log,interval(1e-8,1e-2))",
        "kl=none,low",
        "search.prior=published",
        "cluster=dry_run",
    )

    def points(name: str, *counts: int) -> list[Point]:
        folders = [sweep_here(f"name={name}", f"search.trials={count}", *space) for count in counts]
        return [read(folder / "trial.json")["point"] for folder in trials(folders[-1])]

    whole = points("whole", 6)
    assert points("parts", 2, 6) == whole
    assert len(whole) == 6
    assert all(1e-8 < float(point["lr"] or 0) < 3e-5 for point in whole[:POINTS])
