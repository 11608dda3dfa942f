"""What the rules say of a recipe, as tests ask for it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grporecipe.linting.linter import Diagnostic, LintResult, lint_recipe
from grporecipe.reading.load import Options, load_recipe
from grporecipe.rules.registry import Problem


def lint_text(folder: Path, text: str, name: str = "run.sh", **options: Any) -> LintResult:
    """The verdict on a file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return lint_recipe(load_recipe(path, Options(**options)))


def findings_of(path: Path, **options: Any) -> tuple[Diagnostic, ...]:
    """What is found in a file."""
    return lint_recipe(load_recipe(path, Options(**options))).diagnostics


def codes_of(found: Iterable[Diagnostic | Problem]) -> set[str]:
    """The rules that are broken."""
    return {each.code for each in found}


def error_codes(found: Iterable[Diagnostic | Problem]) -> set[str]:
    """The rules whose errors are among them."""
    return codes_of(each for each in found if each.severity == "error")


def the_one(found: Iterable[Diagnostic | Problem], code: str) -> Any:
    """The only finding of a rule."""
    (one,) = (each for each in found if each.code == code)
    return one
