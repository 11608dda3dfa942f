"""Whole sweeps whose trials are guarded, paused, promoted and stopped; in this process, with a
policy of the test's own.
"""

import json
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.files import Json
from grposweep.search.early_stopping import EFFORT, StoppingPolicy, build_policy, choose_effort
from grposweep.search.early_stopping.rank import RankPolicy
from grposweep.storage.provenance import TIMES
from in_process import Sweep, Waits
from support import Printed, lines, read, trials, unwrap

FAKE = (
    "trainer=fake",
    "name=s",
    "schedule.budget_completions=null",
    "schedule.max_steps=10",
    "schedule.evaluations=10",
)
# the controller looks ten times a second
SLOW = "trainer.args.step_seconds=0.15"


def timeless(trial: Path) -> list[Json]:
    """The metrics without what differs between two runs anyway."""
    left_out = {*TIMES, "attempt", "time"}
    return [
        {name: v for name, v in line.items() if name not in left_out}
        for line in lines(trial / "metrics.jsonl")
    ]


@pytest.mark.slow
def test_a_collapsed_trial_is_ended_with_its_evidence(sweep_here: Sweep, printed: Printed) -> None:
    """Its reward falls to nothing; the other one's is far from its best, and continues."""
    folder = sweep_here(*FAKE, SLOW, "lr=1e-3,1", "trainer.args.best_lr=1e3", "trainer.keep=last")
    collapsed, sound = (read(trial / "result.json") for trial in trials(folder))
    assert (collapsed["status"], collapsed["guard"], sound["status"]) == (
        "pruned",
        "reward_fallen",
        "finished",
    )
    assert collapsed["failure"]["class"] == "collapse"
    assert collapsed["reason"].startswith("held-out reward has fallen from 0.2 before training")
    assert collapsed["step"] < 10
    said = printed()
    assert "trial 0 stopped early at eval_reward" in said
    # in the leaderboard, where others have their objective
    assert f"stopped early at {collapsed['objective']:.4f}  " in said
    assert "1 finished, 1 stopped early, 1 of them because" in said
    assert "because its training had collapsed" in said


@pytest.mark.slow
def test_without_guards_a_collapsed_trial_runs_to_its_end(sweep_here: Sweep) -> None:
    """search.guards=false."""
    folder = sweep_here(
        *FAKE, SLOW, "lr=1e-3,2e-3", "trainer.args.best_lr=1e4", "search.guards=false"
    )
    assert {read(trial / "result.json")["status"] for trial in trials(folder)} == {"finished"}


@pytest.mark.slow
def test_a_promoted_trial_of_the_real_trainer_equals_an_undisturbed_one_bit_for_bit(
    sweep_here: Sweep, tmp_path: Path
) -> None:
    """It continues from its checkpoint: what it had logged stays, so no step is trained twice."""
    words = (
        "batch=auto",
        "batch.prompts_per_step=4",
        "batch.num_generations=4",
        "task.eval_prompts=8",
        "lr=2e-3,1e-3",
        "schedule.budget_completions=null",
        "schedule.max_steps=30",
        "schedule.evaluations=5",
    )
    seen: list[str] = []

    def look(_number: int) -> None:
        seen.append((trials(tmp_path / "outputs" / "paused")[0] / "metrics.jsonl").read_text())

    paused = sweep_here(*words, "name=paused", stopping=Waits(look))
    straight = sweep_here(*words, "name=straight", stopping=StoppingPolicy())
    (trial, _), (undisturbed, _) = trials(paused), trials(straight)
    assert len(seen) == 1
    assert 6 <= max(json.loads(line)["step"] for line in seen[0].splitlines()) < 30
    assert (trial / "metrics.jsonl").read_text().startswith(seen[0])
    assert {line["attempt"] for line in lines(trial / "metrics.jsonl")} == {0, 1}
    assert timeless(trial) == timeless(undisturbed)
    ours, theirs = (read(folder / "result.json") for folder in (trial, undisturbed))
    assert (ours["objective"], ours["completions"]) == (theirs["objective"], theirs["completions"])


