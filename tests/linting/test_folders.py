"""``grposweep lint FOLDER``: the files that it judges, those that it leaves out, and its messages
about them.
"""

import io
import json
import os
import subprocess
from pathlib import Path

import pytest

from grporecipe.linting.command import LintOptions, find_targets, lint_files
from grporecipe.linting.linter import select_rules
from grporecipe.reading.load import Options
from grporecipe.terminal import Progress
from support import Terminal, Write, unwrap

BAD = "num_generations: 7\nper_device_train_batch_size: 8\n"


@pytest.fixture
def put(here: Path) -> Write:
    """``put("a/b.yaml")`` writes a recipe, or other text, into a file."""

    def write(name: str, text: str = BAD) -> Path:
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def found(folder: Path) -> list[str]:
    """The files of a folder that are judged."""
    return [target.path.relative_to(folder).as_posix() for target in find_targets([folder])]


def lint(*paths: Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    out = io.StringIO()
    err = io.StringIO()
    code = lint_files(
        paths, LintOptions(Options(processes=8), select_rules(["GB", "GS203"])), out, err
    )
    return code, out.getvalue(), err.getvalue()


def test_what_git_ignores_is_left_out(put: Write, here: Path) -> None:
    """By the patterns of its own folder, of those above up to the repository's root, and of those
    below, which win.
    """
    (here / ".git").mkdir()
    put(".gitignore", "out/\n*.bak.yaml\n/conf/root.yaml\n")
    put("conf/.gitignore", "deep/*\n!deep/kept.yaml\n!kept.bak.yaml\n")
    for name in (
        "a.yaml",
        "a.bak.yaml",
        "out/a.yaml",
        "conf/root.yaml",
        "conf/a.yaml",
        "conf/kept.bak.yaml",
        "conf/deep/a.yaml",
        "conf/deep/kept.yaml",
        "conf/out/a.yaml",
    ):
        put(name)
    assert found(here) == ["a.yaml", "conf/a.yaml", "conf/kept.bak.yaml", "conf/deep/kept.yaml"]
    assert found(here / "conf") == ["a.yaml", "kept.bak.yaml", "deep/kept.yaml"]


@pytest.mark.parametrize("version", [2, 4])
def test_what_git_tracks_is_linted(put: Write, here: Path, version: int) -> None:
    """Even where .gitignore has its folder, as git does it. Paths may be long."""
    names = ["config/a.yaml", f"config/{'deep' * 20}/b.yaml", "config/c.yaml"]
    for name in names:
        put(name)
    git = ["git", "-C", str(here)]
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["update-index", "--index-version", str(version)],
    ):
        subprocess.run([*git, *command], check=True)
    put(".gitignore", "config/\n")
    put("config/untracked.yaml")
    assert found(here) == [names[0], names[2], names[1]]
    (here / ".git" / "index").write_bytes(b"DIRC")
    assert found(here) == []


def test_hidden_folders_and_environments_are_left_out(put: Write, here: Path) -> None:
    """Also caches, results of sweeps, groups of grposweep's own configuration, other kinds of
    files, and Python files that never say GRPO.
    """
    put("env/pyvenv.cfg", "home = /usr/bin\n")
    put("conf/config.yaml", "defaults: [override hydra/sweeper: grposweep]\n")
    put("outputs/s/sweep.yaml", "v: 1\n")
    mine = "outputs/s/trials/0000-abc/recipe.yaml"
    for name in (
        ".hidden/a.yaml",
        "env/a.yaml",
        "node_modules/a.yaml",
        "unsloth_compiled_cache/a.yaml",
        "conf/batch/a.yaml",
        mine,
        "a.json",
        "a.txt",
        "plain.py",
    ):
        put(name)
    put("train.py", "from trl import GRPOConfig\n")
    put("run.slurm", "#!/bin/bash\n")
    assert found(here) == ["run.slurm", "train.py", "conf/config.yaml"]


def test_a_recipe_of_a_tests_folder_is_told_its_errors_only(put: Write, here: Path) -> None:
    """It is short and unusual by intention; named itself, it is judged like any other, and so is a
    recipe of a repository below such a folder.
    """
    few = "num_generations: 8\nper_device_train_batch_size: 8\nmax_steps: 9\nnum_train_epochs: 2\n"
    file = put("tests/a.yaml", few)
    assert "GS203" in lint(file)[1]
    assert "GS203" not in lint(here)[1]
    put("tests/a.yaml", few.replace("8", "7", 1))
    assert "error" in lint(here)[1]
    put("tests/own/.git/config", "")
    assert "GS203" in lint(put("tests/own/a.yaml", few).parent)[1]


def test_a_recipe_of_a_folder_that_cannot_be_parsed_is_named(put: Write, here: Path) -> None:
    """By its keys, although nothing in it says GRPO."""
    put("broken.yaml", "num_generations: 8\nbeta: 0.04: x\n")
    out = unwrap(lint(here)[1])
    assert "not judged (name one to see why): " in out
    assert "broken.yaml" in out


def test_files_of_a_folder_that_are_no_recipes_are_counted_only(put: Write, here: Path) -> None:
    """Only recipes decide the exit code. A file that mentions GRPO and cannot be judged is
    named.
    """
    put("a.yaml")
    put("list.yaml", "- 1\n")
    put("setup.sh", "pip install trl\n")
    put("grpo.sh", "echo hello\n")
    code, out, err = lint(here)
    assert (code, err) == (1, "")
    assert "a.yaml:1: GB101 error" in out
    assert "\n1 recipe judged, 2 files skipped (no GRPO recipes)\n" in out
    assert unwrap(out).endswith(f"not judged (name one to see why): {here}/grpo.sh")


