"""Several objectives: who is on the front, and what samplers are told."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.samplers import TPESampler
from optuna.study import StudyDirection

from grporecipe.errors import UserError
from grposweep.config.compose import split_objectives
from grposweep.schema import Search
from grposweep.search.analysis import pareto_front
from grposweep.search.sampler import ValidPoints
from grposweep.search.space import Interval, Parameter, Space
from grposweep.search.study import ExtraObjectives, SweepStudy

VALUES = st.tuples(st.integers(0, 4), st.integers(0, 4))
SPACE = Space((Parameter("lr", Interval(1e-5, 1e-2, log=True)),))


@pytest.fixture
def study(tmp_path: Path) -> SweepStudy:
    """Twelve trials, worth more and costing more from one to the next, but the last: it costs most for the least."""
    found = SweepStudy(tmp_path, SPACE, "maximize")
    costs = {number: float(number) for number in range(12)}
    found.use_objectives(ExtraObjectives({"gpu_hours": "minimize"}, lambda trial: (costs[trial.number],)))
    for number in range(12):
        value = 0.0 if number == 11 else number / 10
        found.add_ended({"lr": 1e-4 * (number + 1)}, {"experiment": str(number)}, value, {1: 0.1})
    return found


@given(st.lists(VALUES, min_size=1, max_size=12))
def test_the_front_is_what_no_trial_beats(found: list[tuple[int, int]]) -> None:
    """No trial beats one that is on it, and each other trial is beaten by one that is."""
    values = dict(enumerate(found))
    front = pareto_front(values, (1, -1))

    def beats(one: int, other: int) -> bool:
        (a, b), (c, d) = values[one], values[other]
        return a >= c and b <= d and (a, b) != (c, d)

    assert front
    assert not any(beats(one, other) for one in values for other in front)
    assert all(any(beats(one, other) for one in front) for other in values if other not in front)


def test_models_of_the_whole_front_are_kept(study: SweepStudy) -> None:
    """The best one is the best in the first objective."""
    assert [trial.number for trial in study.front] == list(range(10, -1, -1))
    assert study.kept == set(range(11))
    assert study.best is not None
    assert study.best.number == 10


def test_tpe_is_asked_with_all_objectives(study: SweepStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler's copy of the study has two directions and two values a trial; the study on disk has the first."""
    seen = []
    sample = TPESampler.sample_independent

    def spy(self: TPESampler, history, *rest):  # type: ignore[no-untyped-def]
        seen.append((history.directions, [t.values for t in history.trials if t.values]))
        return sample(self, history, *rest)

    monkeypatch.setattr(TPESampler, "sample_independent", spy)
    assert study.ask(ValidPoints(lambda _: True, ({},)), "tpe", 0) is not None
    assert seen[0][0] == [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE]
    assert seen[0][1][:2] == [[0.0, 0.0], [0.1, 1.0]]
    assert study.study.direction == StudyDirection.MAXIMIZE


def test_lists_of_metrics_and_directions_are_several_objectives() -> None:
    """The first as a single one would be; what is written once more reads the same."""
    found = split_objectives(Search(metric=["eval_reward", "gpu_hours"], direction=["maximize", "minimize"]))
    assert (found.metric, found.direction, found.further) == ("eval_reward", "maximize", {"gpu_hours": "minimize"})
    assert split_objectives(found) == found


@pytest.mark.parametrize(("metric", "direction", "said"), [
    (["eval_reward", "gpu_hours"], "maximize", "one direction each"),
    (["gpu_hours", "eval_reward"], ["minimize", "maximize"], "the first is a metric"),
    (["a", "a"], ["minimize", "maximize"], "distinct"),
    (["a", "b"], ["minimize", "up"], "no such direction"),
    ([], [], "nothing to search for"),
])  # fmt: skip
def test_objectives_that_do_not_go_together_are_refused(
    metric: list[str], direction: list[str] | str, said: str
) -> None:
    """In one message."""
    with pytest.raises(UserError, match=said):
        split_objectives(Search(metric=metric, direction=direction))
