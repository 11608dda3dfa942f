"""``grposweep lint`` on Python files and notebooks: places, fixes in place, comments."""

import io
import json
from pathlib import Path

import pytest

from grporecipe.linting.apply_fixes import fix_file
from grporecipe.linting.command import LintOptions, lint_files
from grporecipe.linting.linter import EVERYTHING
from grporecipe.reading.load import Options

VERSION = {"version": (1, 16, 0)}
CALL = "from trl import GRPOConfig\nc = GRPOConfig(\n    torch_dtype='bfloat16',\n    max_steps=100,\n)\n"


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


def answer(path: Path, form: str = "text") -> str:
    """What lint prints about a file."""
    out = io.StringIO()
    lint_files([path], LintOptions(Options(**VERSION), EVERYTHING, form), out)
    return out.getvalue()


def test_a_problem_of_a_notebook_names_cell_and_line(tmp_path: Path) -> None:
    """In text and in JSON; the source line is the cell's."""
    path = write(tmp_path, CALL, "train.ipynb")
    assert "train.ipynb:cell 2:3: GV101 error\n       3 |     torch_dtype='bfloat16',\n" in answer(path)
    problem = next(p for p in json.loads(answer(path, "json"))["problems"] if p["code"] == "GV101")
    assert (problem["cell"], problem["line"]) == (2, 3)


def test_a_fix_is_shown_as_python(tmp_path: Path) -> None:
    """``key=value``, as it stands in the call."""
    assert "fix (safe): torch_dtype removed, dtype='bfloat16'\n" in answer(write(tmp_path, CALL))


def test_safe_fixes_are_written_into_the_call(tmp_path: Path) -> None:
    """Of a file and of a notebook, whose JSON stays as it is."""
    for name in ("train.py", "train.ipynb"):
        path = write(tmp_path, CALL, name)
        before = path.read_text()
        fixed = fix_file(path, Options(**VERSION), EVERYTHING, unsafe=False)
        assert path.read_text() == before.replace("torch_dtype=", "dtype=")
        assert (fixed.changes, fixed.note) == (("GV101: torch_dtype removed, dtype='bfloat16'",), "")


@pytest.mark.parametrize(
    ("strategy", "more", "found"),
    [("'steps'", "", True), ("'epoch'", ", eval_dataset=None", True), ("'no'", "", False), ("word", "", False),
     ("'steps'", ", eval_dataset=held_out", False), ("'steps'", ", **words", False), ("'steps'", ", *words", False)],
)  # fmt: skip
def test_evaluation_without_data_is_an_error(tmp_path: Path, strategy: str, more: str, found: bool) -> None:
    """transformers stops at start. No error if the call may get the data in another way."""
    text = f"from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(\n    eval_strategy={strategy},\n)\n"
    path = write(tmp_path, f"{text}GRPOTrainer('m'{more}, args=args, train_dataset=data)\n")
    shown = answer(path)
    assert ("train.py:3: GE104 error" in shown) is found
    assert ("GRPOTrainer(...) on line 5 gets no eval_dataset" in " ".join(shown.split())) is found


@pytest.mark.parametrize(
    ("more", "found"),
    [("", True), (", reward_funcs=None", True), (", reward_funcs=reward", False), (", environment_factory=Game", False),
     (", **words", False), (", *words", False), (", reward", False)],
)  # fmt: skip
def test_a_trainer_without_rewards_is_an_error(tmp_path: Path, more: str, found: bool) -> None:
    """TRL stops at start. No error if the call may get them in another way."""
    text = "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(seed=1)\n"
    shown = answer(write(tmp_path, f"{text}GRPOTrainer('m'{more}, args=args, train_dataset=data)\n"))
    assert ("GV115 error" in shown) is found


def test_a_value_that_is_no_literal_is_left_alone_and_that_is_reported(tmp_path: Path) -> None:
    """The file stays as it is."""
    text = "from trl import GRPOConfig\nS = '8'\nGRPOConfig(num_generations=S)\n"
    path = write(tmp_path, text)
    fixed = fix_file(path, Options(**VERSION), EVERYTHING, unsafe=True)
    assert path.read_text() == text
    assert fixed.changes == ()
    assert fixed.note.endswith("change these by hand")


def test_comments_of_a_cell_switch_rules_off(tmp_path: Path) -> None:
    """By the line of the cell, not of the JSON."""
    path = write(tmp_path, CALL.replace("'bfloat16',", "'bfloat16',  # grposweep: ignore[GV101]"), "train.ipynb")
    assert "GV101" not in answer(path)
