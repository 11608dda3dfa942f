"""Between the command line and Hydra: parts of Hydra that grposweep replaces, flags in any order,
single alternatives.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from grposweep.cli._run import command
from grposweep.cli.hydra_app import copy_conf
from grposweep.search.parse import parse_space
from support import PROJECT, Printed, environment


def test_a_sweep_s_configuration_is_shown_with_what_is_searched(
    monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """-m --cfg job: Hydra takes one of the two, and overrides behind both."""
    monkeypatch.setattr(sys, "argv", ["run.py", "kl=low", "-m", "--cfg", "job", "lr=1e-3,2e-3"])
    command(lambda: None)
    assert sys.argv == ["run.py", "--cfg", "job", "kl=low"]
    assert printed() == "# searched: lr=1e-3,2e-3\n"


def test_a_project_s_own_conf_is_the_primary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra would read the package's own options before those of --config-dir; a folder without
    config.yaml stays behind.
    """
    conf = copy_conf(tmp_path / "conf").parent.parent
    monkeypatch.setattr(sys, "argv", ["run.py", "lr=1e-3", f"--config-dir={conf}"])
    command(lambda: None)
    assert sys.argv == ["run.py", "--config-path", str(conf), "lr=1e-3"]
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    monkeypatch.setattr(sys, "argv", ["run.py", "--config-dir", "elsewhere", "lr=1e-3"])
    command(lambda: None)
    assert sys.argv == ["run.py", "--config-dir", "elsewhere", "lr=1e-3"]
    # Hydra looks for this one next to its program, not in the working directory
    monkeypatch.setattr(sys, "argv", ["run.py", "--config-path", "conf_of_the_program", "lr=1e-3"])
    command(lambda: None)


def test_a_single_alternative_of_a_sweep_file_is_a_parameter_under_one_factor() -> None:
    """It is compared with the base configuration, and does not become it."""
    assert parse_space([], {"kl": "low", "lr": "1e-3,2e-3"})[1] == ["kl=low"]
    space, fixed = parse_space(["seed=1"], {"kl": "low", "lr": "1e-3,2e-3"}, keeps_single=True)
    assert space.parameters[0].describe() == {"parameter": "kl", "choices": ["low"]}
    assert fixed == ["seed=1"]


def test_the_plugin_costs_an_application_nothing() -> None:
    """Hydra imports it at every start."""
    code = (
        "import sys, hydra_plugins.grposweep.sweeper; print({'grposweep', 'optuna', "
        "'yaml.cyaml'} & set(sys.modules))"
    )
    env = environment(PYTHONPATH=str(PROJECT / "src"))
    before = code.replace(
        "hydra_plugins.grposweep.sweeper", "hydra.core.config_store, hydra.plugins.sweeper"
    )
    with_plugin, without = (
        subprocess.run(
            [sys.executable, "-c", text], env=env, capture_output=True, text=True, check=True
        ).stdout
        for text in (code, before)
    )
    assert with_plugin == without
