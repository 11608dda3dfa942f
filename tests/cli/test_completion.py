"""What a shell offers on tab: commands, sweeps and trials of ``grposweep``; groups, options and
keys of ``run.py``.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from grposweep import __version__
from grposweep.cli import build_app
from support import PROJECT, environment


@pytest.fixture
def sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two sweeps, one of them with trials."""
    for name in ("kl_grid", "lr batch"):
        (tmp_path / "outputs" / name / "trials").mkdir(parents=True)
        (tmp_path / "outputs" / name / "sweep.yaml").write_text("v: 1\n")
    for trial in ("0000-aaaaaa", "0001-bbbbbb", "0010-cccccc"):
        (tmp_path / "outputs" / "kl_grid" / "trials" / trial).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(line: str) -> list[str]:
    """What bash is offered at the end of a command line."""
    words = line.split(" ")
    variables = {
        "_GRPOSWEEP_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    said = CliRunner().invoke(build_app(), [], env=variables, prog_name="grposweep").stdout
    return [line for line in said.split("\n") if line]


def test_a_shell_offers_the_sweeps_under_outputs(sweeps: Path) -> None:
    """In every argument that names a sweep."""
    assert offered("grposweep status ") == ["kl_grid", "lr batch"]
    assert offered("grposweep status kl") == ["kl_grid"]
    assert offered("grposweep rerun k") == ["kl_grid"]


def test_a_shell_offers_the_trials_of_the_named_sweep(sweeps: Path) -> None:
    """By number."""
    assert offered("grposweep rerun kl_grid ") == ["0", "1", "10"]
    assert offered("grposweep show kl_grid 1") == ["1", "10"]


def test_where_there_is_nothing_a_shell_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message, no traceback on the command line."""
    monkeypatch.chdir(tmp_path)
    assert offered("grposweep rerun ") == []
    assert offered("grposweep status [") == []


@pytest.mark.parametrize("wrong", [["stats"], ["status", "--wach"], ["lint", "--framwork", "trl"]])
def test_a_misspelt_command_or_option_gets_its_nearest_relative(wrong: list[str]) -> None:
    """And exit code 2."""
    done = CliRunner().invoke(build_app(), wrong)
    assert done.exit_code == 2
    assert any(word in done.stderr for word in ("'status'", "--watch", "--framework"))


def test_every_command_has_examples_that_it_takes() -> None:
    """In its help; each parses as it stands there."""
    root = get_command(build_app())
    for name, command in root.commands.items():  # type: ignore[attr-defined]  # typer's root is a group
        lines = [
            line.strip() for line in (command.epilog or "").splitlines() if "grposweep " in line
        ]
        assert lines, name
        for line in lines:
            words = shlex.split(line.split(" > ")[0].split(" | ")[0], comments=True)
            words = words[words.index("grposweep") + 1 :]
            assert words[0] == name
            command.make_context(name, words[1:])


def test_every_commands_help_fits_80_columns() -> None:
    """Examples are not wrapped, so each has to fit as it is."""
    # its help is the one of python src/run.py, with all groups
    hydra = {"run"}
    for name in set(get_command(build_app()).commands) - hydra:  # type: ignore[attr-defined]  # typer's root is a group
        said = CliRunner().invoke(build_app(), [name, "--help"], env={"COLUMNS": "80"}).stdout
        assert "Examples:" in said
        assert [line for line in said.splitlines() if len(line) > 80] == []


def test_the_list_of_commands_is_grouped_and_has_whole_sentences() -> None:
    """At 80 columns none is cut off with dots; each command stands in one group."""
    shown = CliRunner().invoke(build_app(), ["--help"], env={"COLUMNS": "80"}).stdout
    rows = shown.partition("Judge recipes")[2].partition("Examples:")[0].splitlines()
    listed = [line for line in rows if line.startswith("  ") and line.strip()]
    assert sorted(line.split()[0] for line in listed) == sorted(get_command(build_app()).commands)  # type: ignore[attr-defined]  # typer's root is a group
    assert [line for line in listed if not line.endswith(".") or line.endswith("..")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("kl=", "kl=sync_ref"),
        ("batch.num_g", "batch.num_generations="),
        ("sweeps=", "sweeps=lr_batch"),
    ],
)
def test_hydras_completion_works_in_bash(tmp_path: Path, typed: str, offers: str) -> None:
    """Installed as the documentation says."""
    (tmp_path / "python").symlink_to(sys.executable)
    script = f'''
        eval "$(python src/run.py -sc install=bash)"
        COMP_LINE="python src/run.py {typed}" COMP_POINT=${{#COMP_LINE}} COMP_CWORD=2
        COMP_WORDS=(python src/run.py "{typed}")
        hydra_bash_completion
        echo "${{COMPREPLY[@]}}"'''
    path = f"{tmp_path}:/usr/bin:/bin"
    known = environment(PATH=path, PYTHONPATH=":".join(part for part in sys.path if part))
    done = subprocess.run(
        ["bash", "-c", script], cwd=PROJECT, env=known, capture_output=True, text=True, check=False
    )
    assert offers in done.stdout.split(), done.stderr


def test_the_version_is_an_option() -> None:
    """As issue templates ask for it."""
    assert CliRunner().invoke(build_app(), ["--version"]).stdout == f"grposweep {__version__}\n"
