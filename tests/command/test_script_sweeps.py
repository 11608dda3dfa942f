"""Sweeps of a script that the user already has, from the command line: its recipe, its log, its
end.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from grposweep.process import MARK
from support import Run, grposweep, lines, read, trials, wait_for

Script = tuple[str, ...]


def recipes(sweep: Path) -> list[dict]:
    """The trials' own recipes."""
    return [yaml.safe_load((folder / "recipe.yaml").read_text()) for folder in trials(sweep)]


def results(sweep: Path) -> list[dict]:
    """The trials' results."""
    return [read(folder / "result.json") for folder in trials(sweep)]


def marked_processes(folder: Path) -> list[int]:
    """Processes that carry the mark of a program in this trial."""
    wanted = f"GRPOSWEEP_TRIAL={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (
                (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            )
        except OSError:
            continue
        if wanted in environment and any(word.startswith(MARK.encode()) for word in environment):
            found.append(int(entry.name))
    return found


def test_a_jobs_warning_does_not_end_the_program(run: Run, script: Script) -> None:
    """Slurm sends it to all processes of a step; ours asks the program to stop."""
    ended = run(*script, "lr=0.1", "+trainer.environment.RECEIVES=SIGUSR2")
    assert ended.code == 0, ended


@pytest.mark.slow
def test_parameters_override_the_recipe_and_the_rest_of_it_stays(run: Run, script: Script) -> None:
    """Two learning rates; the better one wins by the script's own evaluations, read from the state
    that it saves.
    """
    ended = run(*script, "-m", "lr=0.1,0.3")
    assert ended.code == 0, ended
    assert [recipe["learning_rate"] for recipe in recipes(ended.sweep)] == [0.1, 0.3]
    assert all(
        recipe["weight_decay"] == 0.1 and recipe["generation_batch_size"] == 32
        for recipe in recipes(ended.sweep)
    )
    assert [result["objective"] for result in results(ended.sweep)] == [0.9, 0.7]
    metrics = lines(trials(ended.sweep)[0] / "metrics.jsonl")
    assert [(line["kind"], line["step"]) for line in metrics] == [
        (kind, s) for s in (1, 2, 3) for kind in ("train", "eval")
    ]


@pytest.mark.slow
def test_options_of_a_script_follow_its_own_arguments(run: Run, script: Script, here: Path) -> None:
    """``trainer.args`` that its configuration does not have are options of the command; the others enter with the values."""
    own = ("trainer.args.note=mine", "trainer.args.penalty=0.5", "trainer.args.lora_like=8")
    ended = run(*script, *own)
    assert ended.code == 0, ended.err
    assert read(here / "seen.json")["arguments"][-4:] == ["--note", "mine", "--penalty", "0.5"]
    (trial,) = trials(ended.sweep)
    assert read(trial / "trained_with.json")["values"]["lora_like"] == 8


def test_a_scripts_exit_code_is_told_as_it_was(run: Run, script: Script) -> None:
    """7, in the result; the sweep's own code says that nothing finished."""
    ended = run(*script, "+trainer.environment.EXIT_CODE='7'")
    assert ended.code == 1
    assert results(ended.sweep)[0]["failure"]["kind"] == "exit code 7"


@pytest.mark.slow
def test_another_script_is_another_experiment(run: Run, script: Script, here: Path) -> None:
    """Its content counts, so results are not mixed."""
    assert run(*script).code == 0
    (here / "train.py").write_text((here / "train.py").read_text() + "\n# changed\n")
    ended = run(*script)
    assert ended.code == 2
    assert "train.py has changed since 1 trial of s used it" in ended.err


@pytest.mark.slow
def test_a_script_that_reports_no_objective_is_told_what_it_reports(
    run: Run, script: Script
) -> None:
    """The metric, what there is, and what to set."""
    ended = run(*script, "search.metric=eval_accuracy")
    assert "search.metric=eval_accuracy" in ended.out
    assert "eval_reward" in ended.out


@pytest.mark.slow
def test_nothing_is_left_of_a_script_whose_controller_was_killed(
    start: Callable, script: Script, here: Path
) -> None:
    """Not the script, nor what it started in a session of its own."""
    sleeps = (
        "import subprocess, time\nsubprocess.Popen(['sleep', '300'], "
        "start_new_session=True)\ntime.sleep(300)\n"
    )
    (here / "train.py").write_text(
        (here / "train.py").read_text().replace("trainer.train()", sleeps)
    )
    process = start(*script)
    folder = here / "outputs" / "s" / "trials"
    wait_for(lambda: folder.exists() and trials(here / "outputs" / "s"), 60)
    (trial,) = trials(here / "outputs" / "s")
    wait_for(lambda: len(marked_processes(trial)) == 2, 60)
    process.kill()
    process.wait()
    wait_for(lambda: not marked_processes(trial), 20)


