"""The user's own launch command: its values enter where it builds its configuration, and what it
got is recorded.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT, SIGKILL, Signals

import pytest
import yaml

from support import Run, grposweep, lines, read, sampled, trials, wait_for

# the stub of TRL takes no time
ASKED = "+trainer.environment.GRPOSWEEP_ASK_MODE=real"
LAUNCH = f"""#!/bin/bash
export MY_FLAG=1
{sys.executable} train.py --config recipe.yaml "$@"
"""
ROWS = 'rows = recipe.pop("rows", 32)\ndel recipe["generation_batch_size"]\n'
FOLLOW = "gradient_accumulation_steps=rows // 16"


SPAWNED = """
import multiprocessing, runpy, sys
def work():
    sys.argv = ["train.py", "--config", "recipe.yaml"]
    runpy.run_path("train.py", run_name="__main__")
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
# variables of its own choice
CHOSEN = """
import os, subprocess, sys
kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "STEP_SECONDS") if name in os.environ}
words = [sys.executable, "train.py", "--config", "recipe.yaml"]
sys.exit(subprocess.run(words, env=kept).returncode)
"""


@pytest.fixture
def command(here: Path, script: tuple[str, ...]) -> Path:
    """The folder of a launch script."""
    (here / "launch.sh").write_text(LAUNCH)
    return here


def edit(folder: Path, old: str, new: str, file: str = "train.py") -> None:
    """Change the script, or another file."""
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))


# a sweep whose trainings take long
LONG = (ASKED, "name=s", "schedule.max_steps=40", "+trainer.environment.STEP_SECONDS='0.1'", "--")


def interrupt(start: Callable, folder: Path, launch: str, signal: Signals = SIGINT) -> None:
    """Start a long sweep, and end it after three steps of its first training."""
    process = start(*LONG, launch)
    wait_for(lambda: list(folder.glob("outputs/s/trials/*/model/checkpoint-3")), 60)
    process.send_signal(signal)
    process.wait(60)


def test_a_command_runs_as_it_is_and_its_exports_survive(run: Run, command: Path) -> None:
    """What the trainer got is in the trial's folder: the point's values, everything else as the
    script has it.

    Its configuration, which checkpoints hold, is read without these packages.
    """
    edit(
        command,
        "trainer = GRPO",
        "import pickle; pickle.dump(args, open('args.bin', 'wb'))\ntrainer = GRPO",
    )
    ended = run(ASKED, "name=s", "-m", "lr=0.1,0.3", "--", "bash", "launch.sh")
    assert ended.code == 0, ended
    records = [read(folder / "trained_with.json") for folder in trials(ended.sweep)]
    assert [record["values"]["learning_rate"] for record in records] == [0.1, 0.3]
    assert {record["values"]["weight_decay"] for record in records} == {0.1}
    assert (records[0]["rewards"], records[0]["train_rows"], records[0]["world_size"]) == (
        ["right"],
        1000,
        1,
    )
    assert read(command / "seen.json")["environment"]["MY_FLAG"] == "1"
    assert [read(folder / "result.json")["objective"] for folder in trials(ended.sweep)] == [
        0.9,
        0.7,
    ]
    assert b"grposweep." not in (command / "args.bin").read_bytes()
    assert "Trials write outside of their folders: args.bin, seen.json. One" in ended.out


@pytest.mark.slow
def test_a_value_that_the_script_sets_later_ends_the_sweep(run: Run, command: Path) -> None:
    """After three trials, none of which made a step: when it was asked the line did not run. It
    does not matter that each value is another word.
    """
    line = "if 'GRPOSWEEP_TRIAL' in os.environ: args.vllm_mode = 'other'\n"
    edit(command, "trainer = GRPO", f"{line}trainer = GRPO")
    words = ("trainer.args.use_vllm=true", "trainer.args.vllm_mode=a,b,c,d,e,f")
    ended = run(ASKED, "name=s", "-m", *words, "--", "bash launch.sh")
    assert ended.code == 1
    assert (
        "vllm_mode=a is this trial's, but train.py:19 sets vllm_mode=other" in ended.out + ended.err
    )
    assert "the last trials all failed alike" in ended.out, ended.out
    assert len(trials(command / "outputs" / "s")) == 3
    assert not list(command.glob("outputs/s/trials/*/metrics.jsonl"))


