"""``search.budget=12h`` limits every sweep: what runs stops at a rollout boundary, and a larger
budget continues it.
"""

import sys
from pathlib import Path
from typing import cast

import pytest

from grposweep.config.points import Compose, Points
from grposweep.report.trial_view import State
from grposweep.report.view import read_sweep
from grposweep.schema import Search
from grposweep.search.parse import parse_space
from grposweep.search.study import SweepStudy
from grposweep.search.validity import Validator
from grposweep.storage.folders import SweepFolder
from grposweep.storage.results import end_run, start_run
from grposweep.sweep._attempts import RunningAttempt
from grposweep.sweep._spending import Spending
from grposweep.sweep._trial_queue import TrialQueue
from support import lines, read, run_in, sampled, trials, unwrap

PACE = (
    "trainer=fake",
    "name=s",
    "trainer.args.step_seconds=0.02",
    "schedule=steps",
    "schedule.max_steps=30",
)
# 0.36 s, and a trial takes 0.6
SPENT = "search.budget=0.0001h"


def statuses(here: Path) -> list[str]:
    """How the trials of the sweep ended."""
    return [read(trial / "result.json")["status"] for trial in trials(here / "outputs" / "s")]


SWEEPS = {
    "a grid": ("-m", "lr=1e-4,1e-3"),
    "a list of points": ("search.points=[{lr:1e-4},{lr:1e-3}]",),
    "one factor": ("-m", "search=one_factor", "search.seeds=2", "lr=choice(1e-3)"),
    "an adaptive search": (
        "-m",
        "search.trials=2",
        "search.effort=1",
        "search=tpe",
        "lr=interval(1e-4,1e-3)",
    ),
}


@pytest.mark.parametrize("name", sampled(SWEEPS, 4))
def test_hours_stop_a_sweep_in_the_middle_and_a_larger_budget_continues_it(
    tmp_path: Path, name: str
) -> None:
    """Nothing has failed, nothing else starts, and no step is trained twice."""
    words = (*PACE, *SWEEPS[name])
    first = run_in(tmp_path, *words, SPENT)
    said = unwrap(first.out)
    # no trial has finished
    assert first.code == 1, first.err
    assert (
        "search.budget=0.0001h is spent: 1 running trial will stop at the next rollout boundary"
        in said
    )
    assert "to go, of which 1 begun; run the same command with a larger budget to continue" in said
    assert statuses(tmp_path) == ["stopped"]
    assert read_sweep(tmp_path / "outputs" / "s").count(State.FAILED) == 0
    again = run_in(tmp_path, *words, SPENT)
    assert "is spent with" in again.out
    assert statuses(tmp_path) == ["stopped"]
    last = run_in(tmp_path, *words, "search.budget=1h")
    assert last.code == 0, last.err
    assert set(statuses(tmp_path)) == {"finished"}
    assert "of 1 CPU hours" in last.out or "of 1 GPU hours" in last.out
    steps = [
        line["step"]
        for line in lines(trials(tmp_path / "outputs" / "s")[0] / "metrics.jsonl")
        if line["kind"] == "train"
    ]
    assert steps == sorted(set(steps))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "evaluations", "slots", "steps"),
    [(1, 2, 1, 6), (3, 1, 2, 4), (3, 2, 2, 8), (2.5, 3, 8, 6), (2, 10, 3, 10)],
)
def test_a_sweep_spends_its_budget_at_most_by_one_rollout_a_slot(
    tmp_path: Path, budget: float, evaluations: int, slots: int, steps: int
) -> None:
    """In whole trainings of eight seconds at most; one trial finishes."""
    schedule = (f"schedule.max_steps={steps}", f"schedule.evaluations={evaluations}")
    limits = (f"search.budget={budget}x", f"search.parallel={slots}")
    pace = ("trainer.args.step_seconds=0.4", "-m", "lr=interval(1e-4,1e-3)")
    ended = run_in(tmp_path, *PACE, *schedule, *limits, *pace)
    assert ended.code == 0, ended.out
    folders = trials(tmp_path / "outputs" / "s")
    spent = sum(read(folder / "result.json")["completions"] for folder in folders)
    training = read(folders[0] / "plan.json")["total_completions"]
    assert spent <= training * (budget + slots / steps)
    assert "finished" in statuses(tmp_path)


