"""An objective that no evaluation can report is refused before anything is created, if the names
are known.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.frameworks import open_r1
from grporecipe.frameworks.ms_swift import keys as ms_swift
from grposweep.config.compose import open_session
from grposweep.config.evaluation import is_of_reward
from grposweep.config.points import Points
from grposweep.schema import Experiment
from grposweep.sweep._metric_names import check_metrics, known_names

Made = Callable[..., Experiment]
OWN = "task.rewards=[rewards.py:right]"


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    """An experiment with some overrides."""
    with open_session() as session:
        yield lambda *words: Points(session.compose, list(words)).base


@pytest.mark.parametrize(
    ("reward", "metrics"),
    [
        ("exact", "eval_reward reward eval_rewards/exact/mean eval_kl diversity loss"),
        ("rewards.py:right", "rewards/right/std"),
        ("math", "eval_loss"),
    ],
)
def test_names_that_trl_and_the_evaluation_report_are_known(
    made: Made, reward: str, metrics: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of rewards are made of the functions' names."""
    (tmp_path / "rewards.py").write_text(
        "def right(completions, **_): return [1.0 for _ in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    experiment = made("trainer=trl", f"task.rewards=[{reward}]")
    for metric in metrics.split():
        experiment.search.metric = metric
        check_metrics([experiment], compares=True)


@pytest.mark.parametrize(
    "words",
    [
        ("trainer=trl", OWN),
        ("trainer=trl", "cluster.python=python3"),
        ("trainer=command", "trainer.command=train", "trainer.metrics=log"),
    ],
)
def test_metrics_that_only_a_program_or_a_reward_knows_are_not_judged(
    made: Made, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward may log its own through TRL's ``log_metric``; another Python may have another
    TRL.
    """
    (tmp_path / "rewards.py").write_text(
        "def right(completions, log_metric, **_): log_metric('accuracy', 1.0)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert known_names(made(*words)) is None


def test_a_name_far_from_all_known_ones_may_be_logged_by_a_library_of_a_users_reward(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that looks misspelt is refused, and so is any of them with grposweep's own rewards."""
    (tmp_path / "rewards.py").write_text(
        "def right(completions, **kwargs): return [1.0 for _ in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    check_metrics([made("trainer=trl", OWN, "search.metric=eval_passed_checks")], compares=True)
    for words in (
        (OWN, "search.metric=eval_rewrad"),
        ("task.rewards=[exact]", "search.metric=eval_passed_checks"),
    ):
        with pytest.raises(UserError, match="reports no such metric"):
            check_metrics([made("trainer=trl", *words)], compares=True)


def test_several_trials_without_evaluations_are_refused(made: Made) -> None:
    """They would all have the value of their start."""
    with pytest.raises(UserError, match=r"schedule.evaluations=0 with search.metric=eval_reward"):
        check_metrics([made("schedule.evaluations=0")], compares=True)
    check_metrics([made("schedule.evaluations=0", "search.metric=reward")], compares=True)
    check_metrics([made("schedule.evaluations=0")], compares=False)


@pytest.mark.parametrize(
    "key", ["task.rewards=[exact],[exact,format]", "task.reward_weights=[1.0],[2.0]"]
)
def test_searched_rewards_are_not_ranked_by_their_own_sum(made: Made, key: str) -> None:
    """Doubled weights would double the objective; one reward's mean is the same measure for all
    points.
    """
    name, _, values = key.partition("=")
    options = [f"{name}={value}" for value in values.replace("],[", "];[").split(";")]
    with pytest.raises(
        UserError,
        match=r"ranked by a measure of its own. Set search.metric=eval_rewards/exact/mean",
    ):
        check_metrics([made(option) for option in options], compares=True)
    check_metrics(
        [made(option, "search.metric=eval_rewards/exact/mean") for option in options], compares=True
    )


def test_only_the_frameworks_own_keys_say_what_is_rewarded() -> None:
    """Others of these beginnings are a script's own options."""
    known = {*open_r1.TABLE["keys"], *ms_swift.table()["keys"], "cosine_cycles"}
    alike = [key for key in known if re.match("cosine_|repetition_[mn]|soft_", key)]
    assert [key for key in alike if not is_of_reward(f"trainer.args.{key}")] == ["cosine_cycles"]
