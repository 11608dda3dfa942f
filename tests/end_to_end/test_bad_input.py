"""Bad input from the command line: one message with what is set and what to set, code 2, no traceback, nothing harmed."""

import errno
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.errors import ExitCode
from grposweep.cli.app import answer
from support import PROJECT, RUN, Ended, environment

Run = Callable[..., Ended]

# what is typed, and what the message must hold: the culprit, and a way out
CASES = {
    "an unknown key": (["batch.num_generation=4"], ["batch.num_generation", "batch.num_generations"]),
    "the learning rate under TRL's name": (["optimizer.learning_rate=1e-4"], ["learning_rate is not a key", "mean lr?"]),
    "an unknown key in a sweep": (["-m", "lrr=1,2"], ["lrr is not a key", "lr"]),
    "an unknown group": (["modle=tiny"], ["modle", "model"]),
    "an unknown option": (["kl=lwo"], ["kl has no option 'lwo'", "kl=low"]),
    "several misspelt words": (["-m", "kl=non,low", "schedule.max_step=4", "batch=smal"],
                               ["3 overrides cannot work", "kl=none", "schedule.max_steps", "batch=small"]),
    "an unknown option in a sweep": (["-m", "batch=small,smal"], ["batch has no option 'smal'", "batch=small"]),
    "an unknown sweep file": (["sweeps=nope"], ["sweeps has no option 'nope'", "lr_batch"]),
    "a number for a group": (["batch=16"], ["batch=16", "batch.prompts_per_step", "medium"]),
    "nothing for a group": (["batch=null"], ["batch has no option 'null'", "medium"]),
    "two options for a group": (["batch=[small,medium]"], ["batch has no option", "medium"]),
    "a coefficient for a group": (["kl=0.04"], ["kl=0.04", "kl.beta"]),
    "numbers for a group in a sweep": (["-m", "batch=8,16"], ["batch=8", "batch.prompts_per_step"]),
    "a wrong type": (["lr=fast"], ["lr=fast is not a number"]),
    "null for a number": (["lr=null"], ["lr=null", "needs a value"]),
    "one word for a list": (["task.rewards=my_rewards.py:closeness"], ["Write 'task.rewards=[my_rewards.py:closeness]'"]),
    "malformed sweep syntax": (["-m", "lr=1,,2"], ["'lr=1,,2'", "key=a,b,c"]),
    "an unclosed bracket": (["-m", "lr=tag(log,interval(1,2)"], ["interval", "key=a,b,c"]),
    "several values without -m": (["lr=1e-3,1e-4"], ["lr=1e-3,1e-4", "-m"]),
    "a grid over an interval": (["-m", "lr=interval(1e-5,1e-3)", "search=grid"], ["search=grid", "search=tpe"]),
    "several samplers": (["-m", "search=tpe,random"], ["search: all trials of a sweep share it", "a name of its own"]),
    "several trackers": (["-m", "lr=1e-3,1e-4", "tracker.kind=none,wandb"], ["tracker.kind: all trials", "one value"]),
    "an invalid run": (["batch=open_r1_medium"], ["GB101", "batch.gradient_accumulation_steps=4"]),
    "three mistakes at once": (
        ["trainer.keep=some", "task=jsonl", "search.seeds=1"],
        ["trainer.keep=some", "task.path is not set", "search.seeds=1: an interval needs at least two seeds"],
    ),
    "mistakes of the base, a parameter and a rule": (
        ["-m", "lr=1e-3,1e-4", "cluster.partition=gpu", "generation.min_p=2",
         "batch.max_per_device_train_batch_size=0,8", "rules.ignore=[GX]"],
        ["only cluster=slurm reads cluster.partition", "generation.min_p=2", "max_per_device_train_batch_size=0", "no rule GX"],
    ),
    "two contradictions at once": (["kl.beta=0.1", "batch.num_generations=7"], ["GK101", "GB101", "kl.enabled=true"]),
    "a space without a valid point": (["-m", "batch=open_r1_medium,open_r1_large"], ["None of the 2 points"]),
    "two lengths": (["schedule.max_steps=5", "schedule.epochs=1"], ["GS101", "schedule.epochs=null"]),
    "a partition without Slurm": (
        ["cluster.partition=gpu"], ["only cluster=slurm reads cluster.partition", "Set cluster=slurm"],
    ),
    "more GPUs than there are": (["cluster.gpus=4"], ["cluster.gpus=4"]),
    "an enqueued value outside its parameter": (
        ["-m", "lr=1e-3,1e-4", "search.enqueue=[{lr:1e-2}]"], ["search.enqueue", "0.001, 0.0001"],
    ),
    "an enqueued parameter that is not searched": (
        ["-m", "lr=1e-3,1e-4", "search.enqueue=[{kl:low}]"], ["kl is not searched"],
    ),
    "a vLLM server that leaves no GPU to train": (
        ["cluster=dry_run", "generation=vllm_server"], ["GT106 generation.vllm_gpus=1", "none is left to train"],
    ),
    "eight GPUs of which one is vLLM's": (
        ["cluster=dry_run", "cluster.gpus_per_node=8", "generation=vllm_server", "batch=open_r1_large"],
        ["GB101 batch.num_generations=8", "7 processes"],
    ),
}  # fmt: skip

