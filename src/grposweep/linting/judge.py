"""Judge a file: all its recipes, without what its comments switch off."""

from dataclasses import dataclass, field
from pathlib import Path

from grposweep.errors import BadSettings, UserError
from grposweep.frameworks.parsing.load import Options, parse_recipes, shown_text
from grposweep.frameworks.parsing.project import settings_for
from grposweep.linting.comments import read_comments, silence, unknown_codes
from grposweep.linting.linter import LintResult, RuleSelection, lint_recipe, select_rules


@dataclass(frozen=True)
class JudgedText:
    """The recipes of a text with their problems.

    ``silenced`` counts problems that comments switched off, ``unused`` are the lines of comments that switched off nothing,
    ``unknown`` line and code of what no rule is called. ``off`` are the rules that are ignored.
    """

    text: str
    results: tuple[LintResult, ...]
    silenced: int = 0
    unused: tuple[int, ...] = ()
    unknown: list[tuple[int, str]] = field(default_factory=list)
    off: tuple[str, ...] = ()


def judge_text(path: Path, text: str, options: Options, selection: RuleSelection) -> JudgedText:
    """Judge the recipes in a text that stands, or will stand, in this file."""
    selection = select_for(path, selection)
    results = [lint_recipe(recipe, selection) for recipe in parse_recipes(path, text, options)]
    comments = read_comments(text, lambda: shown_text(path, text))
    if not comments:
        return JudgedText(text, tuple(results), off=selection.ignore)
    pairs = [silence(result, comments) for result in results]
    kept, used = tuple(result for result, _ in pairs), set[object]().union(*(used for _, used in pairs))
    silenced = sum(len(result.diagnostics) for result in results) - sum(len(result.diagnostics) for result in kept)
    unused = tuple(comment.line for comment in comments if comment not in used)
    return JudgedText(text, kept, silenced, unused, unknown_codes(comments), selection.ignore)


def select_for(path: Path, selection: RuleSelection) -> RuleSelection:
    """Return the rules that are on for a file: by the command line, then by the settings of its project.

    ``--select`` stands for that of the settings, and what it names is on though they ignore it; ``--ignore`` adds to theirs.
    """
    settings = settings_for(path)
    if not settings.select and not settings.ignore:
        return selection
    try:
        own = select_rules(settings.select, settings.ignore)
    except UserError as error:
        raise BadSettings(f"{settings.file}: {error}") from None
    off = {*selection.ignore, *(code for code in own.ignore if code not in selection.select)}
    return RuleSelection(selection.select or own.select, tuple(sorted(off)))
