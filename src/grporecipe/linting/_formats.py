"""Reports for other programs: GitHub annotations, SARIF, and the diff of the fixes.

Sources: GitHub's "Workflow commands" (escapes of ``::error``); SARIF 2.1.0 (OASIS), as GitHub's
code scanning takes it.
"""

import json
import re
from difflib import unified_diff
from pathlib import Path
from urllib.parse import quote

from grporecipe import __version__
from grporecipe.files import Json, absolute
from grporecipe.linting.apply_fixes import FixedFile
from grporecipe.linting.explain_rules import RULES
from grporecipe.linting.linter import Diagnostic
from grporecipe.linting.output import (
    BOLD,
    GREEN,
    RED,
    Report,
    Screen,
    Total,
)
from grporecipe.reading.python.source import NOTEBOOK, code_cells
from grporecipe.redaction import redact
from grporecipe.terminal import one_line

HOME = "https://github.com/grposweep/grposweep"
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LINE = r"[^\n]*\n|[^\n]+"
STYLES = {"+": (GREEN,), "-": (RED,), "@": (BOLD,)}


def _relative(path: Path) -> str:
    """Return a path relative to the working directory if it is below it, as code hosts name
    files.
    """
    whole = absolute(path)
    here = Path.cwd()
    if whole.is_relative_to(here):
        path = whole.relative_to(here)
    return path.as_posix()


class GithubReport(Report):
    """One workflow command for each problem, which GitHub shows at its line."""

    def add_problem(self, path: Path, place: str, problem: Diagnostic, text: str) -> None:
        self._say(problem.severity, path, place, problem.code, text)

    def refuse(self, path: Path, message: str) -> None:
        self._say("error", path, "", "not judged", message)

    def _say(self, severity: str, path: Path, place: str, title: str, message: str) -> None:
        name = _relative(path)
        line = place.removeprefix(":")
        properties = f"title={_escape(f'grposweep ({title})')},file={_escape(name)}"
        # GitHub knows no cells
        if line.isdigit():
            properties += f",line={line}"
        level = severity.replace("note", "notice")
        command = f"::{level} {properties}::{_escape(f'{name}{place}: {title} {message}', '')}"
        self._screen.say(command)


def _escape(text: str, more: str = ":,") -> str:
    """Escape as GitHub requires: in a property also ``:`` and ``,``."""
    return re.sub(f"[%\r\n{more}]", lambda char: f"%{ord(char[0]):02X}", text)


class SarifReport(Report):
    """One SARIF log of all files, written at the end."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._results: list[Json] = []
        self._refused: list[Json] = []

    def add_problem(self, path: Path, place: str, problem: Diagnostic, text: str) -> None:
        self._results.append(
            {
                "ruleId": problem.code,
                "level": problem.severity,
                "message": {"text": text},
                "locations": [_location(path, place)],
            }
        )

    def refuse(self, path: Path, message: str) -> None:
        self._refused.append(
            {"level": "error", "message": {"text": message}, "locations": [_location(path)]}
        )

    def close(self, total: Total) -> None:  # noqa: ARG002 - the log holds everything
        codes = sorted({result["ruleId"] for result in self._results})
        for result in self._results:
            result["ruleIndex"] = codes.index(result["ruleId"])
        driver = {
            "name": "grposweep",
            "version": __version__,
            "informationUri": HOME,
            "rules": [*map(_rule, codes)],
        }
        ended = {
            "executionSuccessful": not self._refused,
            "toolExecutionNotifications": self._refused,
        }
        run = {"tool": {"driver": driver}, "invocations": [ended], "results": self._results}
        log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
        self._out.write(json.dumps(log, indent=2) + "\n")


def _rule(code: str) -> Json:
    rule = RULES[code]
    return {
        "id": code,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.explanation},
        "helpUri": f"{HOME}/blob/main/docs/reference/rules.md",
        "defaultConfiguration": {"level": rule.severity},
    }


def _location(path: Path, place: str = "") -> Json:
    physical: Json = {"artifactLocation": {"uri": quote(_relative(path), errors="surrogateescape")}}
    line = place.removeprefix(":")
    if line.isdigit():
        physical["region"] = {"startLine": int(line)}
    location: Json = {"physicalLocation": physical}
    if line and not line.isdigit():
        location["message"] = {"text": line}
    return location


class DiffReport(Report):
    """A unified diff of the fixes, as ``patch`` takes it; of a notebook one of each cell."""

    def add(self, path: Path, fixed: FixedFile) -> None:
        name = one_line(str(path))
        texts = (fixed.before, fixed.judged.text)
        if path.suffix == NOTEBOOK:
            old_cells, new_cells = map(code_cells, texts)
            for (number, old), (_, new) in zip(old_cells, new_cells, strict=True):
                self._show(f"{name}:cell {number}", old, new)
        else:
            self._show(name, *texts)

    def _show(self, name: str, before: str, after: str) -> None:
        old, new = re.findall(LINE, before), re.findall(LINE, after)
        for line in unified_diff(old, new, name, name):
            # a line with a secret is no patch, which is safer than to print it
            text = redact(line.removesuffix("\n"))
            # patch needs the exact text
            if self._out.isatty():
                text = one_line(text.expandtabs(4))
            self._screen.say(self._screen.paint(text, *STYLES.get(line[0], ())))
            if not line.endswith("\n"):
                self._out.write("\\ No newline at end of file\n")