@pytest.mark.slow
def test_a_larger_effort_continues_the_trials_that_a_smaller_one_left_paused(
    sweep_here: Sweep, printed: Printed
) -> None:
    """The end says what was spent and how to continue. Then every trial finishes, and none trains a
    step twice.
    """
    space = ("lr=tag(log,interval(1e-5,3e-2))", "search.trials=10", "trainer.keep=none")
    folder = sweep_here(*FAKE, SLOW, *space, "search.effort=0.5")
    states = [read(trial / "result.json")["status"] for trial in trials(folder)]
    said = printed()
    assert {"finished", "stopped"} == set(states)
    assert f"{states.count('finished')} finished, {states.count('stopped')} paused: 5" in said
    assert "of 10 after 50% of the training" in said or "of 10 after 10% of the training" in said
    assert (
        f"finish the {states.count('stopped')} paused trials: run the same command with "
        "search.effort=1"
    ) in said
    reasons = [
        read(trial / "control.json")["reason"]
        for trial, state in zip(trials(folder), states, strict=True)
        if state == "stopped"
    ]
    assert all(" of the training" in reason and "waits" not in reason for reason in reasons)
    sweep_here(*FAKE, SLOW, *space, "search.effort=1")
    assert [read(trial / "result.json")["status"] for trial in trials(folder)] == ["finished"] * 10
    for trial in trials(folder):
        steps = [line["step"] for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]
        assert steps == sorted(set(steps))


def test_grids_and_comparisons_pause_nothing_unless_asked() -> None:
    """Every one of their trials is wanted."""
    assert {choose_effort(None, sampler) for sampler in ("grid", "one_factor")} == {1.0}
    assert choose_effort(None, "tpe") == EFFORT
    assert isinstance(build_policy("auto", 0.5), RankPolicy)
    assert isinstance(build_policy("auto", 1.0), StoppingPolicy)


@pytest.mark.slow
def test_an_effort_gets_the_evaluations_that_it_needs_and_says_what_is_impossible(
    sweep_here: Sweep, printed: Printed
) -> None:
    """A sweep that continues keeps its number of evaluations. The last lines say what was spent in
    each case.
    """
    options = ("trainer=fake", "batch=small", "lr=1e-3", "seed=0,1,2,3,4,5,6,7,8,9,10,11")
    folder = sweep_here(*options, "search.effort=0.2", "name=low")
    assert {len(read(trial / "plan.json")["evaluation_steps"]) for trial in trials(folder)} == {10}
    assert "of the completions that finishing every trial takes" in printed()
    sweep_here(*options, "search.effort=0.3", "name=low")
    assert "resumed" in printed()
    sweep_here(
        *options, "search.effort=0.2", "schedule.evaluations=2", "name=few", "cluster=dry_run"
    )
    said = unwrap(printed())
    assert "schedule.evaluations=2 a sweep spends 54% at least" in said
    assert "schedule.evaluations=10 makes 0.2 possible" in said


@pytest.mark.slow
def test_a_budget_says_what_it_buys_and_a_list_of_points_has_none(
    sweep_here: Sweep, printed: Printed
) -> None:
    """Two and a half times as many trials start as it could finish; its last lines name a larger
    budget.
    """
    options = ("trainer=fake", "batch=small", "name=budget", "search.budget=2x")
    folder = sweep_here(*options, "lr=tag(log,interval(1e-5,1e-1))")
    said = unwrap(printed())
    assert "search.budget=2x: about 5 trials start, and the first comparison costs 0.5x" in said
    assert "run the same command with a larger search.budget than 2x" in said
    assert len(trials(folder)) == 5
    with pytest.raises(UserError, match="every trial finishes, so no"):
        sweep_here(*options, "lr=1e-4,1e-3")
    with pytest.raises(UserError, match=r"one training has 6400, .* set search\.budget=6x"):
        sweep_here("trainer=fake", "name=six", "search.budget=6", "lr=interval(1e-5,1e-1)")
    assert not (folder.parent / "six").exists()
