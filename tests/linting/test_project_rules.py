"""``select`` and ``ignore`` of a project's settings, for all its files or some; the command line wins."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.linting.linter import select_for, select_rules
from grposweep.cli.recipes import lint

Write = Callable[..., Path]
BAD = "num_generations: 7\nper_device_train_batch_size: 8\n"


def test_a_project_ignores_rules_for_its_files(recipe: Write, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, or by a pattern; what is off is reported."""
    path, other = recipe(start=BAD), recipe(start=BAD, name="old.yaml")
    assert lint([path, other], processes=8, select=["GB"]) == 1
    (here / "pyproject.toml").write_text('[tool.grposweep.per-file-overrides."old*.yaml"]\nignore = ["GB101"]\n')
    capsys.readouterr()
    assert lint([path, other], processes=8, select=["GB1", "GA"], ignore=["GA201"]) == 1
    assert "recipe.yaml:1: GB101" in capsys.readouterr().out
    (here / ".grposweep.toml").write_text('ignore = ["GB101"]\n')
    assert lint([path, other], processes=8) == 0
    assert "switched off: GB101\n" in capsys.readouterr().out


def test_the_command_line_wins(here: Path) -> None:
    """--select stands for the project's, and ends its ignore of what it names; --ignore adds to the project's."""
    (here / ".grposweep.toml").write_text('select = ["GB", "GE"]\nignore = ["GB101", "GB102"]\n')
    path = here / "r.yaml"
    assert select_for(path, select_rules()) == select_rules(["GB", "GE"], ["GB101", "GB102"])
    assert select_for(path, select_rules(["GB101"])) == select_rules(["GB101"], ["GB102"])
    assert select_for(path, select_rules((), ["GE101"])) == select_rules(["GB", "GE"], ["GB101", "GB102", "GE101"])


def test_a_rule_that_does_not_exist_is_one_message(here: Path) -> None:
    """It names the file of the settings."""
    (here / ".grposweep.toml").write_text('ignore = ["GB999"]\n')
    with pytest.raises(UserError, match=r"\.grposweep\.toml: GB999: no rule or family"):
        select_for(here / "r.yaml", select_rules())