@pytest.mark.slow
def test_what_the_trainer_got_is_shown_and_not_what_the_sweep_started_from(
    run: Run, command: Path
) -> None:
    """Sizes that an option of the command changes: in plan.json, show, compare and the report, and
    before the start nothing.
    """
    edit(command, "args = GRPOConfig(**recipe", f"{ROWS}args = GRPOConfig(**recipe, {FOLLOW}")
    ended = run(ASKED, "name=s", "-m", "trainer.args.rows=32,48,64", "--", "bash launch.sh")
    assert ended.code == 0, ended
    assert "each trial: 3 optimizer steps\n" in ended.out
    assert "trained on 96 to 192 completions" in ended.out
    plans = [read(folder / "plan.json") for folder in trials(ended.sweep)]
    assert [(plan["completions_per_step"], plan["total_completions"]) for plan in plans] == [
        (32, 96),
        (48, 144),
        (64, 192),
    ]
    shown = grposweep(command, "show", "s", "1").out
    assert re.search(r"gradient_accumulation_s\S*\s+3\s+1\s+train.py:20", shown), shown
    assert "1,000 rows, 16 held out, rewards right" in " ".join(shown.split())
    assert re.search(
        r"batch.gradient_accumulation_steps\s+2\s+3",
        grposweep(command, "compare", "s/0", "s/1").out,
    )
    assert grposweep(command, "report", "s").code == 0
    assert "GRPOTrainer of TRL" in next((command / "outputs" / "s").glob("*.html")).read_text()


@pytest.mark.slow
def test_a_subclass_with_defaults_of_its_own_is_judged_by_them(run: Run, command: Path) -> None:
    """They count as set: four micro-steps, where TRL's own default is one."""
    own = (
        "import dataclasses\n@dataclasses.dataclass\nclass Own(GRPOConfig):\n    "
        "gradient_accumulation_steps: int = 4\n"
    )
    edit(
        command,
        "args = GRPOConfig(**recipe",
        f'{own}del recipe["generation_batch_size"]\nargs = Own(**recipe',
    )
    ended = run(ASKED, "name=s", "lr=0.1", "--", "bash launch.sh")
    assert "each trial: 3 optimizer steps, 192 completions" in ended.out, ended
    assert "gradient_accumulation_steps: 4" in grposweep(command, "best", "s", "--as", "trl").out


@pytest.mark.slow
@pytest.mark.parametrize(("release", "objective"), [("0.26.2", 3.0), ("0.28.0", 0.4)])
def test_a_release_that_logs_the_reward_without_weights_is_ranked_with_them(
    run: Run, command: Path, release: str, objective: float
) -> None:
    """TRL 0.27 to 0.29 train the weighted sum and log the plain one; the functions' means tell."""
    about = command / f"trl-{release}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {release}\n")
    edit(command, "GRPOConfig(**recipe)", "GRPOConfig(**recipe, reward_weights=[0.2])")
    logged = "eval_reward=3.0, **{'eval_rewards/right/mean': 2.0})"
    logs = f"lambda logs: log(dict(logs, {logged} if 'eval_reward' in logs else logs)"
    edit(command, "trainer.train()", f"log = trainer._log\ntrainer._log = {logs}\ntrainer.train()")
    ended = run(ASKED, "name=s", "lr=0.1", "--", "bash launch.sh")
    (trial,) = trials(ended.sweep)
    assert read(trial / "result.json")["objective"] == objective, ended.out


# an option, a field of the configuration, and a value that is another in each process
READS = (
    "return [1.0 for _ in completions]",
    "print(STARTED, args.learning_rate); return [1.0 - own.get('penalty', 0) for _ in completions]"
    "\n\n\nSTARTED = str(__import__('time').time())",
)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["reward_weights=[1.0],[2.0]", "penalty=0.1,0.2"])
def test_points_with_other_rewards_are_not_ranked_by_their_sum(
    run: Run, command: Path, option: str
) -> None:
    """Other weights, or another value that a reward function reads. One function's mean may be."""
    edit(command, *READS)
    words = (ASKED, "name=s", "-m", f"trainer.args.{option}")
    ended = run(*words, "--", "bash launch.sh")
    assert ended.code == 2
    assert ("(right.penalty)" in ended.err) == option.startswith("penalty")
    assert "ranked by a measure of its own. Set search.metric=eval_rewards/NAME/mean" in ended.err
    ended = run(*words, "search.metric=eval_loss", "--", "bash launch.sh")
    assert ended.code == 0, ended.err
    assert "They are measured differently" in grposweep(command, "compare", "s/0", "s/1").out