# One of each kind in the default tier; values alone are in tests/config/refused.txt.
DEFAULT = {
    "an unknown key", "an unknown key in a sweep", "an unknown option", "a number for a group", "a wrong type",
    "malformed sweep syntax", "a grid over an interval", "an invalid run", "a space without a valid point",
    "an enqueued value outside its parameter", "a vLLM server that leaves no GPU to train", "three mistakes at once",
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in DEFAULT else pytest.mark.slow) for case in CASES]
)
def test_bad_input_is_one_message_and_code_2(run: Run, here: Path, case: str) -> None:
    """Bad input of every kind leaves nothing behind."""
    arguments, parts = CASES[case]
    ended = run("trainer=fake", *arguments) if "trainer" not in str(arguments) else run(*arguments)
    assert ended.code == 2, ended.out + ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("error:") == 1
    assert all(part in ended.out + ended.err for part in parts), ended.out + ended.err
    assert not list(here.glob("outputs/*/trials/*"))


@pytest.mark.slow
def test_a_folder_of_another_space_is_left_alone(run: Run) -> None:
    """The name is taken: nothing in the folder changes."""
    first = run("trainer=fake", "name=s", "-m", "lr=1e-3,1e-4")
    before = {path: path.read_bytes() for path in first.sweep.rglob("*") if path.is_file()}
    second = run("trainer=fake", "name=s", "-m", "lr=1e-3,1e-5")
    assert second.code == 2
    assert "another space (lr: 0.001,0.0001 there, 0.001,1e-05 here)" in second.err
    third = run("trainer=fake", "name=s", "seed=1", "-m", "lr=1e-3,1e-4")
    assert "the same space over another base configuration (seed=0 there, 1 here)" in third.err
    assert {path: path.read_bytes() for path in first.sweep.rglob("*") if path.is_file()} == before


def test_a_folder_that_holds_something_else_is_left_alone(run: Run, here: Path) -> None:
    """A user's own files under outputs/s."""
    (here / "outputs" / "s").mkdir(parents=True)
    (here / "outputs" / "s" / "thesis.tex").write_text("mine")
    ended = run("trainer=fake", "name=s")
    assert ended.code == 2
    assert "holds no sweep" in ended.err


def test_an_outputs_folder_that_cannot_exist_is_refused(run: Run, here: Path) -> None:
    """A file stands where the folder should."""
    (here / "outputs").write_text("a file")
    ended = run("trainer=fake")
    assert ended.code == 2
    assert "cannot be written" in ended.err


def test_ctrl_c_before_anything_starts_is_quiet(start: Callable) -> None:
    """Interrupted while still composing: no traceback."""
    process = start("trainer=fake", "-m", "lr=1e-3,1e-4")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in output or process.returncode == -signal.SIGINT


@pytest.mark.parametrize(
    ("command", "module"), [([str(RUN)], "hydra"), (["-m", "grposweep", "lint"], "typer")], ids=["run.py", "grposweep"]
)
def test_ctrl_c_while_modules_are_imported_is_one_line(tmp_path: Path, command: list[str], module: str) -> None:
    """No traceback of imports. The module here raises what Ctrl-C raises while it is imported."""
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n")
    variables = environment(PYTHONPATH=f"{tmp_path}:{PROJECT / 'src'}")
    ended = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def test_without_hydra_recipes_are_judged_and_sweeps_say_what_to_install(tmp_path: Path) -> None:
    """The module here is missing as far as Python can tell."""
    (tmp_path / "hydra.py").write_text("raise ModuleNotFoundError('no hydra', name='hydra')\n")
    (tmp_path / "recipe.yaml").write_text("num_generations: 8\nper_device_train_batch_size: 3\n")
    variables = environment(PYTHONPATH=f"{tmp_path}:{PROJECT / 'src'}")
    ended = [
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=variables, capture_output=True,
                       text=True, check=False)
        for words in (["-m", "grposweep", "lint", "recipe.yaml", "--processes", "1"],
                      ["-m", "grposweep", "space", "lr=1e-3"], [str(RUN), "lr=1e-3"])
    ]  # fmt: skip
    assert [done.returncode for done in ended] == [1, 2, 2]
    assert "GB101" in ended[0].stdout
    for done in ended[1:]:
        assert done.stderr.startswith("error: hydra is not installed, and sweeps need it. Run pip install")


def test_a_full_disk_is_answered_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """``rerun`` and ``fork`` write as sweeps do."""

    def write() -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "outputs/s/lease.json")

    assert answer(write) == ExitCode.BAD_INPUT
    said = "error: outputs/s/lease.json: No space left on device. Make room, and give the same command again.\n"
    assert capsys.readouterr().err == said
