"""A controller may die at any call to the outside: the next one ends the sweep as if nothing had
happened.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from support import sampled

from .sweeps import EASY, LATE, ByRate, Scenario, survive_all

pytestmark = pytest.mark.slow

ADAPTIVE = (*EASY, "lr=tag(log,interval(1e-5,3e-3))", "kl=none,low", "search.sampler=tpe")
RANDOM = (*EASY, "lr=tag(log,interval(1e-5,3e-3))", "search.sampler=random")
HEALED = (
    "batch=auto",
    "batch.prompts_per_step=4",
    "batch.num_generations=8",
    "trainer.args.oom_above=16",
)
RACED = ("search.seeds=2", "search.leaders=2", "trainer.args.noise=0.05", "trainer.keep=best")
GRID = ("lr=1e-2,1e-3", "batch.num_generations=8,12", "kl.sync_ref_model=true,false", "kl=low")

STOPPED_EARLY = (
    *EASY,
    "schedule.max_steps=4",
    "schedule.evaluations=2",
    "lr=1e-3,2e-3,3e-3,4e-3",
)

SCENARIOS = {
    "a grid with invalid points and crashes": Scenario(
        (*EASY, *GRID, "trainer.keep=best", "trainer.args.crash_above_lr=5e-3")
    ),
    "attempts that are healed, two at once": Scenario((*EASY, *HEALED, "lr=1e-3,2e-3"), slots=2),
    "an adaptive search": Scenario((*ADAPTIVE, "search.trials=5")),
    "a random search, two at once": Scenario((*RANDOM, "search.trials=5"), slots=2),
    "leaders again on fresh seeds": Scenario((*ADAPTIVE, *RACED, "search.trials=3")),
    "trials that pause, are promoted and stopped": Scenario(
        STOPPED_EARLY, slots=2, stopping=ByRate()
    ),
    "jobs that pause, are promoted and stopped": Scenario(
        STOPPED_EARLY, outlives=True, slots=2, stopping=ByRate()
    ),
    "jobs that continue alone, one taken away": Scenario(
        (*EASY, "lr=1e-3,2e-3,3e-3"), outlives=True, slots=2, taken={"0001": 1}
    ),
    "an adaptive search of jobs": Scenario(
        (*ADAPTIVE, "search.trials=4"), outlives=True, taken={"0001": 1}
    ),
}


# `make faults`: 11; 1: all of them; no divisor of what repeats
EVERY = int(os.environ.get("GRPOSWEEP_MOMENTS_EVERY", "61"))
# each of these waits for a job to hang; `make faults` has them all
AROUND = 1 if "GRPOSWEEP_MOMENTS_EVERY" in os.environ else 3


def moments(calls: Sequence[str]) -> list[int]:
    """Those that leave different disks behind: between a call's end and the next one's beginning
    nothing happens.
    """
    following = [*calls[1:], ""]
    distinct = [
        number
        for number, (call, after) in enumerate(zip(calls, following, strict=True))
        if not (call.startswith("after") and after.startswith("before"))
    ]
    return distinct[::EVERY]


def known_as_risky(calls: Sequence[str]) -> list[int]:
    """The drafts before sweep.yaml, a half journal, a submission without a record, an end without a
    record.
    """
    risky = (
        "before write .sweep.yaml",
        "half-way write study.journal",
        "after submit",
        "before write trials/0001",
    )
    return [next(n for n, call in enumerate(calls) if call.startswith(what)) for what in risky]


def around_a_cancellation(calls: Sequence[str]) -> list[int]:
    """From before it until its end is noted and another attempt is on its way."""
    first = calls.index("before cancel")
    moments = range(first - 1, calls.index("after submit", first) + 2)
    return moments[::AROUND]


def losses(report: dict[int, list[str]], calls: Sequence[str]) -> dict[str, list[str]]:
    """What went wrong, by the moment of the death."""
    return {
        f"{number} {calls[number]}": wrong
        for number, wrong in report.items()
        if wrong and wrong != [LATE]
    }


@pytest.mark.parametrize(
    "name", ["attempts that are healed, two at once", "jobs that continue alone, one taken away"]
)
def test_a_sweep_survives_deaths_at_its_riskiest_moments(name: str, tmp_path: Path) -> None:
    """A few of those below, in seconds."""
    calls, report = survive_all(SCENARIOS[name], tmp_path, known_as_risky)
    assert losses(report, calls) == {}
    assert len(report) == 4


@pytest.mark.parametrize("name", sampled(SCENARIOS, 3, pytest.mark.thorough))
def test_a_sweep_survives_a_death_at_any_moment(name: str, tmp_path: Path) -> None:
    """Nothing is lost, run twice or left behind; trials, values and best are those of the
    undisturbed sweep.
    """
    calls, report = survive_all(SCENARIOS[name], tmp_path, moments)
    assert losses(report, calls) == {}
    died = sum(wrong != [LATE] for wrong in report.values())
    print(f"{name}: {died} deaths survived, among {len(calls)} moments")
    assert died > 0.9 * len(moments(calls))


def test_a_sweep_survives_deaths_while_it_ends_a_job_that_hangs(tmp_path: Path) -> None:
    """The job is ended once, and its trial continues in another one."""
    hangs = Scenario(
        (*EASY, "lr=1e-3,2e-3", "cluster.stall_min=0.02"), outlives=True, deaf={"0000": 1}
    )
    calls, report = survive_all(hangs, tmp_path, around_a_cancellation)
    assert losses(report, calls) == {}
    assert len(report) > 10 // AROUND