def test_a_named_file_that_is_no_recipe_stays_bad_input(put: Write, here: Path) -> None:
    """Also together with a folder."""
    other = put("list.yaml", "- 1\n")
    put("sub/a.yaml", "num_generations: 8\nper_device_train_batch_size: 8\n")
    code, out, err = lint(here / "sub", other)
    assert code == 2
    assert err.startswith(f"error: {other}: ")
    assert "1 could not be judged" in out


def test_a_folder_without_a_recipe_is_clean_and_says_so(here: Path) -> None:
    """Nothing to judge is no error."""
    (here / "empty").mkdir()
    assert lint(here / "empty") == (
        0,
        "no recipe to judge in these folders\n0 files: 0 errors, 0 warnings\n",
        "",
    )


@pytest.mark.parametrize(
    "settings",
    [
        'framework = "llama"\n',
        "proceses = 8\n",
        "processes = [\n",
        'ignore = ["GB999"]\n',
        'framework-version = "new"\n',
    ],
)
def test_wrong_settings_of_a_project_are_one_error_in_a_folder_too(
    put: Write, here: Path, settings: str
) -> None:
    """No file is judged as the project asks, so the check of a repository must not pass."""
    put("a.yaml")
    put("b.yaml")
    put(".grposweep.toml", settings)
    code, out, err = lint(here)
    assert (code, err.count("error: ")) == (2, 1)
    assert f"{here}/.grposweep.toml: " in err
    assert "0 files: " not in out
    assert "2 could not be judged" in out


def test_a_named_pipe_in_a_folder_is_left_out(put: Write, here: Path) -> None:
    """Reading it waited forever."""
    put("a.yaml")
    os.mkfifo(here / "b.yaml")
    os.mkfifo(here / "c.py")
    assert found(here) == ["a.yaml"]


def test_json_names_the_files_that_are_skipped_and_why(put: Write, here: Path) -> None:
    """In a line of their own, after the recipes; they are neither right nor wrong."""
    put("a.yaml")
    put("compose.yaml", "services: {web: {image: grpo}}\n")
    put("launch.sh", "# starts GRPO\nbash other.sh\n")
    out = io.StringIO()
    lint_files([here], LintOptions(Options(), select_rules(["GB", "GS203"]), format="json"), out)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["a.yaml", "compose.yaml", "launch.sh"]
    assert [row["ok"] for row in rows[1:]] == [None, None]
    assert [
        "a Docker Compose file" in rows[1]["skipped"],
        "lint that script" in rows[2]["skipped"],
    ] == [True, True]


def test_a_repository_is_asked_once_which_default_it_means(put: Write, here: Path) -> None:
    """GK203: ``beta`` changed its default in TRL 0.19."""
    for name in ("a.yaml", "b/c.yaml"):
        put(name, "num_generations: 8\nper_device_train_batch_size: 8\n")
    put("requirements.txt", "trl==0.18.0\n")
    (here / ".git").mkdir()
    out = io.StringIO()
    lint_files([here], LintOptions(Options(), select_rules(["GK203"]), format="json"), out)
    assert out.getvalue().count('"GK203"') == 1


SCRIPT = (
    "accelerate launch -m trl.scripts.grpo --config recipe.yaml --num_generations 8 "
    "--run_name {name}\n"
)


def test_a_recipe_that_several_launches_name_is_told_once(tmp_path: Path) -> None:
    """Its warnings stand at the first file that has them; errors stand at every launch, because
    none of them trains.
    """
    (tmp_path / ".git").mkdir()
    (tmp_path / "recipe.yaml").write_text("max_steps: -1\nreward_funcs: [accuracy]\nmax_steps: 5\n")
    for name in "abc":
        (tmp_path / f"{name}.sh").write_text(SCRIPT.format(name=name))
    out = io.StringIO()
    lint_files([tmp_path], LintOptions(Options(), select_rules(["GV105"])), out)
    assert out.getvalue().count("GV105 warning") == 1


def test_a_long_run_says_how_far_it_is_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two seconds on, on stderr, and the line is gone at the end."""
    (tmp_path / "a.yaml").write_text("num_generations: 8\n")
    monkeypatch.setattr(Progress, "AFTER", 0.0)
    shown = Terminal()
    piped = io.StringIO()
    for err in (shown, piped):
        lint_files([tmp_path], LintOptions(Options(), select_rules()), io.StringIO(), err)
    assert "1 files:" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[K")
    assert piped.getvalue() == ""


def test_recipes_of_other_frameworks_are_named_by_their_framework(tmp_path: Path) -> None:
    """So a folder of them does not look empty."""
    (tmp_path / "run.sh").write_text(
        "python3 train.py --advantage-estimator grpo --rollout-batch-size 32\n"
    )
    (tmp_path / "a.yaml").write_text("grpo: {num_prompts_per_step: 32}\npolicy: {model_name: m}\n")
    out = io.StringIO()
    lint_files([tmp_path], LintOptions(Options(), select_rules()), out)
    assert (
        "2 files skipped (no GRPO recipes; NeMo-RL, which is not read: 1; slime, which is not "
        "read: 1)"
    ) in out.getvalue()
