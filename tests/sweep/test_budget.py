"""What trials are going to take, what a budget therefore holds, and what starts first at a sweep's end."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from grposweep.schema import Search
from grposweep.search.space import Interval, Parameter, Space
from grposweep.search.study import SweepStudy
from grposweep.setting import Setting
from grposweep.sweep.budget import Budget, CostModel
from grposweep.sweep.trial_queue import TrialQueue

HOUR = 3600.0


def setting(point: dict[str, Any]) -> Setting:
    """``generations`` decides how much work a trial is; ``lr`` does not."""
    return Setting(
        keys={}, num_generations=point["generations"], per_device_train_batch_size=16, processes=1,
        gradient_accumulation_steps=1, max_steps=10 * point["generations"], max_completion_length=64,
    )  # fmt: skip


def finished(number: int, **point: Any) -> Any:
    """A trial that the study knows."""
    dials = {name: CategoricalDistribution([label]) for name, label in point.items()}
    trial = create_trial(state=TrialState.COMPLETE, value=0.5, params=point, distributions=dials)
    trial.number = number
    return trial


@pytest.fixture
def expectation() -> CostModel:
    """Two trials of 4 generations took an hour and a half and two and a half, on two devices; nothing else has finished."""
    judge: Any = SimpleNamespace(fields=SimpleNamespace(setting=setting))
    known = CostModel(judge)
    known.note(finished(0, generations=4, lr=1e-3), 1.5 * HOUR, 3 * HOUR)
    known.note(finished(1, generations=4, lr=2e-3), 2.5 * HOUR, 5 * HOUR)
    return known


def test_a_trial_takes_what_others_with_its_settings_took(expectation: CostModel) -> None:
    """Whatever its learning rate; one with more work takes longer, in proportion."""
    cost = expectation.of({"generations": 4, "lr": 5e-3})
    assert cost is not None
    assert (cost.seconds, cost.device_seconds) == (2 * HOUR, 4 * HOUR)
    longer = expectation.seconds({"generations": 8, "lr": 1e-3})
    assert longer is not None
    assert longer == pytest.approx(3.5 * HOUR, rel=0.1)


def test_nothing_is_started_that_the_budget_cannot_finish(expectation: CostModel) -> None:
    """What runs has been promised its rest; half of a paused trial is paid."""
    budget, point = Budget(10.0, expectation), {"generations": 4, "lr": 5e-3}
    assert budget.holds(point, spent=6 * HOUR, promised=0.0)
    assert not budget.holds(point, spent=6 * HOUR, promised=1 * HOUR)
    assert budget.wanted == pytest.approx(4.0)
    assert budget.holds(point, spent=6 * HOUR, promised=1 * HOUR, done=0.5)


def test_a_budget_says_how_many_trials_fit(expectation: CostModel) -> None:
    """As soon as one has finished."""
    assert Budget(50.0, expectation).promise(2, 30, 8 * HOUR, 0.0) == (
        "about 12 of 30 trials fit search.budget_gpu_hours=50, at 4 each"
    )
    assert Budget(500.0, expectation).promise(2, 30, 8 * HOUR, 0.0).startswith("30 trials fit")
    unknown = Budget(50.0, CostModel(expectation.judge))
    assert unknown.promise(0, 30, 0.0, 0.0).endswith("known when the first has finished")
    assert unknown.holds({"generations": 4}, spent=0.0, promised=0.0)


def test_the_last_points_start_longest_first() -> None:
    """In their own order where they take as long, or where nobody waits for them."""
    nobody: Any = SimpleNamespace()
    proposals = TrialQueue(nobody, nobody, nobody, "grid", [], at_once=2)
    points = [{"hours": hours} for hours in (1.0, 3.0, 1.05, 2.0)]
    assert proposals._longest_first(points) == points
    proposals.seconds = lambda point: float(str(point["hours"])) * HOUR
    assert [point["hours"] for point in proposals._longest_first(points)] == [3.0, 2.0, 1.0, 1.05]
    proposals.seconds = lambda point: float(str(point["hours"]))
    assert proposals._longest_first(points) == points


def at_its_end(journal: Path, seconds: float) -> TrialQueue:
    """A TPE search of 20 trials, two at once, which take so many times as long as their point says."""
    study, nobody = SweepStudy(journal, Space((Parameter("long", Interval(1.0, 9.0)),)), "maximize"), SimpleNamespace()
    found = TrialQueue(study, nobody, Search(trials=20), "tpe", [], at_once=2)  # type: ignore[arg-type]
    found.seconds = lambda point: float(str(point["long"])) * seconds
    found._look()
    return found


def test_tpe_draws_its_last_points_at_once_and_the_next_controller_starts_the_same(tmp_path: Path) -> None:
    """A fifth of them, the longest first."""
    proposals = at_its_end(tmp_path / "journal", HOUR)
    for number in range(16):
        assert not proposals._draws_ahead
        proposals.study.add({"long": 1.0 + number / 2}, {"experiment": str(number)})
    assert proposals._draws_ahead
    assert proposals._ahead(lambda ahead: {"long": (3.1, 8.1, 2.1, 5.1)[ahead]}) == {"long": 8.1}
    proposals.study.add({"long": 8.1}, {"experiment": "16"})
    again = at_its_end(tmp_path / "journal", HOUR)
    assert again._draws_ahead
    assert again._ahead(lambda _: pytest.fail("three are drawn already")) == {"long": 5.1}


def test_tpe_learns_to_its_end_where_no_slot_would_wait_long(tmp_path: Path) -> None:
    """Trials of seconds."""
    proposals = at_its_end(tmp_path / "journal", 1.0)
    for number in range(19):
        proposals.study.add({"long": 1.0 + number / 9}, {"experiment": str(number)})
        assert not proposals._draws_ahead
