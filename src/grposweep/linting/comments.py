"""Comments in a recipe that switch rules off.

``# grposweep: ignore[GB101]`` counts for its own line. On a line of its own it counts for the next one, which in a script may
be a command of many lines. ``# grposweep: ignore-file[GB101]`` counts for the whole file. Several codes have commas between
them, a family (``GB``) stands for its rules, and without brackets all rules are off.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from grposweep.check import RECIPE_RULES, REGISTRY
from grposweep.linting.linter import Diagnostic, LintResult

NAME = "grposweep:"
COMMENT = re.compile(rf"#\s*{NAME}\s*ignore(-file)?(?![\w-])(?:\s*\[([^\]]*)\])?")
ALL = ("",)  # of which every code begins


@dataclass(frozen=True)
class Comment:
    """One comment: the beginnings of the codes that it switches off, and on which lines (None: the whole file)."""

    line: int
    codes: tuple[str, ...]
    reach: range | None

    def covers(self, result: LintResult, diagnostic: Diagnostic) -> bool:
        """Return whether it switches a problem off: by the line of any key that the problem blames."""
        if not diagnostic.code.startswith(self.codes):
            return False
        if self.reach is None:
            return True
        lines = [diagnostic.line, *(result.recipe.lines.get(key) for key in diagnostic.keys)]
        return any(line in self.reach for line in lines if line is not None)


def read_comments(text: str, show: Callable[[], str]) -> tuple[Comment, ...]:
    """Return the comments of a file that switch rules off; ``show`` returns the text whose lines its recipes count."""
    if NAME not in text:
        return ()
    lines = show().replace("\r\n", "\n").split("\n")
    found = ((number, line, COMMENT.search(line)) for number, line in enumerate(lines, 1))
    return tuple(
        Comment(
            number, _codes(match[2]), None if match[1] else _reach(lines, number, not line[: match.start()].strip())
        )
        for number, line, match in found
        if match
    )


def _codes(inside: str | None) -> tuple[str, ...]:
    return ALL if inside is None else tuple(code.strip().upper() for code in inside.split(",") if code.strip())


def _reach(lines: Sequence[str], number: int, is_alone: bool) -> range:
    """Return the lines that a comment counts for: the command of its line, or of the first line after the comments."""
    if is_alone:
        while number < len(lines) and lines[number - 1].lstrip().startswith("#"):
            number += 1
    first = last = number
    while first > 1 and lines[first - 2].rstrip().endswith("\\"):
        first -= 1
    while last < len(lines) and lines[last - 1].rstrip().endswith("\\"):
        last += 1
    return range(first, last + 1)


def unknown_codes(comments: Sequence[Comment]) -> list[tuple[int, str]]:
    """Return line and text of each code that no rule and no family has."""
    known = (*REGISTRY, *RECIPE_RULES)
    return [(comment.line, code) for comment in comments for code in comment.codes
            if not any(name.startswith(code) for name in known)]  # fmt: skip


def silence(result: LintResult, comments: Sequence[Comment]) -> tuple[LintResult, set[Comment]]:
    """Return a result without the problems that comments switch off, and the comments that did."""
    by_problem = [[comment for comment in comments if comment.covers(result, found)] for found in result.diagnostics]
    kept = tuple(found for found, by in zip(result.diagnostics, by_problem, strict=True) if not by)
    return replace(result, diagnostics=kept), {comment for by in by_problem for comment in by}
