"""What trials are going to take, what a budget therefore holds, and what starts first at a sweep's end."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from grposweep.config.points import Points
from grposweep.schema import Search
from grposweep.search.parse import parse_space
from grposweep.search.space import Point
from grposweep.search.study import SweepStudy
from grposweep.search.validity import Validator
from grposweep.storage.folders import SweepFolder
from grposweep.storage.results import end_run, start_run
from grposweep.sweep.gpu_hours import CostModel, GpuHourBudget, GpuHourLimit
from grposweep.sweep.trial_queue import Outlook, TrialQueue

HOUR = 3600.0

Compose = Callable[[list[str]], DictConfig]


def build_validator(compose: Compose, *arguments: str) -> Validator:
    """The validator of a space, such as ``lr=interval(1e-5,1e-2)``, and of what every trial has."""
    space, fixed = parse_space(list(arguments), {})
    return Validator(space, Points(compose, fixed))


def finished(number: int, steps: int, lr: float) -> Any:
    """A trial that the study knows."""
    point = {"schedule.max_steps": steps, "lr": lr}
    distributions = {name: CategoricalDistribution([label]) for name, label in point.items()}
    trial = create_trial(state=TrialState.COMPLETE, value=0.5, params=point, distributions=distributions)
    trial.number = number
    return trial


SHORT, LONG = 40, 80  # optimizer steps: the second is twice the work


@pytest.fixture
def expectation(compose: Compose) -> CostModel:
    """Two trials of 40 steps took an hour and a half and two and a half, on two devices; nothing else has finished."""
    known = CostModel(build_validator(compose, "schedule=steps", "schedule.max_steps=40,80", "lr=interval(1e-4,1e-2)"))
    known.note(finished(0, steps=SHORT, lr=1e-3), 1.5 * HOUR, 3 * HOUR)
    known.note(finished(1, steps=SHORT, lr=2e-3), 2.5 * HOUR, 5 * HOUR)
    return known


def test_a_trial_takes_what_others_with_its_settings_took(expectation: CostModel) -> None:
    """For every learning rate; one with more work takes longer, in proportion."""
    cost = expectation.of({"schedule.max_steps": SHORT, "lr": 5e-3})
    assert cost is not None
    assert (cost.seconds, cost.device_seconds) == (2 * HOUR, 4 * HOUR)
    longer = expectation.seconds({"schedule.max_steps": LONG, "lr": 1e-3})
    assert longer is not None
    assert longer == pytest.approx(3.5 * HOUR, rel=0.1)


def test_nothing_is_started_that_the_budget_cannot_finish(expectation: CostModel) -> None:
    """What runs has been promised its rest; half of a paused trial is paid."""
    budget, point = GpuHourLimit(10.0, expectation), {"schedule.max_steps": SHORT, "lr": 5e-3}
    assert budget.holds(point, spent=6 * HOUR, promised=0.0)
    assert not budget.holds(point, spent=6 * HOUR, promised=1 * HOUR)
    assert budget.wanted == pytest.approx(4.0)
    assert budget.holds(point, spent=6 * HOUR, promised=1 * HOUR, done=0.5)


def test_a_budget_says_how_many_trials_fit(expectation: CostModel) -> None:
    """As soon as one has finished."""
    assert GpuHourLimit(50.0, expectation).promise(2, 30, 8 * HOUR, 0.0) == (
        "about 12 of 30 trials fit search.budget_gpu_hours=50, at 4 each"
    )
    assert GpuHourLimit(500.0, expectation).promise(2, 30, 8 * HOUR, 0.0).startswith("30 trials fit")
    assert GpuHourLimit(50.0, expectation).promise(2, 12, 8 * HOUR, 0.0).startswith("12 trials fit")
    unknown = GpuHourLimit(50.0, CostModel(expectation.validator))
    assert unknown.promise(0, 30, 0.0, 0.0).endswith("known when the first has finished")
    assert unknown.holds({"schedule.max_steps": SHORT, "lr": 1e-3}, spent=0.0, promised=0.0)


def start_all(queue: TrialQueue, name: str) -> list[Any]:
    """Start what the queue gives, trial by trial; the values of one parameter in this order."""
    begun = []
    while (trial := queue.next()) is not None:
        queue.study.add(trial.verdict.point, trial.attributes)
        begun.append(trial.verdict.point[name])
    return begun


HOURS = {0: 1.0, 1: 3.0, 2: 1.05, 3: 2.0}  # by seed


def test_the_first_finished_trial_says_how_many_fit_and_the_budget_ends_when_it_is_spent(
    compose: Compose, tmp_path: Path
) -> None:
    """It took two GPU hours. A budget of exactly that is spent. Without a budget there is no message."""
    validator = build_validator(compose, "schedule=steps", "schedule.max_steps=40,80", "lr=interval(1e-4,1e-2)")
    study, folder, point = (
        SweepStudy(tmp_path, validator.space, "maximize"),
        SweepFolder(tmp_path),
        finished(0, SHORT, 1e-3),
    )
    study.add(point.params, {"experiment": "abcdef"})
    study.tell(0, 0.5)
    path = folder.trial(0, "abcdef").path
    path.mkdir(parents=True)
    start_run(path, 0, 2)
    end_run(path, 0, seconds=HOUR)
    told, over = [], []
    for hours in (10.0, 2.0, None):
        spent = GpuHourBudget(folder, study, GpuHourLimit(hours, CostModel(validator)), {})
        over.append(spent.is_over())
        told.append(spent.refit(study.trials[0], 8))
    assert told == ["about 5 of 8 trials fit search.budget_gpu_hours=10, at 2 each",
                    "about 1 of 8 trials fit search.budget_gpu_hours=2, at 2 each", ""]  # fmt: skip
    assert over == [False, True, False]


@pytest.mark.parametrize(
    ("seconds", "order"),
    [(lambda point: HOURS[point["seed"]] * HOUR, [1, 3, 0, 2]), (lambda point: HOURS[point["seed"]], [0, 1, 2, 3]),
     (lambda _point: None, [0, 1, 2, 3])],
    ids=["hours", "seconds", "unknown"],
)  # fmt: skip
def test_the_last_points_of_a_grid_start_longest_first(
    compose: Compose, tmp_path: Path, seconds: Callable[[Point], float | None], order: list[int]
) -> None:
    """In their own order if they take about as long, are short, or nothing is known."""
    validator = build_validator(compose, "seed=range(4)")
    study = SweepStudy(tmp_path, validator.space, "maximize")
    queue = TrialQueue(
        study,
        validator,
        Search(),
        "grid",
        list(validator.space.finite_points()),
        outlook=Outlook(seconds=seconds),
        at_once=2,
    )
    assert start_all(queue, "seed") == order


def tpe_queue(compose: Compose, folder: Path, seconds: float) -> TrialQueue:
    """A TPE search of 20 trials, two at once, which take 1 to 10 times as long by their learning rate."""
    validator = build_validator(compose, "lr=interval(1e-3,1e-2)")
    study = SweepStudy(folder, validator.space, "maximize")
    outlook = Outlook(seconds=lambda point: float(str(point["lr"])) * 1000 * seconds)
    return TrialQueue(study, validator, Search(trials=20), "tpe", [], outlook=outlook, at_once=2)


def start(queue: TrialQueue, trials: int) -> list[float]:
    """The learning rates of the next trials."""
    found = []
    for _ in range(trials):
        trial = queue.next()
        assert trial is not None
        queue.study.add(trial.verdict.point, trial.attributes)
        found.append(float(str(trial.verdict.point["lr"])))
    return found


def test_tpe_draws_its_last_points_at_once_and_starts_the_longest_first(compose: Compose, tmp_path: Path) -> None:
    """A fifth of them; the next controller starts the same ones."""
    queue = tpe_queue(compose, tmp_path, HOUR)
    start(queue, 16)
    assert queue.study.drawn(20) == []
    first = start(queue, 1)
    drawn = [float(str(point["lr"])) for point in queue.study.drawn(20)]
    assert len(drawn) == 4
    again = tpe_queue(compose, tmp_path, HOUR)
    for trial in queue.study.trials:
        again.study.add(trial.params, trial.user_attrs)
    rest = start(again, 3)
    assert sorted(first + rest) == sorted(drawn)
    assert all(later < 1.11 * earlier for earlier, later in pairwise(first + rest))  # a tenth counts as equal
    assert max(drawn) > 1.11 * min(drawn)


def test_tpe_learns_to_its_end_if_no_slot_would_wait_long(compose: Compose, tmp_path: Path) -> None:
    """Trials of seconds are drawn one by one."""
    queue = tpe_queue(compose, tmp_path, 1.0)
    start(queue, 20)
    assert queue.study.drawn(20) == []
    assert queue.next() is None


def test_a_resumed_sweep_tries_the_points_of_another_list(compose: Compose, tmp_path: Path) -> None:
    """The first of the new list, too, although the first of the old one was tried."""
    validator = build_validator(compose, "lr=interval(1e-3,1e-2)")
    study = SweepStudy(tmp_path, validator.space, "maximize")
    for lr in (2e-3, 3e-3):
        queue = TrialQueue(study, validator, Search(trials=20), "random", [], [{"lr": lr}])
        assert start(queue, 1) == [lr]
    assert start(queue, 1)[0] not in (2e-3, 3e-3)


def test_an_enqueued_point_with_a_value_of_an_inactive_parameter_is_tried_once(
    compose: Compose, tmp_path: Path
) -> None:
    """Its trial does not have that value, and the search continues after it."""
    beta = {"when": {"kl": ["low"]}, "space": "interval(0.001,0.1)"}
    space, fixed = parse_space(["kl=none,low", "lr=interval(1e-3,1e-2)"], {"kl.beta": beta})
    study = SweepStudy(tmp_path, space, "maximize")
    enqueued = [{"kl": "none", "kl.beta": 0.01}]
    queue = TrialQueue(study, Validator(space, Points(compose, fixed)), Search(trials=20), "random", [], enqueued)
    start(queue, 10)
    assert study.trials[0].params["kl"] == "none"
    assert {trial.params["kl"] for trial in study.trials[1:]} == {"none", "low"}
