"""Bad input from the command line: one message with what is set and what to set, code 2, no
traceback, nothing harmed.
"""

import ast
import errno
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grporecipe.errors import ExitCode
from grposweep.cli._app import answer
from refused import read_rows, says
from support import PROJECT, RUN, Run, StartInterpreter, environment, grposweep, run_in

DEFAULT, SLOW = read_rows(Path(__file__).with_name("refused.txt")).values()


@pytest.mark.parametrize(
    ("typed", "words"), [*DEFAULT, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)]
)
def test_bad_input_is_one_message_and_code_2(here: Path, typed: str, words: str) -> None:
    """Bad input of every kind leaves nothing behind."""
    arguments = shlex.split(typed)
    variables = dict(word.split("=", 1) for word in arguments if word.startswith("CUDA_"))
    ended = run_in(here, "trainer=fake", *arguments[len(variables) :], **variables)
    assert ended.code == 2, ended.out + ended.err
    assert "Traceback" not in ended.err
    assert ended.err.count("error:") == 1
    assert re.search(says(words), ended.err, re.DOTALL), ended.out + ended.err
    assert not list(here.glob("outputs/*"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "search:\n\tsampler: tpe\n",
            "own.yaml:2: found character .* Indent the line with spaces",
        ),
        (
            "# @package _global_\nhydra:\n  sweeper:\n    param: {lr: 1}\n",
            "hydra.sweeper.param is no key. Put what is searched below hydra.sweeper.params",
        ),
        ("# @package _global_\nsearh: {trials: 3}\n", "sweeps/own.yaml: searh .* mean search"),
        ("# @package _global_\nsearch: {trials: many}\n", "search.trials=many is not a whole"),
        ("# @package _global_\ntrainer: fake\n", "trainer is a section. .* /trainer: fake"),
        ("search: {trials: 3}\n", "Begin it with the line: # @package _global_"),
        ("# @package _global_\ndefaults: [override trainr: fake]\n", "trainr names no group"),
        ("# @package _global_\ndefaults: trainer\n", "must be a list .* override /GROUP: OPTION"),
        ("# @package _global_\nhydra: {sweeper: {params: [lr=1]}}\n", "a list stands where a"),
        ("# @package _global_\nlr: ${oc.env:NONE}\n", "lr: NONE is not exported. Export it"),
    ],
)
def test_a_mistake_in_a_sweep_file_is_one_line(here: Path, text: str, words: str) -> None:
    """An error of YAML has its place, and a misspelt section is not ignored."""
    (here / "sweeps").mkdir()
    (here / "sweeps" / "own.yaml").write_text(text)
    ended = run_in(here, "--config-dir", ".", "sweeps=own")
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)
    assert re.search(words, ended.err)


def test_grposweep_run_takes_a_launch_command_as_the_script_does(here: Path) -> None:
    """The two dashes are not lost; here the command is refused because another trainer is set."""
    ended = grposweep(here, "run", "trainer=fake", "-m", "lr=1e-4,1e-3", "--", "bash", "launch.sh")
    assert ended.code == 2
    assert "trainer.command with trainer=fake" in ended.err


@pytest.mark.slow
def test_a_folder_of_another_space_is_left_alone(run: Run) -> None:
    """The name is taken: nothing in the folder changes."""
    first = run("trainer=fake", "name=s", "-m", "lr=1e-3,1e-4")
    before = {path: path.read_bytes() for path in first.sweep.rglob("*") if path.is_file()}
    second = run("trainer=fake", "name=s", "-m", "lr=1e-3,1e-5")
    assert second.code == 2
    assert "another space (lr: 0.001,0.0001 there, 0.001,1e-05 here)" in second.err
    assert "with search.warm_start=" in second.err
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


def test_ctrl_c_before_anything_starts_is_quiet(start_interpreter: StartInterpreter) -> None:
    """Interrupted while still composing: no traceback."""
    process = start_interpreter("trainer=fake", "-m", "lr=1e-3,1e-4")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    # Python's own start, before it reads a line of ours, ends with 1
    is_early = process.returncode == 1 and "KeyboardInterrupt" in output and RUN.name not in output
    assert process.returncode in (130, -signal.SIGINT) or is_early
    assert "Traceback" not in output or process.returncode != 130


def python(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """How Python ends with these arguments, with the modules in the folder before all others."""
    variables = environment(PYTHONPATH=f"{here}:{PROJECT / 'src'}")
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=here, env=variables, capture_output=True, text=True, check=False
    )


ENTRIES = {"run.py": [str(RUN)], "grposweep": ["-m", "grposweep", "lint"]}


@pytest.mark.parametrize(("name", "module"), [("run.py", "hydra"), ("grposweep", "typer")])
def test_ctrl_c_while_modules_are_imported_is_one_line(
    tmp_path: Path, name: str, module: str
) -> None:
    """No traceback of imports. The module here raises what Ctrl-C raises while it is imported."""
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n")
    ended = python(tmp_path, *ENTRIES[name])
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("name", ENTRIES)
def test_an_older_python_is_one_line(tmp_path: Path, name: str) -> None:
    """Before anything is imported whose syntax it does not know."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 8, 10)\n")
    ended = python(tmp_path, *ENTRIES[name])
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "needs Python 3.11 or later" in ended.stderr
    for file in (RUN, PROJECT / "src/grposweep/__init__.py", PROJECT / "src/grposweep/__main__.py"):
        ast.parse(file.read_text(), feature_version=(3, 8))


def test_without_hydra_recipes_are_judged_and_sweeps_say_what_to_install(tmp_path: Path) -> None:
    """The module here is missing as far as Python can tell."""
    (tmp_path / "hydra.py").write_text("raise ModuleNotFoundError('no hydra', name='hydra')\n")
    (tmp_path / "recipe.yaml").write_text("num_generations: 8\nper_device_train_batch_size: 3\n")
    linted = python(tmp_path, *ENTRIES["grposweep"], "recipe.yaml", "--processes", "1")
    assert (linted.returncode, "GB101" in linted.stdout) == (1, True)
    for words in (["-m", "grposweep", "space", "lr=1e-3"], [str(RUN), "lr=1e-3"]):
        ended = python(tmp_path, *words)
        assert ended.returncode == 2
        assert ended.stderr.startswith(
            "error: hydra is not installed, and sweeps need it. Run pip install"
        )


def test_a_full_disk_is_answered_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """``rerun`` and ``continue`` write as sweeps do."""

    def write() -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "outputs/s/lease.json")

    assert answer(write) == ExitCode.BAD_INPUT
    said = (
        "error: outputs/s/lease.json: No space left on device. Make room, and give the same "
        "command again.\n"
    )
    assert capsys.readouterr().err == said
