"""What is written as shell, with hostile values, is run by a real bash: each value arrives as it
is, and none is a command.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grposweep.config.compose import load_experiment, to_experiment
from grposweep.config.identity import ResolvedConfig
from grposweep.config.points import Compose
from grposweep.launchers.base import Job
from grposweep.launchers.slurm._script import render_script
from grposweep.launchers.slurm._sweep_jobs import write_controller
from grposweep.report.trial_view import read_trial
from grposweep.schema import Cluster
from grposweep.storage.folders import SweepFolder
from grposweep.sweep._attempts import write_trial
from support import Run, run_in, sampled, shellcheck, trials

HOSTILE = 'it\'s "q" $HOME $(touch owned) `touch owned` ; touch owned & \\ * é\t!x\ntouch owned\n#'
# $HOME in single quotes does not expand: that is wanted
KEPT = ("SC2016",)
STUB = (
    '#!/bin/sh\nprintf \'%s\\n\' "$NOTE" >"$SEEN"\nfor word; do printf \'%s\\n\' "$word" '
    '>>"$SEEN"; done\n'
)


def run_bash(script: Path, here: Path, **extra: str) -> "subprocess.CompletedProcess[str]":
    """Run a script to its end in a folder where it must create no file named owned."""
    variables = {"PATH": f"{here}:/usr/bin:/bin", "HOME": "/nowhere", **extra}
    ended = subprocess.run(
        ["bash", str(script)], cwd=here, env=variables, capture_output=True, text=True, check=False
    )
    assert not list(here.rglob("owned"))
    return ended


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trial's folder with a hostile name above it, which is the working directory."""
    folder = tmp_path / HOSTILE.replace("/", "") / "trials" / "0000-3f9a1c"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def test_values_and_folders_reach_a_job_as_they_are(folder: Path, tmp_path: Path) -> None:
    """The whole script, with srun in place of Slurm's."""
    for tool in ("srun", "scontrol", "sinfo"):
        (tmp_path / tool).write_text(STUB)
        (tmp_path / tool).chmod(0o755)
    (folder / "logs").mkdir()
    cluster = Cluster(
        kind="slurm", environment={"NOTE": HOSTILE}, python="python", partition="main"
    )
    script = tmp_path / "job.sbatch"
    script.write_text(render_script(Job(folder, 0, cluster), folder.parent.parent, folder))
    ended = run_bash(
        script, tmp_path, SEEN=str(tmp_path / "seen"), SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n1"
    )
    assert ended.returncode == 0, ended.stderr
    seen = (tmp_path / "seen").read_text()
    assert seen.startswith(HOSTILE + "\n")
    assert seen.endswith(f"grposweep.train\n{folder}\n")


def test_shellcheck_finds_nothing_in_the_jobs_of_hostile_values(folder: Path) -> None:
    """Of a trial and of a controller: folders, environment, container options, words of the
    command.
    """
    options = [f"--container-image={HOSTILE}", f"--container-mounts={HOSTILE}:/data"]
    cluster = Cluster(
        kind="slurm", environment={"NOTE": HOSTILE}, python="python", container=options
    )
    trial = render_script(Job(folder, 0, cluster), folder.parent.parent, folder)
    controller = write_controller(
        cluster, folder.parent.parent, ["python", f"x={HOSTILE}"]
    ).read_text()
    assert [shellcheck(script, *KEPT) for script in (trial, controller)] == ["", ""]


def test_shellcheck_finds_a_value_without_quotes() -> None:
    """So that the tests above can fail."""
    assert "SC2086" in shellcheck("#!/bin/bash\nrm $1\n", *KEPT)


def test_values_of_a_point_are_words_of_the_command_that_repeats_its_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compose: Compose
) -> None:
    """Also in a hostile folder."""
    here = tmp_path / HOSTILE.replace("/", "")
    here.mkdir()
    monkeypatch.chdir(here)
    config = ResolvedConfig.of(to_experiment(compose(["trainer=fake"])))
    verdict: Any = SimpleNamespace(
        point={"note": HOSTILE},
        values={"note": HOSTILE},
        experiment=config.experiment,
        config=config,
        setting=config.setting,
    )
    trial = write_trial(SweepFolder(here / "s"), 0, verdict, [f"shared={HOSTILE}"], {}, {})
    text = (trial.path / "command.sh").read_text()
    assert shlex.quote(sys.executable) in text
    assert shellcheck(text, *KEPT) == ""
    # also a line of a value that begins with #
    assert text.endswith(f"\n{read_trial(trial, False).command}\n")
    script = tmp_path / "command.sh"
    script.write_text(text.replace(shlex.quote(sys.executable), "printf '<%s>\\n'", 1))
    said = run_bash(script, tmp_path).stdout
    assert f"<shared={HOSTILE}>" in said
    assert "owned" in said


@pytest.mark.slow
def test_a_variable_of_the_shell_in_braces_stays_text(run: Run) -> None:
    r"""``\${HOME}`` is Hydra's way to write it: the job has ``${HOME}``, and so has a repeated
    trial.
    """
    words = ("trainer=fake", "kl=none", "name=s", "lr=1e-3", "cluster=dry_run")
    written = run(*words, r"cluster.setup=['export P=\${HOME}/x']")
    (trial,) = trials(written.sweep)
    assert "\nexport P=${HOME}/x\n" in (trial / "job-0.sbatch").read_text()
    again = load_experiment(trial / "config.yaml")
    assert again.cluster.setup == ["export P=${HOME}/x"]
    refused = run(*words, "cluster.setup=['export P=${HOME}/x']")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: cluster.setup[0] refers to a key that does not exist")
    assert r"write \${...} for text" in refused.err


WORDS = [
    "account",
    "partition",
    "qos",
    "constraint",
    "exclude",
    "service_partition",
    "service_account",
    "service_qos",
]


PAIRS = [
    *((name, "a\ntouch owned") for name in WORDS),
    *(("account", value) for value in ("a --wrap=id", "a\ttab", "")),
]


@pytest.mark.parametrize(("name", "value"), sampled(PAIRS, 3))
def test_a_value_of_a_job_script_that_is_not_one_word_is_refused(
    here: Path, name: str, value: str
) -> None:
    """Or its second line would be a command of the script. No script is written."""
    ended = run_in(here, "trainer=fake", "cluster=dry_run", "lr=1e-3", f'cluster.{name}="{value}"')
    assert ended.code == 2, ended.out
    assert f"cluster.{name}=" in ended.err
    assert "as one word" in ended.err
    assert not list(here.rglob("*.sbatch"))
