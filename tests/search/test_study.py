"""The sweep's study: what enters it, and what samplers see of it."""

from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, distribution_to_json, json_to_distribution
from optuna.trial import TrialState

from grposweep.search.sampler import ValidPoints
from grposweep.search.space import Choice, Interval, Parameter, Space
from grposweep.search.study import SamplerView, SweepStudy
from support import executed_lines

SPACE = Space(
    (
        Parameter("lr", Interval(1e-5, 1e-2, log=True)),
        Parameter("kl", Choice(("none", "low"), ("none", "low"))),
    )
)


@pytest.fixture
def study(tmp_path: Path) -> SweepStudy:
    """A new study."""
    return SweepStudy(SPACE, "maximize")


def test_trials_are_kept_with_their_evaluations(study: SweepStudy) -> None:
    """Values, attributes, intermediate values, states."""
    first = study.add({"lr": 1e-3, "kl": "low"}, {"id": "3f9a1c"})
    second = study.add({"lr": 2e-3, "kl": "none"}, {})
    study.tell(first, 0.5, {10: 0.3, 20: 0.5})
    study.tell(second, None)
    one, two = study.trials
    assert (one.number, one.value, one.state, one.user_attrs["id"]) == (
        first,
        0.5,
        TrialState.COMPLETE,
        "3f9a1c",
    )
    assert one.intermediate_values == {10: 0.3, 20: 0.5}
    assert one.params == {"lr": 1e-3, "kl": "low"}
    assert (two.number, two.state) == (second, TrialState.FAIL)


def test_a_trial_is_told_once(study: SweepStudy) -> None:
    """A controller that crashed after telling tells again."""
    number = study.add({"lr": 1e-3, "kl": "low"}, {})
    study.tell(number, 0.5, {10: 0.5})
    study.tell(number, 0.9, {10: 0.9, 20: 0.9})
    study.tell(number, None)
    assert [trial.value for trial in study.trials] == [0.5]
    assert study.trials[0].intermediate_values == {10: 0.5}


def test_an_invalid_point_is_recorded_as_pruned_with_its_reasons(study: SweepStudy) -> None:
    """For a grid: the study shows what was left out, and why."""
    study.add_invalid({"lr": 1e-3, "kl": "none"}, ["GB101 num_generations=8: ..."])
    number = study.add({"lr": 1e-3, "kl": "low"}, {})
    invalid, running = study.trials
    assert (invalid.state, running.state) == (TrialState.PRUNED, TrialState.RUNNING)
    assert invalid.user_attrs == {"invalid": True, "problems": ["GB101 num_generations=8: ..."]}
    assert number == running.number == 1


def test_a_replicate_counts_for_nothing_in_the_search(study: SweepStudy) -> None:
    """It is no search trial, is never the best one, and no sampler sees it."""
    study.tell(study.add({"lr": 1e-3, "kl": "low"}, {}), 0.5, {})
    study.tell(
        study.add({"lr": 1e-3, "kl": "low"}, {"role": "confirm", "of": 0, "seed": 1000}), 0.9, {}
    )
    assert [trial.number for trial in study.searched] == [0]
    assert study.best is not None
    assert study.best.number == 0
    assert [trial.value for trial in SamplerView("maximize").updated(study.trials).trials] == [0.5]


def test_samplers_know_what_earlier_sweeps_found_and_the_study_does_not(study: SweepStudy) -> None:
    """Ten earlier results end TPE's random start: it asks elsewhere than a study that knows
    nothing.
    """
    valid = ValidPoints(lambda _: True, ({"kl": "none"}, {"kl": "low"}))
    unknowing = study.ask(valid, "tpe", 0)
    study.learn([({"lr": 1e-4 * (i + 1), "kl": "low"}, i / 10) for i in range(12)])
    assert study.trials == []
    assert study.ask(valid, "tpe", 0) != unknowing


def test_a_trial_stopped_early_is_pruned_with_its_evaluations(study: SweepStudy) -> None:
    """Its value is the last one."""
    study.tell(study.add({"lr": 1e-3, "kl": "low"}, {}), None, {10: 0.3, 20: 0.2}, pruned=True)
    (trial,) = study.trials
    assert (trial.state, trial.value, trial.intermediate_values) == (
        TrialState.PRUNED,
        0.2,
        {10: 0.3, 20: 0.2},
    )
    assert study.best is None


def test_samplers_see_forecasts_of_trials_until_they_have_a_value(study: SweepStudy) -> None:
    """Forecasts change; the study itself knows nothing of them, and a new copy is the same."""
    scratch = SamplerView("maximize")
    waiting, stopped = (study.add({"lr": lr, "kl": "low"}, {}) for lr in (1e-3, 2e-3))
    study.tell(stopped, None, {10: 0.1}, pruned=True)
    for foreseen in ({waiting: 0.4, stopped: 0.1}, {waiting: 0.6, stopped: 0.05}):
        seen = scratch.updated(study.trials, foreseen).trials
        assert [(trial.state, trial.value) for trial in seen] == [
            (TrialState.COMPLETE, v) for v in foreseen.values()
        ]
    assert study.trials[waiting].state == TrialState.RUNNING
    study.tell(waiting, 0.7)
    for copy in (scratch, SamplerView("maximize")):
        assert [trial.value for trial in copy.updated(study.trials, {stopped: 0.05}).trials] == [
            0.7,
            0.05,
        ]


def test_trials_share_the_lists_of_labels(tmp_path: Path) -> None:
    """Optuna would copy and compare thousands of labels for each trial, which took 80 s for 5,000
    trials.
    """
    labels = tuple(range(2000))
    wide = SweepStudy(Space((Parameter("seed", Choice(labels, labels)),)), "maximize")

    def build() -> None:
        for label in labels[:20]:
            wide.tell(wide.add({"seed": label}, {}), 0.5, {10: 0.5})

    executed_lines(build, 20_000)
    kind = wide.trials[0].distributions["seed"]
    assert kind is wide.trials[19].distributions["seed"]
    assert (
        json_to_distribution(distribution_to_json(kind)) == CategoricalDistribution(labels) == kind
    )
