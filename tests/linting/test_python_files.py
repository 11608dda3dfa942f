"""``grposweep lint`` on Python files and notebooks: places, fixes in place, comments."""

import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from grporecipe.linting.command import LintOptions, lint_files
from grporecipe.linting.linter import EVERYTHING
from grporecipe.reading.load import Options
from support import unwrap

VERSION = {"version": (1, 16, 0)}
CALL = (
    "from trl import GRPOConfig\nc = GRPOConfig(\n    torch_dtype='bfloat16',\n    "
    "max_steps=100,\n)\n"
)


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    """A Python file, or a notebook with this text in its second cell."""
    path = folder / name
    if name.endswith(".ipynb"):
        cells = [
            {"cell_type": "markdown", "source": ["# GRPO"]},
            {"cell_type": "code", "source": text.splitlines(True)},
        ]
        text = json.dumps({"cells": cells, "nbformat": 4}, indent=1)
    path.write_text(text)
    return path


def answer(path: Path, form: str = "text", **more: bool) -> str:
    """What lint prints about a file."""
    out = io.StringIO()
    lint_files([path], LintOptions(Options(**VERSION), EVERYTHING, form, **more), out)
    return out.getvalue()


def test_a_problem_of_a_notebook_names_cell_and_line(tmp_path: Path) -> None:
    """In text and in JSON; the source line is the cell's."""
    path = write(tmp_path, CALL, "train.ipynb")
    assert "train.ipynb:cell 2:3: GV101 error\n       3 |     torch_dtype='bfloat16',\n" in answer(
        path
    )
    problem = next(p for p in json.loads(answer(path, "json"))["problems"] if p["code"] == "GV101")
    assert (problem["cell"], problem["line"]) == (2, 3)


def test_a_fix_is_shown_as_python(tmp_path: Path) -> None:
    """``key=value``, as it stands in the call."""
    assert "fix: torch_dtype removed, dtype='bfloat16'\n" in answer(write(tmp_path, CALL))


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_fixes_are_shown_as_a_diff_and_not_written(tmp_path: Path) -> None:
    """Of a file as ``patch`` takes it; of a notebook with the number of the cell."""
    path = write(tmp_path, CALL)
    diff = answer(path, diff=True)
    assert diff.startswith(f"--- {path}\n+++ {path}\n@@ -1,5 +1,5 @@\n")
    subprocess.run(
        ["patch", "-p0", path.name],
        cwd=tmp_path,
        input=diff,
        text=True,
        check=True,
        capture_output=True,
    )
    assert path.read_text() == CALL.replace("torch_dtype=", "dtype=")
    notebook = write(tmp_path, CALL, "train.ipynb")
    shown = answer(notebook, diff=True)
    assert shown.startswith(f"--- {notebook}:cell 2\n+++ {notebook}:cell 2\n@@ -1,5 +1,5 @@\n")
    assert "-    torch_dtype='bfloat16',\n+    dtype='bfloat16',\n" in shown


@pytest.mark.parametrize("name", ["train.py", "train.ipynb"])
def test_fix_changes_no_python_and_says_so(tmp_path: Path, name: str) -> None:
    """In a line; a fix is not marked as one that it writes."""
    path = write(tmp_path, CALL, name)
    before = path.read_bytes()
    shown = answer(path, fix=True)
    assert path.read_bytes() == before
    assert "Python is not rewritten: see --diff, and change these by hand\n" in shown
    assert "(safe)" not in shown


@pytest.mark.parametrize(
    ("strategy", "more", "found"),
    [
        ("'steps'", "", True),
        ("'epoch'", ", eval_dataset=None", True),
        ("'no'", "", False),
        ("word", "", False),
        ("'steps'", ", eval_dataset=held_out", False),
        ("'steps'", ", **words", False),
        ("'steps'", ", *words", False),
    ],
)
def test_evaluation_without_data_is_an_error(
    tmp_path: Path, strategy: str, more: str, found: bool
) -> None:
    """transformers stops at start. No error if the call may get the data in another way."""
    text = (
        "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(\n    "
        f"eval_strategy={strategy},\n)\n"
    )
    path = write(tmp_path, f"{text}GRPOTrainer('m'{more}, args=args, train_dataset=data)\n")
    shown = answer(path)
    assert ("train.py:3: GE104 error" in shown) is found
    assert ("GRPOTrainer(...) on line 5 gets no eval_dataset" in unwrap(shown)) is found


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ("", True),
        (", reward_funcs=None", True),
        (", reward_funcs=reward", False),
        (", environment_factory=Game", False),
        (", **words", False),
        (", *words", False),
        (", reward", False),
    ],
)
def test_a_trainer_without_rewards_is_an_error(tmp_path: Path, more: str, found: bool) -> None:
    """TRL stops at start. No error if the call may get them in another way."""
    text = "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(seed=1)\n"
    shown = answer(
        write(tmp_path, f"{text}GRPOTrainer('m'{more}, args=args, train_dataset=data)\n")
    )
    assert ("GV115 error" in shown) is found


def test_a_value_that_is_no_literal_is_in_no_diff(tmp_path: Path) -> None:
    """Another call may use the same name."""
    path = write(tmp_path, "from trl import GRPOConfig\nS = '8'\nGRPOConfig(num_generations=S)\n")
    assert answer(path, diff=True, unsafe=True) == ""


def test_comments_of_a_cell_switch_rules_off(tmp_path: Path) -> None:
    """By the line of the cell, not of the JSON."""
    path = write(
        tmp_path,
        CALL.replace("'bfloat16',", "'bfloat16',  # grposweep: ignore[GV101]"),
        "train.ipynb",
    )
    assert "GV101" not in answer(path)