@pytest.mark.slow
@pytest.mark.parametrize("option", ["lr=0.1,0.3", "trainer.args.note=a,b"])
def test_a_reward_that_reads_the_configuration_or_a_time_is_one_measure(
    run: Run, command: Path, option: str
) -> None:
    """Both differ from trial to trial; only an option's value is of the reward."""
    edit(command, *READS)
    ended = run(ASKED, "name=s", "-m", option, "--", "bash launch.sh")
    assert ended.code == 0, ended.err
    compared = grposweep(command, "compare", "s/0", "s/1").out
    assert ("B - A" in compared, "measured differently" in compared) == (True, False)


@pytest.mark.slow
def test_a_trl_that_does_not_say_its_release_is_not_taken_for_the_newest(
    run: Run, command: Path
) -> None:
    """A copy of its source. Groups of 12 do not divide 32 completions in today's releases, and in
    none that is unknown.
    """
    copied = (
        "import trl\ndel trl.__version__\nsys.path[:] = [path for path in sys.path if "
        '"-packages" not in path]\n'
    )
    edit(command, "trainer = GRPO", f"{copied}trainer = GRPO")
    ended = run(
        ASKED,
        "name=s",
        "cluster=dry_run",
        "-m",
        "batch.num_generations=12,8",
        "--",
        "bash launch.sh",
    )
    assert ended.code == 0, ended.err
    assert "does not say which release of TRL it imports" in ended.out
    assert "invalid" not in ended.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trainer.args.note=a,b", True),
        ("trainer.args.rows=32,64", False),
        ("trainer.args.bf16=true,false", False),
    ],
)
def test_an_option_that_changes_nothing_is_named_before_anything_trains(
    run: Run, command: Path, words: str, said: bool
) -> None:
    """It may have an effect in a reward function, so it is no error. A field of the configuration
    enters there, and not by the command.
    """
    edit(command, "args = GRPOConfig(**recipe", f"{ROWS}args = GRPOConfig(**recipe, {FOLLOW}")
    ended = run(ASKED, "name=s", "cluster=dry_run", "-m", words, "--", "bash launch.sh")
    assert ended.code == 0, ended
    assert ("the trainer gets the same" in ended.out) == said, ended.out


@pytest.mark.slow
def test_the_ends_of_an_options_interval_are_asked_once_each(run: Run, command: Path) -> None:
    """The command itself, and both ends: what a trial needs is known then, and what a sweep spends
    at least.
    """
    edit(
        command,
        "args = GRPOConfig(**recipe",
        "open('../asked', 'a').write('x')\nrecipe['eval_steps'] = 3\nargs = GRPOConfig(**recipe",
    )
    words = (
        "name=s",
        "cluster=dry_run",
        "search.trials=3",
        "-m",
        "trainer.args.penalty=interval(0.1,0.5)",
    )
    ended = run(ASKED, *words, "--", "bash launch.sh")
    assert ended.code == 0, ended
    assert "schedule.evaluations=1 a sweep spends 100% at least" in ended.out
    assert (command.parent / "asked").read_text() == "xxx"


ACCELERATE = (
    "bash -c '%s -m accelerate.commands.launch --num_processes 8 --num_machines $NNODES "
    "--machine_rank $NODE_RANK "
    "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT train.py --config recipe.yaml'"
)
TORCHRUN = "%s -m torch.distributed.run --nproc_per_node 4 train.py --config recipe.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("words", [ACCELERATE, TORCHRUN])
def test_a_command_on_several_nodes_is_asked_with_their_variables(
    run: Run, command: Path, words: str
) -> None:
    """Its trainer has the processes of all nodes: 16 completions on each of 8 make a rollout of
    128.
    """
    edit(command, "generation_batch_size: 32", "", "recipe.yaml")
    job = ("name=s", "cluster=dry_run", "cluster.nodes=2", "cluster.gpus_per_node=4", "lr=0.1")
    ended = run(ASKED, *job, "--", words % sys.executable)
    assert ended.code == 0, ended.err
    (trial,) = trials(ended.sweep)
    assert read(trial / "plan.json")["completions_per_rollout"] == 128
    assert "export NNODES=2" in (trial / "program.sh").read_text()


