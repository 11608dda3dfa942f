"""``grposweep diagnose`` as a user calls it."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diagnose.made import run, write
from grposweep.cli import build_app
from support import PROJECT, environment

SOURCE = PROJECT / "src"
FIXTURES = PROJECT / "tests" / "fixtures"


def diagnose(*arguments: str | Path) -> tuple[int, str]:
    """The exit code and the output."""
    done = CliRunner().invoke(
        build_app(), ["diagnose", *map(str, arguments)], env={"NO_COLOR": "1", "COLUMNS": "100"}
    )
    return done.exit_code, done.output


@pytest.fixture
def collapsed(tmp_path: Path) -> Path:
    """A log whose reward has collapsed."""
    return write(tmp_path, "console", run(100, reward="0.6 if step < 50 else 0.05"))


def test_a_healthy_log_says_so(tmp_path: Path) -> None:
    """In a line, with the format, the steps and what could not be judged."""
    code, out = diagnose(write(tmp_path, "verl_console", run()))
    assert code == 0
    assert "console of verl, 100 logged steps to 100" in out
    assert "no problem found" in out
    assert "not judged: " in out


def test_a_problem_has_evidence_and_advice(collapsed: Path) -> None:
    """What, in which steps, and what to do."""
    code, out = diagnose(collapsed)
    assert code == 0
    assert "problem reward_fallen: The reward has collapsed." in out
    assert "Steps 80-100: training reward has fallen from 0.6 at first to 0.05." in out
    assert "Lower the learning rate" in out


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ("collapse", 1),
        ("flat,reward_fallen", 1),
        ("problem", 1),
        ("flat,kl_drift", 0),
        ("flatt", 2),
    ],
)
def test_fail_on_names_what_fails(names: str, code: int, collapsed: Path) -> None:
    """A finding, a group or a level; an unknown name is bad input."""
    assert diagnose(collapsed, "--fail-on", names)[0] == code


def test_json_is_for_scripts(collapsed: Path) -> None:
    """One object with all that the screen shows."""
    said = json.loads(diagnose(collapsed, "--json")[1])
    assert (said["format"], said["steps"], said["total"], said["healthy"]) == (
        "console of transformers",
        [1, 100],
        400,
        False,
    )
    assert {"name", "level", "text", "evidence", "advice", "steps", "numbers"} == said["findings"][
        0
    ].keys()


def test_watch_ends_when_what_fails_is_there(collapsed: Path) -> None:
    """So a job script can stop a training."""
    code, out = diagnose(collapsed, "--watch", "--interval", "0.1", "--fail-on", "collapse")
    assert (code, out.count("The reward has collapsed.")) == (1, 1)


@pytest.mark.slow
def test_watch_reads_a_log_again_while_it_grows(tmp_path: Path, collapsed: Path) -> None:
    """Ctrl-C ends it without a traceback; a log that has no line yet is waited for."""
    log = tmp_path / "train.log"
    log.write_text("Loading weights\n")
    command = [
        sys.executable,
        "-m",
        "grposweep",
        "diagnose",
        str(log),
        "--watch",
        "--interval",
        "0.1",
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(PYTHONPATH=str(SOURCE)),
        # a background process inherits deafness
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as watch:
        assert watch.stdout
        # it looks at the log before there is a line, if it is fast; it works either way
        time.sleep(0.3)
        log.write_text(write(tmp_path, "strings", run()).read_text())
        first = [watch.stdout.readline() for _ in range(3)]
        log.write_text(collapsed.read_text())
        while "reward_fallen" not in (line := watch.stdout.readline()):
            assert line, "it ended"
        watch.send_signal(signal.SIGINT)
        try:
            assert watch.wait(20) == 0
        finally:
            # else leaving the block waits for it
            watch.kill()
    assert first[2] == "no problem found\n"


def test_a_trial_is_named_as_in_other_commands(tmp_path: Path) -> None:
    """By its number in a sweep, or by its folder; the type of its weights is known."""
    shutil.copytree(FIXTURES / "measured", tmp_path / "measured")
    code, out = diagnose("measured", "0", "--outputs", tmp_path)
    assert (code, "JSON lines, 4 logged steps to 4" in out) == (0, True)
    assert "the type of the weights" not in out


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    """What is no log, and what is not there."""
    (tmp_path / "log").write_text("[" * 100_000)
    for path in (tmp_path / "log", tmp_path / "none.log", tmp_path):
        code, out = diagnose(path)
        assert (code, out.count("\n")) == (2, 1), out