@pytest.mark.slow
def test_hours_stop_a_command_that_cannot_resume_and_it_starts_over(tmp_path: Path) -> None:
    """It gets SIGTERM; its trial is stopped, not failed."""
    program = tmp_path / "train.py"
    program.write_text(
        "import json, sys, time\n"
        "with open(sys.argv[1] + '/metrics.jsonl', 'w') as file:\n"
        "    for step in range(1, 21):\n"
        "        time.sleep(0.05)\n"
        "        print(json.dumps({'step': step, 'eval_reward': step / 20}), file=file, "
        "flush=True)\n"
    )
    command = f'trainer.command="{sys.executable} {program} {{output}} {{lr}}"'
    metrics = "trainer.metrics={output}/metrics.jsonl"
    words = (
        "trainer=command",
        "name=s",
        command,
        metrics,
        "cluster.processes=1",
        "-m",
        "lr=1e-4,1e-3",
    )
    first = run_in(tmp_path, *words, "search.budget=0.0001h")
    assert "search.budget=0.0001h is spent: 1 running trial will stop" in unwrap(first.out), (
        first.out + first.err
    )
    assert statuses(tmp_path) == ["stopped"]
    last = run_in(tmp_path, *words, "search.budget=1h")
    assert last.code == 0, last.out + last.err
    assert statuses(tmp_path) == ["finished", "finished"]


def build_validator(compose: Compose, *arguments: str) -> Validator:
    """The validator of a space, such as ``lr=interval(1e-5,1e-2)``, and of what every trial has."""
    space, fixed = parse_space(list(arguments), {})
    return Validator(space, Points(compose, fixed))


def test_a_budget_of_exactly_the_hours_of_the_trials_is_spent(
    compose: Compose, tmp_path: Path
) -> None:
    """An hour on two devices is two GPU hours."""
    study = SweepStudy(build_validator(compose, "lr=interval(1e-4,1e-2)").space, "maximize")
    study.add({"lr": 1e-3}, {"experiment": "abcdef"})
    path = SweepFolder(tmp_path).trial(0, "abcdef").path
    path.mkdir(parents=True)
    start_run(path, 0, 2)
    end_run(path, 0, seconds=3600.0)
    spent = [Spending(SweepFolder(tmp_path), study, limit).is_over for limit in (2.1, 2.0, None)]
    assert spent == [False, True, False]
    # the cost of a trial is read again after another attempt
    spending = Spending(SweepFolder(tmp_path), study, 4.0)
    assert not spending.is_over
    start_run(path, 1, 2)
    end_run(path, 1, seconds=3600.0)
    spending.running[0] = cast(RunningAttempt, None)
    spending.end(0)
    assert spending.is_over
    # an attempt of an earlier controller, which this one does not follow yet
    start_run(path, 2, 2)
    later = Spending(SweepFolder(tmp_path), study, 6.0)
    assert not later.is_over
    end_run(path, 2, seconds=3600.0)
    assert later.is_over


def test_a_resumed_sweep_tries_the_points_of_another_list(
    compose: Compose,
) -> None:
    """The first of the new list, too, although the first of the old one was tried."""
    validator = build_validator(compose, "lr=interval(1e-3,1e-2)")
    study = SweepStudy(validator.space, "maximize")
    started = []
    for lr in (2e-3, 3e-3, 3e-3):
        trial = TrialQueue(study, validator, Search(trials=20), "random", [], [{"lr": lr}]).next()
        assert trial is not None
        study.add(trial.verdict.point, trial.attributes)
        started.append(trial.verdict.point["lr"])
    assert started[:2] == [2e-3, 3e-3]
    assert started[2] not in (2e-3, 3e-3)