@pytest.mark.slow
def test_a_null_of_a_field_that_needs_a_value_is_the_trainer_s_default(
    run: Run, command: Path
) -> None:
    """``num_train_epochs=None`` would stop the trainer; the steps decide."""
    edit(command, "max_steps: 3", "num_train_epochs: 2", "recipe.yaml")
    ended = run(
        ASKED,
        "name=s",
        "cluster=dry_run",
        "schedule.epochs=null",
        "schedule.max_steps=3",
        "--",
        "bash launch.sh",
    )
    assert ended.code == 0, ended.err
    keys = read(trials(ended.sweep)[0] / "changed.json")["keys"]
    assert (keys["max_steps"], keys["num_train_epochs"]) == (3, 3.0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"$@"', "", "--penalty is appended to the command, and does not arrive"),
        ("train.py", "-E train.py", "never reported its trainer"),
    ],
)
def test_a_script_that_passes_the_values_on_to_nothing_is_refused(
    run: Run, command: Path, old: str, new: str, said: str
) -> None:
    """It would train with its own values at every point."""
    (command / "launch.sh").write_text(LAUNCH.replace(old, new))
    ended = run(ASKED, "-m", "trainer.args.penalty=0.1,0.2", "--", "bash launch.sh")
    assert (ended.code, said in ended.err) == (2, True), ended.err
    assert not (command / "outputs").exists()


def test_placeholders_and_appended_options_are_swept(run: Run, command: Path) -> None:
    """``{NAME:default}`` is replaced by its value, and a key by the trial's; an option without a
    place follows the command.
    """
    words = ("lr=0.1", "-m", "trainer.args.note=a,b", "trainer.args.penalty=0.5")
    places = "--note {note:mine} --learning_rate {lr}"
    ended = run(ASKED, "name=s", *words, "--", f"bash launch.sh {places}")
    assert ended.code == 0, ended
    given = "--note b --learning_rate 0.1 --penalty 0.5"
    assert read(command / "seen.json")["arguments"][2:] == given.split()


