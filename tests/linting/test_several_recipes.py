"""Files with several recipes: each is judged, shown with its line, counted and fixed."""

import json
from pathlib import Path

import pytest

from grposweep.cli._recipes import Format, LintFormat, lint, plan
from support import Printed, Write

CALL = "GRPOConfig(output_dir='x', num_generations={}, per_device_train_batch_size=8{})\n"
TWO = "from trl import GRPOConfig\na = " + CALL.format(8, "") + "b = " + CALL.format(7, "{more}")


@pytest.fixture
def script(here: Path) -> Write:
    """A Python file with a valid and a broken configuration."""

    def write(more: str = "", name: str = "train.py") -> Path:
        text = TWO.format(more=more)
        if name.endswith(".ipynb"):
            cells = [{"cell_type": "code", "source": part} for part in ("# setup\n", text)]
            text = json.dumps({"nbformat": 4, "cells": cells})
        (here / name).write_text(text)
        return here / name

    return write


def test_each_recipe_is_judged_and_counted(script: Write, printed: Printed) -> None:
    """The closing line counts recipes, and JSON has an object each with its line."""
    path = script()
    assert lint([path], processes=8, select=["GB101"]) == 1
    out = printed()
    assert f"{path}:3: GB101 error\n       3 | b = GRPOConfig" in out
    assert "2 recipes in 1 file: 1 error, 0 warnings" in out
    lint([path], processes=8, select=["GB101"], format=LintFormat.json)
    answers = [json.loads(line) for line in printed().splitlines()]
    assert [(answer["ok"], answer["line"]) for answer in answers] == [(True, 2), (False, 3)]


def test_a_comment_switches_a_rule_off_for_one_of_them(script: Write) -> None:
    """In Python too."""
    path = script(")  # grposweep: ignore[GB101]\nprint(1")
    assert lint([path], processes=8, select=["GB101"]) == 0


def test_the_diff_is_of_the_right_one(script: Write, printed: Printed) -> None:
    """In a file and in a notebook, of which neither is written."""
    for name in ("train.py", "train.ipynb"):
        path = script(name=name)
        before = path.read_text()
        lint([path], processes=8, select=["GB101"], diff=True, unsafe_fixes=True)
        changed = [
            line for line in printed().splitlines() if line.startswith("+") and "GRPOConfig" in line
        ]
        assert len(changed) == 1
        assert changed[0].startswith("+b = GRPOConfig(")
        assert path.read_text() == before


def test_a_notebook_has_cells(script: Write, here: Path, printed: Printed) -> None:
    """Cell and line in it; GitHub knows no lines of cells."""
    path = script(name="train.ipynb")
    lint([path], processes=8, select=["GB101"])
    assert f"{path}:cell 2:3: GB101 error\n       3 | b = GRPOConfig" in printed()
    lint([path], processes=8, select=["GB101"], format=LintFormat.json)
    (problem,) = json.loads(printed().splitlines()[1])["problems"]
    assert (problem["cell"], problem["line"]) == (2, 3)
    lint([path], processes=8, select=["GB101"], format=LintFormat.github)
    assert ",line=" not in printed()
    lint([path], processes=8, select=["GB101"], format=LintFormat.sarif)
    (place,) = json.loads(printed())["runs"][0]["results"][0]["locations"]
    assert "region" not in place["physicalLocation"]
    assert place["message"]["text"] == "cell 2:3"


def test_plan_shows_each_of_them(script: Write, printed: Printed) -> None:
    """With its line."""
    path = script()
    assert plan([str(path)], processes=8, format=Format.json) == 1
    plans = [json.loads(line) for line in printed().splitlines()]
    assert [shown["file"] for shown in plans] == [f"{path}:2", f"{path}:3"]
    assert [shown["plan"]["prompts_per_rollout"] for shown in plans] == [8, None]
