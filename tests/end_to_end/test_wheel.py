"""An installation from the wheel of a source archive, far from the checkout: run, sweep, init, lint."""

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from support import PROJECT, trials

pytestmark = pytest.mark.slow
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "outputs")
ARCHIVE = "from setuptools.build_meta import build_sdist; build_sdist('..')"
SHORT = ("trainer=fake", "schedule.budget_completions=null", "schedule.max_steps=2")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The grposweep command of an environment that has the wheel, and our environment's
    dependencies by a .pth file.
    """
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(PROJECT, folder / "source", symlinks=True, ignore=LEFT_OUT)
    subprocess.run([sys.executable, "-c", ARCHIVE], cwd=folder / "source", check=True)
    (archive,) = folder.glob("*.tar.gz")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    packages = next((folder / "env").glob("lib/python*/site-packages"))
    # setuptools among them, which builds the wheel
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--python", folder / "env" / "bin" / "python", "install"]
    subprocess.run([*pip, "-q", "--no-deps", "--no-build-isolation", archive], check=True)
    shutil.rmtree(folder / "source")
    return folder / "env" / "bin" / "grposweep"


def call(installed: Path, here: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the installed command without anything of the checkout in its environment."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "HYDRA_FULL_ERROR")
    }
    variables |= {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    words = [installed, *arguments]
    return subprocess.run(
        words, cwd=here, env=variables, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_wheel_runs_and_sweeps_with_the_configuration_groups_that_it_carries(
    installed: Path, tmp_path: Path
) -> None:
    """And resumes by the same command; retry knows the command."""
    ended = call(
        installed,
        tmp_path,
        "run",
        "-m",
        *SHORT,
        "name=s",
        "lr=1e-2,1e-3",
        "trainer.args.crash_above_lr=5e-3",
    )
    assert ended.returncode == 0, ended.stderr
    assert len(trials(tmp_path / "outputs" / "s")) == 2
    again = call(installed, tmp_path, "retry", "s")
    assert again.returncode == 0, again.stderr
    assert "1 trial of s to try again" in again.stdout
    command = (trials(tmp_path / "outputs" / "s")[1] / "command.sh").read_text()
    assert "-m grposweep run" in command
    shown = call(installed, tmp_path, "run", "--help").stdout
    assert "Groups (group=option)" in shown
    assert "\ngrposweep run lr=3e-4" in shown
    assert "run.py" not in shown
    assert call(installed, tmp_path, "run", "lr=x").returncode == 2


def test_a_copy_of_the_groups_is_edited_and_used(installed: Path, tmp_path: Path) -> None:
    """grposweep init, an option of one's own, and the starter study."""
    assert call(installed, tmp_path, "init").returncode == 0
    assert call(installed, tmp_path, "init").returncode == 2
    (tmp_path / "conf" / "batch" / "mine.yaml").write_text(
        (tmp_path / "conf" / "batch" / "small.yaml").read_text()
    )
    own = ("--config-dir", "conf", "sweeps=my_study", "batch=mine")
    ended = call(installed, tmp_path, "run", *own, *SHORT, "name=s", "search.trials=2")
    assert ended.returncode == 0, ended.stderr
    assert len(trials(tmp_path / "outputs" / "s")) == 2


def test_the_wheel_adds_a_package_to_the_namespace_of_hydras_plugins(installed: Path) -> None:
    """And nothing of the namespace itself: other plugins share it."""
    (plugins,) = installed.parents[1].glob("lib/python*/site-packages/hydra_plugins")
    assert (plugins / "grposweep" / "sweeper.py").is_file()
    assert not (plugins / "__init__.py").exists()


def test_an_empty_environment_gets_what_lint_needs(installed: Path, tmp_path: Path) -> None:
    """From the package index, so it is skipped without one."""
    venv.create(tmp_path, with_pip=False)
    (archive,) = installed.parents[2].glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "bin" / "python", "install", "-q"]
    if subprocess.run([*pip, archive], check=False).returncode:
        pytest.skip("no package index")
    recipe = str(PROJECT / "docs" / "recipe.yaml")
    judged = call(tmp_path / "bin" / "grposweep", tmp_path, "lint", recipe, "--processes", "7")
    assert "1 file: 2 errors" in judged.stdout, judged.stderr
