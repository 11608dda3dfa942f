"""Sweeps that begin with what earlier ones found."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fuzz.damaged_sweeps import without_waiting
from grposweep.config.compose import load_experiment
from grposweep.config.identity import ResolvedConfig
from in_process import sweeps_in
from support import Run, read, run_in, trials

SHORT = ("trainer=fake", "schedule=steps", "schedule.max_steps=2", "schedule.evaluations=1")
EARLIER = (*SHORT, "name=early", "batch.per_device_train_batch_size=32", "-m", "lr=1e-5,1e-3,3e-3")
# The same 4 prompts x 8 generations per step, in two micro-steps.
OTHER_SIZES = ("batch.per_device_train_batch_size=16", "batch.gradient_accumulation_steps=2")
LATER = (
    *SHORT,
    *OTHER_SIZES,
    "name=late",
    "search=tpe",
    "search.trials=4",
    "-m",
    "lr=tag(log,interval(1e-4,1e-2))",
    "kl=none,low",
)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which such a sweep was run."""
    here = tmp_path_factory.mktemp("p,q(1)=z")
    assert run_in(here, *EARLIER).code == 0
    return here


@pytest.mark.slow
def test_best_points_come_first_and_results_are_known_on_other_hardware(earlier: Path) -> None:
    """1e-5 is outside the new interval and left out; what was taken over is on disk, and stays when
    the source is gone.
    """
    ended = run_in(earlier, *LATER, "search.warm_start=early")
    assert ended.code == 0, ended.err
    taken = read(ended.sweep / "warm_start.json")
    assert taken["first"] == [{"lr": 1e-3, "kl": "none"}, {"lr": 3e-3, "kl": "none"}]
    assert [(seen["point"]["lr"], seen["trial"]) for seen in taken["observations"]] == [
        (1e-3, 1),
        (3e-3, 2),
    ]
    points = [read(folder / "trial.json")["point"] for folder in trials(ended.sweep)]
    assert points[:2] == taken["first"]
    assert all(point["kl"] in ("none", "low") for point in points)
    provenance = yaml.safe_load((ended.sweep / "sweep.yaml").read_text())["provenance"]
    assert provenance["warm_start"][0]["sweep"] == str(earlier / "outputs" / "early")
    # the names of the sources are only for the message
    del taken["sources"]
    (ended.sweep / "warm_start.json").write_text(json.dumps(taken))
    again = run_in(earlier, *LATER, "search.warm_start=gone")
    assert again.code == 0, again.err
    assert read(again.sweep / "warm_start.json") == taken


REWARD = "def length(completions, **_):\n    return [float(len(text)) for text in completions]\n"


@pytest.mark.slow
def test_other_contents_of_a_reward_give_points_and_no_results(tmp_path: Path) -> None:
    """Its values are of another reward under the same name."""
    (tmp_path / "reward.py").write_text(REWARD)
    rewarded = ("task.rewards=[reward.py:length]", "task.reward_weights=null")
    ended = run_in(tmp_path, *EARLIER, *rewarded)
    assert ended.code == 0, ended.err
    (tmp_path / "reward.py").write_text(REWARD.replace("len(text)", "-len(text)"))
    ended = run_in(tmp_path, *LATER, *rewarded, "search.warm_start=early")
    assert "warm start from early: 2 points tried first, 0 results known" in ended.out, ended.err


@pytest.mark.slow
def test_auto_takes_the_newest_sweep_of_the_same_model_objective_and_space(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another task: its points are tried first, and its results do not count. Without the key
    the start names it.
    """
    # an index of its own: the user's has the sweeps of the last run of this test
    monkeypatch.setenv("GRPOSWEEP_CACHE", str(earlier))
    words = (*LATER, "search.trials=3")
    run_in(earlier, *words, "name=first")
    named = run_in(earlier, *words, "name=second", "task.eval_prompts=64")
    assert "Add search.warm_start=first to try its best 3 points first" in named.out
    ended = run_in(earlier, *words, "name=third", "search.warm_start=auto")
    assert "warm start from second: 3 points tried first, 0 results known to the" in ended.out
    tried = [read(folder / "trial.json")["point"] for folder in trials(ended.sweep)]
    assert tried == read(ended.sweep / "warm_start.json")["first"]
    unlike = run_in(
        earlier, *words, "name=fourth", "search.warm_start=auto", "search.metric=reward"
    )
    assert "no earlier sweep of the same model, objective and space" in unlike.out, unlike.err
    far = run_in(earlier, *words, "outputs=far", "task.eval_prompts=32")
    assert f"""Add 'search.warm_start="{earlier}/outputs/third"' to try""" in far.out


@pytest.mark.slow
def test_another_schedule_gives_points_and_no_results(earlier: Path) -> None:
    """After two steps a reward is not what it is after four."""
    ended = run_in(
        earlier,
        *LATER,
        "name=longer",
        "schedule.max_steps=4",
        "search.warm_start=[early]",
        "search.trials=2",
    )
    taken = read(ended.sweep / "warm_start.json")
    assert (len(taken["first"]), taken["observations"]) == (2, [])


@pytest.mark.slow
def test_an_earlier_trial_is_found_at_any_option_that_learns_the_same(
    earlier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if other options of a group come first."""
    with without_waiting():
        sweep = sweeps_in(earlier, monkeypatch)(
            *SHORT,
            *OTHER_SIZES,
            "name=other",
            "search=tpe",
            "search.trials=1",
            "search.warm_start=early",
            "lr=tag(log,interval(1e-4,1e-2))",
            "kl=low,none",
        )
    assert read(sweep / "warm_start.json")["first"] == [
        {"lr": 1e-3, "kl": "none"},
        {"lr": 3e-3, "kl": "none"},
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "search.metric=reward",
            "optimised something else (search.metric=eval_reward, here reward)",
        ),
        ("search.warm_start=[early,nowhere]", "nowhere is no sweep"),
        ("search.warm_start=123", "123 is no sweep"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_message(
    earlier: Path, change: str, said: str
) -> None:
    """Before anything is written."""
    wanted = () if change.startswith("search.warm") else ("search.warm_start=early",)
    ended = run_in(earlier, *LATER, "name=refused", *wanted, change)
    assert ended.code == 2
    assert said in ended.err
    assert not (earlier / "outputs" / "refused").exists()


def test_sizes_and_seeds_change_no_learning_and_rates_do(earlier: Path) -> None:
    """What hardware sees is apart from what the algorithm sees."""
    one, other, _ = (
        load_experiment(folder / "config.yaml") for folder in trials(earlier / "outputs" / "early")
    )
    sizes = replace(one.batch, per_device_train_batch_size=16, gradient_accumulation_steps=2)
    halved = replace(one, batch=sizes, seed=7)
    told = [
        json.dumps(ResolvedConfig.of(found).learning(), default=str)
        for found in (one, halved, other)
    ]
    assert told[0] == told[1] != told[2]


@pytest.mark.slow
def test_a_point_that_was_enqueued_twice_is_tried_once(run: Run) -> None:
    """And the search continues after it."""
    ended = run(*LATER, "search.enqueue=[{lr: 0.001, kl: low}, {lr: 0.001, kl: low}]")
    assert ended.code == 0, ended.err
    assert len(trials(ended.sweep)) == 4
