"""Whole sweeps from the command line, with the fake trainer: search, resume, failure, interruption,
in seconds.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support import (
    PROJECT,
    Run,
    environment,
    is_running,
    lines,
    read,
    study,
    trials,
    wait_for,
)

FAKE = ("trainer=fake", "name=s")
SLOW = (*FAKE, "trainer.args.step_seconds=0.02", "schedule=steps", "schedule.max_steps=100")


def test_a_grid_runs_every_valid_point_and_records_the_invalid_ones(run: Run) -> None:
    """Two learning rates and three sizes of a group, one of which divides no rollout."""
    ended = run(*FAKE, "-m", "lr=1e-4,1e-3", "batch.num_generations=4,8,12")
    assert ended.code == 0, ended.err
    states = [trial.state.name for trial in study(ended.sweep).trials]
    assert states.count("PRUNED") == 2
    assert states.count("COMPLETE") == 4
    assert "GB101" in ended.out
    assert len(trials(ended.sweep)) == 4


def test_points_that_are_one_training_are_one_trial(run: Run) -> None:
    """The scale of LoRA changes nothing at a rank of 0, and a fixed key nothing at all."""
    ended = run(
        *FAKE,
        "-m",
        "model.lora.r=0,8",
        "model.lora.alpha=8,16",
        "kl.ref_model_sync_steps=9",
    )
    assert "model.lora.r is 0, at 2 of 4 valid points" in ended.out
    assert "so it changes nothing. Set kl.sync_ref_model=true" in ended.out
    assert len(trials(ended.sweep)) == 3


@pytest.mark.slow
def test_both_sweep_syntaxes_are_one_sweep(run: Run) -> None:
    """Commas between parameters, or spaces: the second command finds the first one's results."""
    first = run("trainer=fake", "-m", "lr=1e-4,1e-3", "kl=none,low")
    second = run("trainer=fake", "-m", "lr=1e-4,1e-3,kl=none,low")
    assert first.sweep == second.sweep
    assert "4 of them recorded already" in second.out


@pytest.mark.slow
def test_an_interval_is_searched_by_tpe_and_invalid_options_are_never_asked(run: Run) -> None:
    """Twelve trials, none at the invalid size of a group, none recorded as pruned."""
    space = (
        "-m",
        "lr=tag(log,interval(1e-5,3e-3))",
        "batch.num_generations=8,12",
        "search.trials=12",
    )
    ended = run(*FAKE, "search.stopping=none", *space)
    found = study(ended.sweep).trials
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 12
    assert {trial.params["batch.num_generations"] for trial in found} == {8}


@pytest.mark.slow
def test_the_same_adaptive_sweep_twice_asks_the_same_points(run: Run) -> None:
    """Asks depend on seed, number and history alone."""
    space = ("-m", "lr=tag(log,interval(1e-5,3e-3))", "kl=none,low", "search.trials=12")
    # when a pause takes effect depends on timing
    arguments = ("trainer=fake", "search.stopping=none", *space)
    first = run(*arguments, "name=a")
    second = run(*arguments, "name=b")
    assert [trial.params for trial in study(first.sweep).trials] == [
        t.params for t in study(second.sweep).trials
    ]


@pytest.mark.slow
def test_a_larger_number_of_trials_extends_a_finished_sweep(run: Run) -> None:
    """Three, then five: two more, and the first three untouched. With less effort those that are
    paused may continue.
    """
    arguments = (*FAKE, "search.effort=1", "-m", "lr=tag(log,interval(1e-5,3e-3))")
    before = run(*arguments, "search.trials=3")
    kept = [(folder / "result.json").stat().st_mtime_ns for folder in trials(before.sweep)]
    after = run(*arguments, "search.trials=5")
    assert len(trials(after.sweep)) == 5
    assert [(folder / "result.json").stat().st_mtime_ns for folder in trials(after.sweep)][
        :3
    ] == kept


@pytest.mark.slow
def test_a_finished_run_shows_its_result_instead_of_running_again(run: Run) -> None:
    """Unless force=true asks for it."""
    first = run("trainer=fake", "lr=1e-3")
    again = run("trainer=fake", "lr=1e-3")
    assert "1 of them recorded already" in again.out
    assert len(trials(first.sweep)) == 1
    assert run("trainer=fake", "lr=1e-3", "force=true").code == 0
    assert len(trials(first.sweep)) == 2


@pytest.mark.slow
def test_enqueued_points_are_tried_first(run: Run) -> None:
    """In the order in which they are given."""
    wanted = "search.enqueue=[{lr:1e-4,batch:medium},{lr:2e-4,batch:small}]"
    ended = run(
        *FAKE,
        "-m",
        "lr=tag(log,interval(1e-5,3e-3))",
        "batch=small,medium",
        "search.trials=4",
        wanted,
    )
    points = [trial.params for trial in study(ended.sweep).trials]
    assert points[:2] == [{"lr": 1e-4, "batch": "medium"}, {"lr": 2e-4, "batch": "small"}]