@pytest.mark.slow
def test_ctrl_c_ends_a_script_and_the_same_command_continues(
    start: Callable, run: Run, script: Script, here: Path
) -> None:
    """Without our callback it is a SIGTERM; the trial is stopped, not failed."""
    slow = (
        *script,
        "+trainer.environment.STEP_SECONDS='0.1'",
        "schedule=steps",
        "schedule.max_steps=60",
    )
    process = start(*slow)
    wait_for(lambda: list(here.glob("outputs/s/trials/*/metrics.jsonl")), 60)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(60) == 130
    (trial,) = trials(here / "outputs" / "s")
    assert read(trial / "result.json")["status"] == "stopped"
    assert run(*slow).code == 0
    steps = [line["step"] for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, 61))


BEATING = """
import json, os, sys, time
from pathlib import Path
folder, attempt = Path(os.environ["GRPOSWEEP_TRIAL"]), int(os.environ["GRPOSWEEP_ATTEMPT"])
(folder / "callback.json").write_text(json.dumps({"attempt": attempt, "step": 1, "total": 3, "stopped": False}))
for beat in range(80):
    time.sleep(0.1)
    if beat < int(os.environ["BEATS"]):
        (folder / "heartbeat.new").write_text(json.dumps({"step": 1, "total": 3, "counter": beat}))
        (folder / "heartbeat.new").replace(folder / "heartbeat")
(folder / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "step": 3, "eval_reward": 0.5}) + "\\n")
"""


@pytest.mark.slow
def test_a_program_lives_as_long_as_its_callback_beats(
    run: Run, script: Script, here: Path
) -> None:
    """Eight seconds of training with four seconds' patience; and one that falls silent after two is
    ended.
    """
    (here / "train.py").write_text(
        (here / "train.py").read_text().replace("trainer.train()", BEATING)
    )
    own = (*script[:-1], "cluster.stall_min=0.07", "cluster.warm=false")
    alive = run(*own, "name=alive", "+trainer.environment.BEATS='80'")
    assert results(alive.sweep)[0]["status"] == "finished", alive.out
    silent = run(*own, "name=silent", "+trainer.environment.BEATS='20'")
    assert results(silent.sweep)[0]["status"] == "failed", silent.out


@pytest.mark.slow
def test_a_trial_of_a_script_is_rerun_with_its_recipe_and_with_a_change(
    run: Run, script: Script, here: Path
) -> None:
    """From another folder: script and recipe are found where the sweep was started; a change
    reaches the recipe.
    """
    sweep = run(*script, "-m", "lr=0.1,0.3").sweep
    (here / "elsewhere").mkdir()
    exact = grposweep(here / "elsewhere", "rerun", str(sweep), "1")
    assert exact.code == 0, exact.err
    assert "every number of metrics.jsonl is the same" in exact.out
    assert recipes(exact.sweep)[0] | {"output_dir": ""} == recipes(sweep)[1] | {"output_dir": ""}
    changed = grposweep(here / "elsewhere", "rerun", str(sweep), "1", "lr=0.2")
    assert (recipes(changed.sweep)[0]["learning_rate"], results(changed.sweep)[0]["objective"]) == (
        0.2,
        0.8,
    )


@pytest.mark.slow
def test_a_rerun_says_that_the_script_has_changed_since(
    run: Run, script: Script, here: Path
) -> None:
    """There is no copy of it: it is restored, or accepted as it is."""
    run(*script)
    with (here / "train.py").open("a") as file:
        file.write("# fixed\n")
    refused = grposweep(here, "rerun", "0")
    assert refused.code == 2
    assert "has no copy of train.py. Restore it, or set" in refused.err
    assert "own copy" not in refused.out
    accepted = grposweep(here, "rerun", "0", "search.changed_files=accept")
    assert accepted.code == 0
    assert "not as recorded: " in accepted.out


@pytest.mark.slow
def test_an_edit_while_trials_wait_reaches_none_of_them(
    run: Run, script: Script, here: Path
) -> None:
    """What the script imports is edited during the first trial: the second one does not train."""
    helper = here / "helper.py"
    helper.write_text("VALUE = 1\n")
    edits = f"open({str(helper)!r}, 'w').write('VALUE = 2\\n')\ntrainer.train()\n"
    code = "import helper\n" + (here / "train.py").read_text().replace("trainer.train()\n", edits)
    (here / "train.py").write_text(code)
    sweep = run(*script, "-m", "lr=0.1,0.2").sweep
    first, second = results(sweep)
    assert first["status"] == "finished"
    assert "helper.py has changed since the sweep recorded it" in second["failure"]["message"]


@pytest.mark.slow
def test_a_script_imports_its_neighbours_first_as_python_does(
    run: Run, script: Script, here: Path
) -> None:
    """Our own processes do without the working directory on their path, and no variable passes that
    on.
    """
    (here / "colorsys.py").write_text(
        "import os\nif 'GRPOSWEEP_TRIAL' in os.environ: raise SystemExit(9)\n"
    )
    (here / "train.py").write_text("import colorsys\n" + (here / "train.py").read_text())
    ended = run(*script, "lr=0.1")
    assert "exit code 9" in ended.out
    (here / "colorsys.py").write_text("")
    assert run(*script, "lr=0.1", "name=t").code == 0
    assert "PYTHONSAFEPATH" not in read(here / "seen.json")["environment"]
