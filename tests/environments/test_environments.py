"""grposweep in the environments of table.py: its start, and a run of two real steps."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from environments.table import ENVIRONMENTS, Environment, together
from grporecipe.errors import ExitCode
from grposweep.process import SOURCE, ForkServer
from support import PROJECT, RUN, Ended, environment, lines, read, sampled

pytestmark = pytest.mark.slow
FIXTURES = PROJECT / "tests" / "fixtures"
STEPS = (
    "schedule=steps",
    "schedule.max_steps=2",
    "schedule.evaluations=1",
    "task.eval_prompts=8",
    "name=s",
    "generation.max_completion_length=4",
)
# a run for each environment, not for several at once
EACH = "GRPOSWEEP_THOROUGH" in os.environ
GROUPS = [[one] for one in ENVIRONMENTS] if EACH else together(ENVIRONMENTS)


def enter(environments: Sequence[Environment], here: Path) -> dict[str, str]:
    """Write the files of environments to a folder. Return their variables, with those of this
    process.
    """
    variables = environment()
    for one in environments:
        for name, text in one.files.items():
            (here / name).parent.mkdir(exist_ok=True)
            (here / name).write_text(text)
        for name, value in one.variables.items():
            variables.pop(name, None)
            variables |= {} if value is None else {name: value.replace("{here}", str(here))}
    return variables


def run_there(
    environments: Sequence[Environment], here: Path, *arguments: str, **extra: str
) -> Ended:
    """Run Python with these arguments, as a user's shell does in these environments."""
    variables = enter(environments, here) | extra
    streams = next((one.streams for one in environments if one.streams), "")
    line = " && ".join([*(one.enter for one in environments if one.enter), f'"$@" {streams}'])
    done = subprocess.run(
        ["/bin/bash", "-c", line, "bash", sys.executable, *arguments],
        cwd=here,
        env=variables,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="backslashreplace",
        timeout=300,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "where", sampled(ENVIRONMENTS, 4, pytest.mark.thorough), ids=lambda one: one.name
)
def test_the_warm_server_starts_and_answers(
    where: Environment,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its answers are understood, and it imports packages, not files of their names in the working
    directory.

    What was written to the same stream before is in the controller's log.
    """
    caplog.set_level("INFO", "grposweep")
    variables = enter([where], here)
    for name in os.environ.keys() - variables.keys():
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(here)
    server = ForkServer(["yaml", "tokenizers"])
    pid = server.start(["no", "such", "words"], {}, here / "log")
    while (code := server.poll(pid, 1.0)) is None:
        pass
    server.close()
    assert ("no line end" in caplog.text) == ("site/sitecustomize.py" in where.files)
    assert code == ExitCode.BAD_INPUT
    # such as: each trial starts its own process
    assert capfd.readouterr().err == ""
    log = (here / "log").read_text()
    assert "usage: " in log
    # the server's own errors are there, too
    assert "Traceback" not in log


@pytest.mark.parametrize(
    "where", [one for one in ENVIRONMENTS if one.shows], ids=lambda one: one.name
)
def test_a_sweep_is_shown(where: Environment, here: Path) -> None:
    """``grposweep status`` ends as the table says, without a traceback."""
    path = os.pathsep.join([str(SOURCE), *filter(None, [where.variables.get("PYTHONPATH")])])
    ended = run_there(
        [where],
        here,
        "-m",
        "grposweep",
        "status",
        "measured",
        "--outputs",
        str(FIXTURES),
        PYTHONPATH=path.replace("{here}", str(here)),
    )
    assert (ended.code, "Traceback" in ended.out + ended.err) == (where.code, False)
    assert where.says in ended.out + ended.err
    if not where.code and not where.streams:
        assert "measured" in ended.out
        # nothing that erases a line
        assert "\x1b[2K" not in ended.out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The rewards and gradients of a run without any of these environments."""
    here = tmp_path_factory.mktemp("plain")
    assert run_there([], here, str(RUN), *STEPS).code == 0
    return trained(here)


def trained(here: Path) -> list[object]:
    """What each step of the only run below a folder has logged of the training."""
    (metrics,) = here.rglob("metrics.jsonl")
    return [
        (line.get("loss"), line.get("grad_norm"), line.get("eval_reward"))
        for line in lines(metrics)
    ]


@pytest.mark.parametrize(
    "group",
    sampled(GROUPS, 8, pytest.mark.thorough),
    ids=lambda group: ", ".join(one.name for one in group),
)
def test_two_steps_train(group: list[Environment], here: Path, plain: list[object]) -> None:
    """``python src/run.py`` trains the same two steps, or ends with one message; never with a
    traceback.
    """
    fake = ("trainer=fake",) if group[0].fake and not EACH else ()
    ended = run_there(group, here, str(RUN), *STEPS, *fake)
    assert (ended.code, "Traceback" in ended.out + ended.err) == (group[0].code, False), ended
    assert group[0].says in ended.out + ended.err
    # nothing that hides a cursor: there is no terminal
    assert "\x1b[?25l" not in ended.out
    results = [read(path) for path in here.rglob("result.json")]
    assert [(found["status"], found["step"]) for found in results] == [("finished", 2)] * (
        not group[0].code
    )
    if not (group[0].code or fake):
        assert trained(here) == plain