@pytest.mark.slow
def test_a_sweep_is_not_resumed_on_other_files_unless_the_user_says_so(
    run: Run, here: Path
) -> None:
    """Its earlier trials were trained on the prompts as they were."""
    prompts = here / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(64))
    )
    task = ("task=jsonl", "task.path=prompts.jsonl", "task.rewards=[exact]", "task.eval_prompts=8")
    assert run(*FAKE, *task, "-m", "lr=1e-4,1e-3", "search.trials=1").code == 0
    prompts.write_text(prompts.read_text().replace('"1"', '"2"'))
    refused = run(*FAKE, *task, "-m", "lr=1e-4,1e-3")
    assert refused.code == 2
    assert "prompts.jsonl has changed since 1 trial" in refused.err
    resumed = run(*FAKE, *task, "-m", "lr=1e-4,1e-3", "search.changed_files=accept")
    assert (
        "resumed (other code, packages or files than at its start: prompts.jsonl has changed)"
        in resumed.out
    )
    assert "files: trials with another number read other contents" in " ".join(resumed.out.split())


def test_a_killed_controller_leaves_nothing_running_and_its_command_resumes(
    run: Run, start: Callable, here: Path
) -> None:
    """Kill -9 in the middle: the attempts die with it, finished trials are kept, the unfinished one
    continues.
    """
    arguments = (*SLOW, "schedule.max_steps=50", "-m", "lr=1e-4,3e-4,1e-3")
    process = start(*arguments)
    wait_for(lambda: len(list(here.glob("outputs/s/trials/0001*/heartbeat"))) == 1)
    job = lines(next(here.glob("outputs/s/trials/0001*/attempts.jsonl")))[-1]["job_id"]
    process.kill()
    process.wait()
    wait_for(lambda: not is_running(int(job.removeprefix("local-"))), seconds=10)
    kept = read(next(here.glob("outputs/s/trials/0000*/result.json")))
    ended = run(*arguments)
    assert ended.code == 0, ended.err
    assert [trial.state.name for trial in study(ended.sweep).trials] == ["COMPLETE"] * 3
    assert read(trials(ended.sweep)[0] / "result.json") == kept
    steps = [
        line["step"]
        for line in lines(trials(ended.sweep)[1] / "metrics.jsonl")
        if line["kind"] == "train"
    ]
    assert steps == list(range(1, 51))


