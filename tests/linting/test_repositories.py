"""Small repositories, each with its findings in expect.txt. A bug report is one more folder.

Most reduce a false error on a public repository: the repository's own code differs from what a rule
assumes.
"""

import os
import shutil
from pathlib import Path

import pytest

from grporecipe.errors import UserError
from grporecipe.linting.linter import lint_recipe
from grporecipe.reading.load import Options, load_recipes
from support import PROJECT

REPOSITORIES = PROJECT / "tests" / "repositories"


def findings(run: Path) -> list[str]:
    """The findings of a script, or why it is not judged, a line each."""
    try:
        results = [lint_recipe(recipe) for recipe in load_recipes(run, Options())]
    except UserError as error:
        return [str(error)]
    return [
        f"{each.code} {each.severity}: {each.message}"
        for result in results
        for each in result.diagnostics
    ]


@pytest.mark.parametrize("name", sorted(path.name for path in REPOSITORIES.iterdir()))
def test_a_repository_has_the_findings_of_its_page(name: str, tmp_path: Path) -> None:
    """Word for word: what is told, and what is not."""
    folder = shutil.copytree(REPOSITORIES / name, tmp_path / name)
    (folder / ".git").mkdir()
    found = findings(next(folder.glob("run.*")))
    if "ACCEPT_FINDINGS" in os.environ:
        (REPOSITORIES / name / "expect.txt").write_text("".join(f"{line}\n" for line in found))
    assert found == (REPOSITORIES / name / "expect.txt").read_text().splitlines()