@pytest.mark.parametrize(
    ("old", "new", "words", "said"),
    sampled(
        [
            (
                ", eval_dataset=list(range(16))",
                "",
                ("lr=0.1",),
                "passes no eval_dataset to its trainer",
            ),
            (
                "",
                "",
                ("lr=0.1", "cluster.processes=2"),
                "the command starts 1 processes, and cluster.processes=2",
            ),
            (
                "",
                "",
                ("cluster=dry_run", "cluster.nodes=2", "cluster.gpus_per_node=1", "lr=0.1"),
                "--machine_rank $NODE_RANK",
            ),
            ("", "", ("model.lora.r=8",), "Set the option of your command that has it"),
            (
                "trainer = GRPO",
                "args.warmup_steps = int(0.5 * args.max_steps)\ntrainer = GRPO",
                ("-m", "optimizer.warmup_steps=0,2"),
                "train.py:19 sets warmup_steps=1 after the configuration is built",
            ),
            (
                "trainer = GRPOTrainer",
                "raise SystemExit\ntrainer = GRPOTrainer",
                ("lr=0.1",),
                "ended without building a GRPO trainer",
            ),
            ("args = GRPOConfig(**recipe)", "raise ValueError('no room')", ("lr=0.1",), "no room"),
            (
                "args = GRPOConfig(**recipe)",
                "args = GRPOConfig(num_generations=5)",
                ("lr=0.1",),
                "must be divisible by",
            ),
        ],
        3,
    ),
)
def test_what_cannot_be_swept_is_refused_before_anything_is_written(
    run: Run, command: Path, old: str, new: str, words: tuple[str, ...], said: str
) -> None:
    """With the command's own words where it fails by itself."""
    edit(command, old, new)
    ended = run(ASKED, *words, "--", "bash launch.sh")
    assert (ended.code, said in ended.err) == (2, True), ended.err
    assert not (command / "outputs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "signal"),
    sampled(
        [
            ("bash launch.sh", SIGINT),
            ("bash launch.sh 2>&1 | tee log.txt", SIGKILL),
            (f"{sys.executable} spawned.py", SIGINT),
            (f"{sys.executable} chosen.py", SIGKILL),
        ],
        3,
        pytest.mark.thorough,
    ),
)
def test_a_script_that_never_resumes_continues(
    start: Callable, run: Run, command: Path, launch: str, signal: Signals
) -> None:
    """``trainer.train()`` without a checkpoint gets the one of the trial; no step is trained twice,
    and none runs on. Nothing after it uses the unfinished model.
    """
    (command / "spawned.py").write_text(SPAWNED)
    (command / "chosen.py").write_text(CHOSEN)
    interrupt(start, command, launch, signal)
    (trial,) = trials(command / "outputs" / "s")
    assert read(trial / "callback.json")["left"] == (signal == SIGINT)
    assert not [*trial.glob("model/*.safetensors")]
    again = run(*LONG, launch)
    assert again.code == 0, again.err
    assert re.search(r"it continues from its last checkpoint \(step \d+\)", again.out)
    steps = [line["step"] for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"]
    assert steps == list(range(1, 41))
    assert {line["attempt"] for line in lines(trial / "metrics.jsonl")} == {0, 1}
    assert [*trial.glob("model/*.safetensors")]


def test_the_winner_is_written_as_its_trainer_got_it(run: Run, command: Path) -> None:
    """Values that the script computes are in it, TRL's defaults in place of them are not."""
    secret = "hf_" + "aB3dE" * 6
    more = f"warmup_steps=recipe['max_steps'] - 1, hub_token='{secret}'"
    edit(command, "args = GRPOConfig(**recipe)", f"args = GRPOConfig(**recipe, {more})")
    assert run(ASKED, "name=s", "lr=0.1", "--", "bash launch.sh").code == 0
    told = grposweep(command, "best", "s", "--as", "trl").out
    recipe = yaml.safe_load(told)
    assert (recipe["learning_rate"], recipe["warmup_steps"], recipe["weight_decay"]) == (
        0.1,
        2,
        0.1,
    )
    assert "Not in it: model, data and rewards" in told
    assert not any(secret in path.read_text() for path in (command / "outputs").rglob("*.json"))


@pytest.mark.slow
def test_a_written_winner_says_how_to_train_with_it(run: Run, command: Path) -> None:
    """By the user's command with the file as its recipe, or as a trial if no recipe is in the
    command.
    """
    ended = run(ASKED, "name=s", "lr=0.1", "--", "bash launch.sh")
    assert "/model, with 3 checkpoints: save_total_limit=1 in your script keeps one" in ended.out
    grposweep(command, "best", "s", "--export", "best.yaml")
    _, used, *_ = (command / "best.yaml").read_text().splitlines()
    subprocess.run(
        ["sh", "-c", used.removeprefix("# with the other keys of recipe.yaml added: ")], check=True
    )
    assert read(command / "seen.json")["arguments"] == ["--config", str(command / "best.yaml")]
    (trial,) = trials(ended.sweep)
    got = read(trial / "trained_with.json")
    (trial / "trained_with.json").write_text(json.dumps({**got, "command": ["python", "train.py"]}))
    _, used, *_ = grposweep(command, "best", "s", "--as", "trl").out.splitlines()
    assert f"train with them: grposweep rerun '{trial}', or write" in used


@pytest.mark.slow
def test_sizes_that_follow_from_an_option_are_the_scripts_and_refuse_no_point(
    run: Run, command: Path
) -> None:
    """48 completions hold whole groups of 12, and 32 do not: the script decides, so the trial does,
    and not a default.
    """
    sized = ("batch.num_generations=12", "batch.per_device_eval_batch_size=12")
    edit(command, "args = GRPOConfig(**recipe", f"{ROWS}args = GRPOConfig(**recipe, {FOLLOW}")
    ended = run(ASKED, "name=s", "-m", "trainer.args.rows=32,48", *sized, "--", "bash launch.sh")
    assert "GB101" not in ended.out + ended.err, ended.err
    assert ended.code == 0, ended
    short, whole = trials(command / "outputs" / "s")
    assert "must be divisible" in str(read(short / "result.json")["failure"])
    record = read(whole / "trained_with.json")["values"]
    assert (record["gradient_accumulation_steps"], record["num_generations"]) == (3, 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "pipe", "code", "said"),
    [
        (
            "trainer._save = None\ntrainer.train()",
            " | tee log.txt",
            1,
            "'NoneType' object is not callable",
        ),
        ("trainer.train()\nsys.exit('no folder to evaluate')", "", 0, "finished"),
        ("trainer.train()\ntrainer.evaluate()", "\npython -c 'print(1)'", 0, "finished"),
        (
            "trainer.train()\ntrainer = GRPOTrainer('model', right, args)",
            "",
            1,
            "builds a second GRPO trainer after train.py:25 has trained one",
        ),
        ("sys.exit('another run is active')", "", 1, "exit code 1: another run is active"),
        ("print('skip train')", "", 1, "trial left. Its last line: skip train"),
        ("sys.exit('no room')", " > out.log 2>&1", 1, "exit code 1: its output is in out.log"),
    ],
)
def test_a_trial_has_ended_if_its_training_has(
    run: Run, command: Path, line: str, pipe: str, code: int, said: str
) -> None:
    """A pipe hides that it failed; a later step of the command that fails does not undo it. An
    evaluation after the training is no second line of its step, and a second training is an
    error.
    """
    edit(command, "trainer.train()", line)
    (command / "launch.sh").write_text(LAUNCH.rstrip() + pipe + "\n")
    ended = run(ASKED, "name=s", "lr=0.1", "--", "bash launch.sh")
    assert ended.code == code, ended
    (trial,) = trials(command / "outputs" / "s")
    assert said in str(read(trial / "result.json"))
    if said == "finished":
        steps = [(line["step"], line["kind"]) for line in lines(trial / "metrics.jsonl")]
        assert steps.count((3, "eval")) == 1