@pytest.mark.slow
def test_ctrl_c_stops_at_a_boundary_and_the_same_command_continues(
    run: Run, start: Callable, here: Path
) -> None:
    """The stopped trial has a checkpoint, the lease is free, exit code 130, and the resumed one
    repeats no step.
    """
    process = start(*SLOW, "lr=1e-3")
    wait_for(lambda: len(list(here.glob("outputs/s/trials/*/heartbeat"))) == 1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    folder = trials(here / "outputs/s")[0]
    assert read(folder / "result.json")["status"] == "stopped"
    assert not (here / "outputs/s/lease.json").exists()
    assert "it continues from its last checkpoint (step " in run(*SLOW, "lr=1e-3").out
    steps = [line["step"] for line in lines(folder / "metrics.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, 101))
    assert {line["attempt"] for line in lines(folder / "metrics.jsonl")} == {0, 1}


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_hung_trial(start: Callable, here: Path) -> None:
    """A trial that is deaf to requests is killed, and not recorded as failed."""
    process = start(*SLOW, "trainer.args.hang_at=1", "lr=1e-3")
    wait_for(lambda: len(list(here.glob("outputs/s/trials/*/runs.jsonl"))) == 1)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: len(list(here.glob("outputs/s/trials/*/control.json"))) == 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert not (trials(here / "outputs/s")[0] / "result.json").exists()


@pytest.mark.slow
def test_a_second_controller_is_refused_while_the_first_one_lives(
    run: Run, start: Callable, here: Path
) -> None:
    """And the first one is not disturbed: it continues until it is stopped."""
    endless = (*SLOW, "schedule.max_steps=5000", "lr=1e-3")
    process = start(*endless)
    wait_for(lambda: len(list(here.glob("outputs/s/trials/*/heartbeat"))) == 1)
    second = run(*endless)
    assert second.code == 2
    assert "another controller" in second.err
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130


@pytest.mark.slow
def test_trials_run_side_by_side_up_to_the_limit(run: Run) -> None:
    """Three at once: their attempts overlap, and no fourth one does."""
    ended = run(
        *SLOW,
        "schedule.max_steps=40",
        "search.parallel=3",
        "-m",
        "lr=1e-4,2e-4,3e-4,4e-4,5e-4,6e-4",
    )
    spans = []
    for folder in trials(ended.sweep):
        events = {line["event"]: line for line in lines(folder / "attempts.jsonl")}
        spans.append(
            (events["started"]["time"], events["started"]["time"] + events["ended"]["seconds"])
        )
    overlaps = [sum(begin <= other_begin < end for begin, end in spans) for other_begin, _ in spans]
    assert max(overlaps) == 3


@pytest.mark.slow
def test_a_trial_folder_says_how_to_repeat_it(run: Run) -> None:
    """Configuration, overrides, provenance with seeds and versions, and a command."""
    ended = run(*FAKE, "-m", "lr=1e-3,1e-4", "kl=low")
    folder = trials(ended.sweep)[1]
    assert yaml.safe_load((folder / "config.yaml").read_text())["kl"]["beta"] == 1e-3
    assert yaml.safe_load((folder / "overrides.yaml").read_text()) == [
        "trainer=fake",
        "name=s",
        "kl=low",
        "lr=0.0001",
    ]
    provenance = read(folder / "provenance.json")
    assert provenance["seeds"] == {"seed": 0, "search.seed": 0}
    assert provenance["packages"]["trl"]
    assert "lr=0.0001" in (folder / "command.sh").read_text()


@pytest.mark.slow
def test_the_objective_may_be_minimised_and_averaged(run: Run) -> None:
    """The mean of the last two evaluations, and the worst learning rate wins."""
    ended = run(*FAKE, "search.direction=minimize", "search.last=2", "-m", "lr=1e-3,1e-5")
    assert study(ended.sweep).best_params == {"lr": 1e-5}
    evaluations = [
        line["eval_reward"]
        for line in lines(trials(ended.sweep)[0] / "metrics.jsonl")
        if line["kind"] == "eval"
    ]
    assert read(trials(ended.sweep)[0] / "result.json")["objective"] == sum(evaluations[-2:]) / 2


@pytest.mark.slow
def test_only_the_winners_model_is_kept(run: Run) -> None:
    """trainer.keep=best."""
    ended = run(*FAKE, "trainer.keep=best", "-m", "lr=1e-5,1e-3,1e-4")
    assert [(folder / "model").exists() for folder in trials(ended.sweep)] == [False, True, False]


@pytest.mark.slow
def test_a_conditional_parameter_is_asked_only_where_it_counts(run: Run) -> None:
    """The KL grid of sweeps/: kl=none has one point a learning rate, the others two."""
    ended = run("sweeps=kl_grid", "trainer=fake", "name=s")
    assert ended.code == 0, ended.err
    points = [trial.params for trial in study(ended.sweep).trials]
    assert len(points) == 10
    assert all(("kl.beta" in point) == (point["kl"] != "none") for point in points)


# studies of sweeps/, and their trials
PUBLISHED = {"loss_clip": 8, "lora_rank": 12, "generations": 8}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_study_with_published_ranges_is_valid_as_it_stands(run: Run, name: str) -> None:
    """A dry run writes all of its trials into a folder with the name of the study, and no rule
    warns of a point.
    """
    ended = run(f"sweeps={name}", "trainer=fake", "cluster=dry_run")
    assert ended.code == 0, ended.err
    # and the head of the hash of its identity
    assert re.fullmatch(rf"{name}-[0-9a-f]{{6}}", ended.sweep.name)
    assert "warning" not in ended.out
    assert "invalid" not in ended.out
    assert len(trials(ended.sweep)) == PUBLISHED[name]
    # each loss has its own clip, and only that of DAPO is searched
    if name == "loss_clip":
        losses = {
            str(config["loss"])
            for trial in trials(ended.sweep)
            if (config := yaml.safe_load((trial / "config.yaml").read_text()))
        }
        clips = {
            (loss["loss_type"], loss["epsilon"], loss["epsilon_high"])
            for loss in map(yaml.safe_load, losses)
        }
        assert clips == {
            ("grpo", 3e-4, 4e-4),
            ("dapo", 0.2, 0.2),
            ("dapo", 0.2, 0.28),
            ("cispo", 0.2, 5.0),
        }


@pytest.mark.slow
def test_the_controller_never_imports_torch(here: Path) -> None:
    """A whole sweep in one process, and no trace of what only training may import."""
    code = (
        "import sys, json, runpy; sys.argv = ['run.py', 'trainer=fake', '-m', 'lr=1e-3,1e-4']\n"
        f"sys.path.insert(0, {str(PROJECT / 'src')!r})\n"
        f"try: runpy.run_path({str(PROJECT / 'src' / 'run.py')!r}, run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    print(json.dumps([end.code, sorted({'torch', 'transformers', 'trl', 'wandb'} & "
        "set(sys.modules))]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]


def test_a_run_without_evaluations_has_no_result(run: Run) -> None:
    """The value is the start's, which is no gain of 0."""
    ended = run("trainer=fake", "schedule.evaluations=0")
    assert "No result: only the model before training was evaluated" in ended.out
    assert "Evaluate what is trained: python" in ended.out