def test_a_swept_variable_arrives_and_a_folder_that_stays_is_named(run: Run, command: Path) -> None:
    """What the script makes of the variable is left to it. The second trial fails at the folder
    that the first one made.
    """
    rate = "recipe['learning_rate'] = float(os.environ.get('RATE', 0.2))"
    edit(command, "args = GRPO", f"{rate}\nargs = GRPO")
    edit(command, "trainer.train()", "os.mkdir('made')\ntrainer.train()")
    swept = "+trainer.environment.RATE=0.1,0.3"
    ended = run(ASKED, "name=s", "-m", swept, "--", "bash launch.sh")
    first, _ = trials(ended.sweep)
    assert read(first / "result.json")["objective"] == 0.9
    assert "outside of their folders: seen.json, made/. One" in ended.out


@pytest.mark.slow
def test_a_training_that_its_own_callback_ends_is_finished(run: Run, command: Path) -> None:
    """As with early stopping of the user's own. Its record has the steps that it made."""
    early = (
        "trainer.callbacks.append(type('Early', (), {'__getattr__': lambda *_: lambda args, "
        "state, control, **_: "
    )
    early += "setattr(control, 'should_training_stop', state.global_step == 2)})())"
    edit(command, "trainer.train()", f"{early}\ntrainer.train()")
    ended = run(ASKED, "name=s", "lr=0.1", "--", "bash", "launch.sh")
    assert ended.code == 0, ended.out
    result = read(trials(command / "outputs" / "s")[0] / "result.json")
    assert (result["status"], result["step"]) == ("finished", 2)


SETS_RATES = """
from transformers import TrainerCallback
class Warm(TrainerCallback):
    def on_step_end(self, *_, **__):
        trainer.optimizer.param_groups[0]["lr"] = 0.5
trainer.callbacks.append(Warm())
"""
OWN_OPTIMIZER = """
import types
class Layers(GRPOTrainer):
    def create_optimizer(self):
        self.optimizer = types.SimpleNamespace(param_groups=[{"lr": rate} for rate in (%s)])
trainer.__class__ = Layers
"""


@pytest.mark.parametrize(
    ("lines", "words", "said"),
    [
        ("trainer.temperature = 2", "generation.temperature=0.7", "own temperature is 2"),
        (SETS_RATES, "lr=0.1", "learning rate is 0.1, but Warm trains with 0.5"),
        (OWN_OPTIMIZER % "0.7,", "lr=0.1", "passes an optimizer with learning rate 0.7"),
    ],
)
def test_a_value_that_does_not_reach_the_training_ends_the_trial(
    run: Run, command: Path, lines: str, words: str, said: str
) -> None:
    """On any hardware, before a second step, with what sets it."""
    edit(command, "trainer.train()", f"{lines}\ntrainer.train()")
    assert run(ASKED, "name=s", words, "--", "bash", "launch.sh").code == 1
    (trial,) = trials(command / "outputs" / "s")
    assert said in read(trial / "result.json")["failure"]["message"]


def test_rates_that_follow_from_the_swept_one_are_swept(run: Run, command: Path) -> None:
    """Those of layers, which the trainer's own method makes. There is no checkpoint to resume from
    yet, which the script asks for.
    """
    rates = "self.args.learning_rate / 2, 2 * self.args.learning_rate"
    lines = f"{OWN_OPTIMIZER % rates}\ntrainer.train(resume_from_checkpoint=True)"
    edit(command, "trainer.train()", lines)
    ended = run(ASKED, "name=s", "lr=0.1", "--", "bash", "launch.sh")
    assert ended.code == 0, ended
    assert read(trials(ended.sweep)[0] / "trained_with.json")["rates"] == [0.05, 0.2]


@pytest.mark.slow
def test_a_command_that_continues_after_a_stop_is_named(start: Callable, command: Path) -> None:
    """It leaves past all that ends it."""
    edit(command, "trainer.train()", "try: trainer.train()\nexcept SystemExit: os._exit(0)")
    interrupt(start, command, "bash launch.sh")
    (log,) = command.glob("outputs/s/trials/*/logs/rank-0.log")
    assert "ran on an unfinished model" in log.read_text()


@pytest.mark.slow
def test_a_trial_pushes_nothing_and_has_a_port_of_its_own(run: Run, command: Path) -> None:
    """Trials would all push one repository, and two at once would take one port."""
    edit(command, "args = GRPOConfig(**recipe", "args = GRPOConfig(push_to_hub=True, **recipe")
    edit(
        command,
        "trainer.train()",
        "assert not args.push_to_hub\ntrainer.train()\ntrainer.push_to_hub()",
    )
    ended = run(ASKED, "name=s", "lr=0.1", "--", "bash", "launch.sh")
    assert ended.code == 0, ended
    (log,) = (command / "outputs" / "s").glob("trials/*/logs/rank-0.log")
    assert log.read_text().count("pushes nothing to the hub") == 2
    assert int(read(command / "seen.json")["environment"]["MASTER_PORT"]) > 1024


@pytest.mark.slow
def test_a_fixed_port_is_named_before_two_trials_run_at_once(run: Run, command: Path) -> None:
    """One of them would fail, and a worse point might win."""
    sweep = (
        ASKED,
        "name=s",
        "-m",
        "lr=0.1,0.3",
        "--",
        "env",
        "MASTER_PORT=29566",
        "bash",
        "launch.sh",
    )
    refused = run("search.parallel=2", *sweep)
    assert refused.code == 2
    assert (
        "the command has a fixed port (env MASTER_PORT=29566 bash launch.sh), and only one of "
        "the 2 trials"
    ) in " ".join(refused.err.split())
    assert run("search.parallel=1", *sweep).code == 0


@pytest.mark.slow
def test_a_command_that_clears_the_folder_of_the_sweeps_is_refused(run: Run, command: Path) -> None:
    """Before the first trial, also if another folder is set, and if files may be deleted
    otherwise.
    """
    (command / "launch.sh").write_text(f"rm -rf runs/*\n{LAUNCH}")
    ended = run(ASKED, "name=s", "outputs=runs", "lr=0.1", "--", "bash", "launch.sh")
    assert (ended.code, "launch.sh:1 (rm -rf runs/*)" in ended.err) == (2, True), ended.err
    assert not list(command.glob("runs/*/trials"))


@pytest.mark.slow
def test_a_script_that_clears_its_output_folder_resumes(
    run: Run, start: Callable, command: Path
) -> None:
    """From the checkpoint that lay in it."""
    edit(
        command,
        "trainer = GRPO",
        "import shutil; shutil.rmtree(args.output_dir, ignore_errors=True)\ntrainer = GRPO",
    )
    interrupt(start, command, "bash launch.sh")
    again = run(*LONG, "bash launch.sh")
    assert again.code == 0, again.err
    (trial,) = trials(command / "outputs" / "s")
    assert [
        line["step"] for line in lines(trial / "metrics.jsonl") if line["kind"] == "train"
    ] == list(range(1, 41))
    assert not (trial / "resumed").exists()
